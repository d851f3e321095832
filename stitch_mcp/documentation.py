"""The documentation index as the command line and the server use it: where it lies, whose packages count."""

# A first search waits for what is imported here: what builds and measures is imported where it is used.

import os
from pathlib import Path
from typing import TYPE_CHECKING

from stitch_mcp.config import Config
from stitch_rag.place import IndexPlace
from stitch_rag.reader import Reader

if TYPE_CHECKING:
    from stitch_rag.build import BuildReport, IndexStatus, Progress
    from stitch_rag.docstrings import Target
    from stitch_rag.evaluate import Evaluation


def open_reader(config: Config, *, wait_for_vectors_s: float = 0.0, meaning: bool = True) -> Reader:
    """A reader of this user's index; arguments as `Reader`'s. Nothing is opened before the first question."""
    return Reader(config.cache_dir, wait_for_vectors_s=wait_for_vectors_s, meaning=meaning)


def build(config: Config, *, anew: bool, vectors: bool = False, progress: "Progress") -> "BuildReport":
    """What was built; errors as in `build_index`."""
    from stitch_rag.build import build_index

    prefixes, target = _target(config)
    return build_index(
        IndexPlace(config.cache_dir), prefixes, target=target, anew=anew, vectors=vectors, progress=progress
    )


def add(config: Config, origin: str, progress: "Progress") -> "tuple[list[str], BuildReport]":
    """Where the added pages come from, and the build that took them in; errors as in `add_pages`."""
    from stitch_rag.pages import add_pages

    place = IndexPlace(config.cache_dir)
    pages = add_pages(place, origin, progress)
    return [page.origin for page in pages], build(config, anew=False, progress=progress)


def remove(config: Config, origin: str, progress: "Progress") -> "tuple[list[str], BuildReport]":
    """Where the removed pages came from, and the build without them; errors as in `remove_pages`."""
    from stitch_rag.pages import remove_pages

    gone = remove_pages(IndexPlace(config.cache_dir), origin)
    return gone, build(config, anew=False, progress=progress)


def evaluate_search(config: Config, questions: Path) -> "Evaluation":
    """How well this user's index answers a file of questions, with vectors where there are any.

    Raises:
        UsageError: as `read_questions`.
    """
    from stitch_rag.evaluate import DEPTH, evaluate, read_questions
    from stitch_rag.vectors.client import START_S

    rows = read_questions(questions)
    reader = open_reader(config, wait_for_vectors_s=START_S)
    reader.search("warm up")
    found = evaluate(rows, lambda question: reader.search(question, count=DEPTH))
    reader.close()
    return found


def status(config: Config) -> "IndexStatus":
    """The state of the index, compared with what this machine has now."""
    from stitch_rag.build import index_status

    prefixes, target = _target(config)
    return index_status(IndexPlace(config.cache_dir), prefixes, target=target)


def clear(config: Config) -> int:
    """Bytes that were freed; errors as in `clear_index`."""
    from stitch_rag.build import clear_index

    return clear_index(IndexPlace(config.cache_dir))


def _target(config: Config) -> "tuple[list[Path], Target | None]":
    """The target interpreter's prefix and packages, and itself; nothing where there is none.

    Raises:
        EnvironmentMissingError: one that was named cannot be run: what it has would silently be missing.
    """
    from stitch_rag.docstrings import Target
    from stitch_tools.errors import EnvironmentMissingError
    from stitch_tools.processes.interpreter import find_interpreter

    try:
        found = find_interpreter(config.python, config.workspace, need_torch=False)
    except EnvironmentMissingError:
        if config.python or os.environ.get("STITCH_PYTHON"):
            raise
        return [], None
    return [found.prefix, *found.packages], Target(found.path, found.torch_version)
