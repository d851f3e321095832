"""Where our caches lie: builds, helpers, measured devices, compiled baselines."""

import os
from pathlib import Path


def user_cache_dir() -> Path:
    """The folder of all our caches: `STITCH_CACHE_DIR`, else the platform's cache folder of the user."""
    configured = os.environ.get("STITCH_CACHE_DIR")
    if configured:
        return Path(configured)
    import platformdirs

    return platformdirs.user_cache_path("stitch-mcp")
