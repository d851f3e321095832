"""`stitch-mcp cache show` and `clear`."""

import click

from stitch_mcp.cli.options import json_option, settings
from stitch_mcp.cli.output import CommandOutput
from stitch_mcp.views.table import ReportSection


@click.group("cache")
def command() -> None:
    """Show or clear cached builds and measurements."""


@command.command("show")
@click.option("--cache-dir", metavar="DIR", help="Folder of the cache (default: the user's cache folder).")
@json_option
def show(cache_dir: str | None, as_json: bool) -> int:
    """Show where the cache lies and what it holds."""
    from stitch_mcp.caches import describe_cache

    cache = describe_cache(settings(cache_dir=cache_dir).cache_dir)
    rows = tuple((row.meaning, str(row.entries), _size(row.size_bytes)) for row in cache.kinds)
    cap = f"built programs, and compiled baselines, are kept up to {_size(cache.cap_bytes)} each"
    notes = (f"folder: {cache.folder}", cap)
    section = ReportSection("", ("kind", "entries", "size"), rows, notes)
    return CommandOutput("cache show", as_json=as_json).finish(dict(cache), [section])


@command.command("clear")
@click.option("--cache-dir", metavar="DIR", help="Folder of the cache (default: the user's cache folder).")
@json_option
def clear(cache_dir: str | None, as_json: bool) -> int:
    """Remove all cached builds and measurements. Programs that are loaded now stay usable."""
    from stitch_mcp.caches import clear_cache

    folder = settings(cache_dir=cache_dir).cache_dir
    missing = folder is not None and not folder.exists()
    gone = clear_cache(folder)
    entries = sum(row.entries for row in gone.kinds)
    size = _size(sum(row.size_bytes for row in gone.kinds))
    message = f"removed {entries} entries ({size}) from {gone.folder}"
    section = ReportSection(
        notes=(f"there is no folder {folder}: nothing was removed" if missing else message,)
    )
    return CommandOutput("cache clear", as_json=as_json).finish({"removed": gone}, [section])


def _size(size_bytes: int) -> str:
    """In MiB, from a GiB on in GiB, without a zero behind the point."""
    value, unit = (size_bytes / 2**30, "GiB") if size_bytes >= 2**30 else (size_bytes / 2**20, "MiB")
    return f"{value:.1f}".removesuffix(".0") + f" {unit}"
