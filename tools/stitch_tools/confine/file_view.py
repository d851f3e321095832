"""What a tool's child sees of the file system: a root of its own with what it may use, and nothing else.

A process that may connect Unix sockets could otherwise talk to every daemon whose socket has a path: neither
Landlock nor a read-only mount governs that. Abstract names belong to the network namespace, which is its own.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from stitch_tools.confine import linux

_MOST_LINKS = 40


def show_only(root: Path, paths: Iterable[str]) -> None:
    """Make `paths` all that this process and its children see; for pid 1 of the namespaces.

    `root` is a new, empty folder, named without links; paths that do not exist are skipped.

    Raises:
        OSError: the machine does not allow it.
    """
    linux.mount("tmpfs", str(root), "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "size=1m,mode=0755")
    shown: set[Path] = set()
    # Short ones first: what lies below them comes along.
    for path in sorted(set(paths), key=len):
        _show(root, path, shown)
    os.chroot(root)
    os.chdir("/")


def _show(root: Path, path: str, shown: set[Path]) -> None:
    """Mount `path` at the same place below `root`; links on the way to it are made again."""
    walked, rest, links = Path("/"), _parts(path), 0
    while rest:
        walked /= rest.pop(0)
        copy, covered = root / walked.relative_to("/"), not shown.isdisjoint((walked, *walked.parents))
        if walked.is_symlink() and links < _MOST_LINKS:
            links += 1
            target = walked.readlink()
            if not covered and not copy.is_symlink():
                copy.symlink_to(target)
            walked, rest = Path("/"), [*_parts(str(walked.parent / target)), *rest]
        elif not walked.exists():
            return
        elif covered:
            continue
        elif rest:
            copy.mkdir(exist_ok=True)
        else:
            _bind(root, walked, copy)
            shown.add(walked)


def _bind(root: Path, path: Path, copy: Path) -> None:
    if path.is_dir():
        copy.mkdir(exist_ok=True)
    else:
        copy.touch(exist_ok=True)
    # The folder that holds the new root must not bring it along.
    flags = linux.MS_BIND if path in root.parents else linux.MS_BIND | linux.MS_REC
    linux.mount(str(path), str(copy), None, flags)


def _parts(path: str) -> list[str]:
    return [part for part in os.path.normpath(path).split("/") if part]
