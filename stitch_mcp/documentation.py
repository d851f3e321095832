"""The documentation index as the command line and the server use it: where it lies, whose packages count."""

from pathlib import Path

from stitch_mcp.config import Config
from stitch_rag.build import BuildReport, IndexStatus, Progress, build_index, clear_index, index_status
from stitch_rag.place import IndexPlace
from stitch_rag.reader import Reader
from stitch_tools.errors import EnvironmentMissingError
from stitch_tools.processes.interpreter import find_interpreter


def open_reader(config: Config) -> Reader:
    """A reader of this user's index. Nothing is opened before the first question."""
    return Reader(config.cache_dir)


def build(config: Config, *, anew: bool, progress: Progress) -> BuildReport:
    """What was built; errors as in `build_index`."""
    return build_index(IndexPlace(config.cache_dir), _prefixes(config), anew=anew, progress=progress)


def status(config: Config) -> IndexStatus:
    """The state of the index, compared with what this machine has now."""
    return index_status(IndexPlace(config.cache_dir), _prefixes(config))


def clear(config: Config) -> int:
    """Bytes that were freed; errors as in `clear_index`."""
    return clear_index(IndexPlace(config.cache_dir))


def _prefixes(config: Config) -> list[Path]:
    """The target interpreter's prefix; none where there is no such interpreter, which here is no failure."""
    try:
        return [find_interpreter(config.python, config.workspace, need_torch=False).prefix]
    except EnvironmentMissingError:
        return []
