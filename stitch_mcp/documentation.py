"""The documentation index as the command line and the server use it: where it lies, whose packages count."""

# A first search waits for what is imported here: what builds and measures is imported where it is used.

import os
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from stitch_mcp.config import Config
from stitch_rag.index_location import IndexLocation
from stitch_rag.reader import Reader

if TYPE_CHECKING:
    from stitch_rag.build import BuildReport, IndexStatus, Progress
    from stitch_rag.docstrings import DocstringSource
    from stitch_rag.evaluate import Evaluation


def open_reader(config: Config, *, wait_for_vectors_s: float = 0.0, meaning: bool = True) -> Reader:
    """A reader of this user's index; arguments as `Reader`'s. Nothing is opened before the first question."""
    return Reader(config.cache_dir, wait_for_vectors_s=wait_for_vectors_s, meaning=meaning)


def build(config: Config, *, anew: bool, vectors: bool = False, progress: "Progress") -> "BuildReport":
    """What was built; errors as in `build_index`.

    An interpreter that an earlier build was given stays until another is named, or everything is read anew.
    """
    from stitch_rag.build import built_for

    earlier, named = built_for(IndexLocation(config.cache_dir))
    # An interpreter that was found and not named is looked for again: it may be gone, or another one may come
    # first now.
    kept = (earlier, True) if named and not anew else ("", False)
    return _build(config, kept, anew=anew, vectors=vectors, progress=progress)


def _build(
    config: Config, earlier: tuple[str, bool], *, anew: bool, vectors: bool, progress: "Progress"
) -> "BuildReport":
    """The build; `earlier` is the interpreter that counts if none is named now, and whether it was named."""
    from stitch_rag.build import build_index

    prefixes, target = _target(config, earlier[0])
    named = bool(config.python) or (earlier[1] and target is not None and target.python == earlier[0])
    return build_index(
        IndexLocation(config.cache_dir),
        prefixes,
        target=target,
        anew=anew,
        vectors=vectors,
        interpreter=(target.python, named) if target else None,
        progress=progress,
    )


def _built_again(config: Config, progress: "Progress") -> "BuildReport":
    """The build that follows what was added or removed, with the packages that the index has."""
    from stitch_rag.build import built_for

    earlier = built_for(IndexLocation(config.cache_dir))
    return _build(config, earlier, anew=False, vectors=False, progress=progress)


def add(config: Config, origin: str, progress: "Progress") -> "tuple[list[str], BuildReport]":
    """Where the added pages come from, and the build that took them in; errors as in `add_pages`."""
    from stitch_rag.pages import add_pages

    place = IndexLocation(config.cache_dir)
    pages = add_pages(place, origin, progress)
    return [page.origin for page in pages], _built_again(config, progress)


def remove(config: Config, origin: str, progress: "Progress") -> "tuple[list[str], BuildReport]":
    """Where the removed pages came from, and the build without them; errors as in `remove_pages`."""
    from stitch_rag.pages import remove_pages

    gone = remove_pages(IndexLocation(config.cache_dir), origin)
    return gone, _built_again(config, progress)


def evaluate_search(config: Config, questions: Path) -> "Evaluation":
    """How well this user's index answers a file of questions, with vectors where there are any.

    Raises:
        UsageError: as `read_questions`.
    """
    from stitch_rag.evaluate import DEPTH, evaluate, read_questions
    from stitch_rag.vectors.client import START_S

    rows = read_questions(questions)
    with closing(open_reader(config, wait_for_vectors_s=START_S)) as reader:
        # The first search starts the embedding model and fills caches: its time is not that of a search.
        reader.search("warm up")
        return evaluate(rows, lambda question: reader.search(question, count=DEPTH))


def status(config: Config) -> "IndexStatus":
    """The state of the index, compared with what this machine has now."""
    from stitch_rag.build import built_for, index_status

    prefixes, target = _target(config, built_for(IndexLocation(config.cache_dir))[0])
    return index_status(IndexLocation(config.cache_dir), prefixes, target=target)


def clear(config: Config) -> int:
    """Bytes that were freed; errors as in `clear_index`."""
    from stitch_rag.build import clear_index

    return clear_index(IndexLocation(config.cache_dir))


def _target(config: Config, earlier: str) -> "tuple[list[Path], DocstringSource | None]":
    """The target interpreter's prefix and packages, and itself; nothing where there is none.

    Args:
        config: may name one.
        earlier: the one that counts where none is named and this one can be run.

    Raises:
        EnvironmentMissingError: one that was named cannot be run: what it has would silently be missing.
    """
    from stitch_rag.docstrings import DocstringSource
    from stitch_tools.errors import EnvironmentMissingError
    from stitch_tools.run.interpreter import find_interpreter

    named = bool(config.python or os.environ.get("STITCH_PYTHON"))
    options = [config.python] if named else [earlier, None] if earlier else [None]
    # The one in which references run has torch, and NVIDIA's wheels with it; another will do where none has.
    for option, need_torch in [(option, need) for option in options for need in (True, False)]:
        try:
            interpreter = find_interpreter(option, config.workspace, need_torch=need_torch)
        except EnvironmentMissingError:
            if named and not need_torch:
                raise
            continue
        return [interpreter.prefix, *interpreter.packages], DocstringSource(
            interpreter.path, interpreter.torch_version
        )
    return [], None
