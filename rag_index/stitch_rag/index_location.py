"""Where the index lies: one folder of the user's cache."""

from pathlib import Path

from stitch_tools.storage.user_cache import user_cache_dir

FOLDER = "docs"
"""Below the cache folder."""


class IndexLocation:
    """The files of the index below one cache folder."""

    def __init__(self, cache_dir: Path | None = None) -> None:
        self.folder = (cache_dir or user_cache_dir()) / FOLDER
        self.index = self.folder / "index.sqlite"
        self.building = self.folder / "building.sqlite"
        self.lock = self.folder / "lock"
        self.pages = self.folder / "pages"
        """What the user added: one JSON file a page."""
        self.vectors = self.folder / "vectors"
