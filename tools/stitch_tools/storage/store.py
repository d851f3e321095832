"""The content-addressed store: immutable blobs named by their SHA-256.

A blob is written to a temporary file, synced and renamed before anybody can name it, so that a reader sees
either nothing or the whole of it. Writing the same content again only reads it, and mends a damaged blob.
"""

import contextlib
import errno
import os
import secrets
import tempfile
from collections.abc import Generator, Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Literal, TypeVar

from stitch_tools.errors import StoreError
from stitch_tools.models.base import Fact, sha256_hex
from stitch_tools.models.task import SourceFile

FactT = TypeVar("FactT", bound=Fact)
PlaceOption = Literal["--workspace", "--output", "STITCH_CACHE_DIR", "STITCH_LOCK_DIR", "TMPDIR"]
"""What lets the user choose another folder for files of one kind."""

_HINTS = {
    errno.ENOSPC: "free disk space, or choose another folder with {option}",
    errno.EDQUOT: "the disk quota is used up: free space, or choose another folder with {option}",
    errno.EROFS: "the file system is read-only: choose a writable folder with {option}",
    errno.EACCES: "the folder is not writable for you: choose another with {option}",
    errno.EPERM: "the folder is not writable for you: choose another with {option}",
    errno.ENOENT: "no folder can be made there: choose another with {option}",
    errno.ENOTDIR: "a file lies where a folder should be: choose another with {option}",
    errno.EEXIST: "a file lies where a folder should be: choose another with {option}",
    errno.ELOOP: "its links lead in a circle: choose another folder with {option}",
    errno.ENAMETOOLONG: "choose a folder with a shorter path: {option}",
}
_HINT = "check the folder, or choose another with {option}"


@contextlib.contextmanager
def storing(path: Path, option: PlaceOption = "--workspace") -> Generator[None]:
    """Turn an OS error while writing below `path` into a StoreError whose hint names `option` as way out."""
    try:
        yield
    except OSError as error:
        hint = _HINTS.get(error.errno or 0, _HINT).format(option=option)
        raise StoreError(f"cannot write {path}: {error.strerror or error}", hint=hint) from error


def write_atomically(
    path: Path, data: bytes, option: PlaceOption = "--workspace", mode: int | None = None
) -> None:
    """Write `data` to `path` so that after a crash the file is whole or not there.

    Args:
        path: the file; a link there is replaced.
        data: its content.
        option: as in `storing`.
        mode: its permissions; None: what the umask leaves.

    Raises:
        StoreError: the folder cannot be written (full, read-only, no permission).
    """
    with storing(path, option):
        path.parent.mkdir(parents=True, exist_ok=True)
        # Not mkstemp, which would keep the file from everybody else, whatever the umask says.
        name = path.parent / f".tmp-{secrets.token_hex(8)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        # At no moment is it open to more than `mode` says.
        handle = os.open(name, flags, 0o666 if mode is None else mode)
        try:
            if mode is not None:
                name.chmod(mode)  # the umask may have taken from it
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            name.replace(path)
        except BaseException:  # handed on: no half-written file stays behind
            with contextlib.suppress(OSError):
                name.unlink()
            raise
        sync_folder(path.parent)


def can_write(folder: Path) -> bool:
    """Whether files can be made in `folder`, room aside; its permissions alone do not tell that of /proc."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError as error:
        return error.errno in (errno.ENOSPC, errno.EDQUOT)


def sync_folder(folder: Path) -> None:
    """Make a rename in `folder` durable, where the file system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


class Store:
    """Blobs below one folder, `<first two digits>/<hash>`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, sha256: str) -> Path:
        """Where the blob of that hash lies, whether or not it is there.

        Raises:
            StoreError: `sha256` is not a hash.
        """
        if len(sha256) != 64 or not set(sha256) <= set("0123456789abcdef"):
            raise StoreError(f"{sha256!r} is not a content hash", hint="ids are 64 hexadecimal digits")
        return self.root / sha256[:2] / sha256

    def put(self, data: bytes) -> str:
        """Store `data` and return its hash; a blob that is damaged is written anew.

        Raises:
            StoreError: the folder cannot be written.
        """
        sha256 = sha256_hex(data)
        path = self.path(sha256)
        if _holds(path, data):
            # Its age tells `collect_garbage` that somebody is about to name it.
            with contextlib.suppress(OSError):
                os.utime(path, follow_symlinks=False)
        else:
            write_atomically(path, data)
        return sha256

    def get(self, sha256: str) -> bytes:
        """The blob's content, checked against its name.

        Raises:
            StoreError: the blob is missing or damaged.
        """
        path = self.path(sha256)
        try:
            data = path.read_bytes()
        except FileNotFoundError as error:
            raise StoreError(
                f"the store has no blob {sha256[:12]}",
                hint=f"a run and its store must stay together; otherwise {_MEND}",
            ) from error
        except OSError as error:
            raise StoreError(
                f"cannot read {path}: {error.strerror or error}", hint="check the store's permissions"
            ) from error
        if sha256_hex(data) != sha256:
            raise StoreError(
                f"blob {sha256[:12]} is damaged: its content does not fit its name",
                hint=_MEND,
            )
        return data

    def put_fact(self, fact: Fact) -> str:
        """Store a fact as canonical JSON and return its hash."""
        return self.put(fact.canonical_json())

    def get_fact(self, sha256: str, kind: type[FactT]) -> FactT:
        """The fact behind a hash.

        Raises:
            StoreError: missing, damaged, or not a `kind`.
        """
        try:
            return kind.from_json_bytes(self.get(sha256))
        except ValueError as error:
            raise StoreError(
                f"blob {sha256[:12]} is not a {kind.__name__}", hint="was it made by a newer version?"
            ) from error

    def put_files(self, files: Mapping[str, bytes]) -> tuple[SourceFile, ...]:
        """Store a folder's files and return their entries, sorted by path."""
        entries = [
            SourceFile(path=checked_path(path), sha256=self.put(data), size=len(data))
            for path, data in files.items()
        ]
        return tuple(sorted(entries, key=lambda entry: entry.path))

    def materialize(
        self, files: Iterable[SourceFile], folder: Path, option: PlaceOption = "--workspace"
    ) -> None:
        """Write the files below `folder`, which is made if needed; `option` as in `storing`.

        Raises:
            StoreError: a blob is missing or damaged, a path leaves the folder, or it cannot be written.
        """
        for entry in files:
            target = folder / checked_path(entry.path)
            data = self.get(entry.sha256)
            _refuse_links(folder, target)
            with storing(target, option):
                target.parent.mkdir(parents=True, exist_ok=True)
                try:
                    target.write_bytes(data)
                except OSError:
                    with contextlib.suppress(OSError):
                        target.unlink()
                    raise


def _refuse_links(folder: Path, target: Path) -> None:
    """Refuse a link below the folder, through which a write would reach another place."""
    below = target.relative_to(folder).parents
    for path in (target, *(folder / parent for parent in below)):
        if path != folder and path.is_symlink():
            raise StoreError(f"{path} is a link, and writing would follow it", hint="remove the link")


_MEND = "repeat what stored it: `stitch-mcp solve --resume RUN` for a run, the same call for anything else"
"""Storing the same content again mends a blob."""


def _holds(path: Path, data: bytes) -> bool:
    # Comparing bytes costs less than the hash that made the name.
    try:
        return path.stat().st_size == len(data) and path.read_bytes() == data
    except OSError:
        return False


def checked_path(path: str) -> str:
    """The relative path, in POSIX spelling, that stays inside its folder.

    Raises:
        StoreError: it is absolute, empty, climbs out of its folder, or has a NUL character.
    """
    pure = PurePosixPath(path)
    if "\0" in path:
        raise StoreError(f"file path {path!r} has a NUL character", hint="give the file another name")
    if pure.is_absolute() or ".." in pure.parts or not pure.parts or "\\" in path:
        raise StoreError(f"file path {path!r} leaves its folder", hint="use relative paths without '..'")
    return str(pure)
