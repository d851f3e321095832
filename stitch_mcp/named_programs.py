"""Programs as users name them (a folder, a file, a certificate) turned into a Program in the store."""

import errno
from collections.abc import Mapping
from pathlib import Path

from stitch_tools.errors import UsageError
from stitch_tools.models.program import Program, ProgramFormat
from stitch_tools.storage.small_file import LARGEST_BYTES, read_small
from stitch_tools.storage.store import Store

CERTIFICATE_SUFFIX = ".zip"
_NATIVE = (".cpp", ".cc", ".cxx", ".cu")
_MAX_BYTES = 4 * LARGEST_BYTES
_MAX_FILES = 2000
_LIMITS = (
    f"a program holds at most {_MAX_FILES} files of {LARGEST_BYTES >> 20} MiB, {_MAX_BYTES >> 20} MiB in all;"
    " keep data out of its sources, and what is no part of it out of its folder"
)


def read_program(
    path: Path, store: Store, *, target: str, main: str | None = None, native: bool = False
) -> Program:
    """The program at `path`, its files in the store.

    Args:
        path: a folder, a single C++, CUDA or Python file, or a certificate.
        store: takes the files.
        target: `cpu` or `cuda:sm_90`; a certificate brings its own.
        main: the file of a folder that is compiled or imported; None where only one can be meant.
        native: whether only what a compiler takes can be meant.

    Raises:
        UsageError: nothing there, unreadable or too large, or it is not clear which file is the program.
        CertificateError: the certificate is damaged or lacks something.
    """
    if path.is_file() and path.suffix == CERTIFICATE_SUFFIX:
        return _from_certificate(path, store)
    if path.is_file():
        return program_of_files({path.name: _read(path)}, store, target=target, main=main or path.name)
    files = folder_files(path)
    return program_of_files(files, store, target=target, main=main, where=str(path), native=native)


def program_of_files(
    files: Mapping[str, bytes],
    store: Store,
    *,
    target: str,
    main: str | None = None,
    where: str = "the program",
    native: bool = False,
) -> Program:
    """The program that consists of these files, which are put into the store; `where` names it in messages.

    With `native` a Python file cannot be meant.

    Raises:
        UsageError: they are too large, or it is not clear which file is the program.
    """
    # Also where the files came inline: sizes on disk were checked before they were read.
    _refuse_large(where, {path: len(data) for path, data in files.items()})
    name = main or _find_main(where, files, native)
    if name not in files:
        raise UsageError(
            f"{where} has no file {name}", hint="name one of its files with {main}", options=("main",)
        )
    return Program(
        format=_format(name), target=target, files=store.put_files(files), main=name, author="user"
    )


def _from_certificate(path: Path, store: Store) -> Program:
    from stitch_tools.storage.certificate import read_certificate, read_contents

    archive = read_certificate(path)
    program = read_contents(archive, path).program
    store.put_files(archive.folder("program"))
    return program


def folder_files(folder: Path) -> dict[str, bytes]:
    """All files below `folder`, hidden ones and caches left out."""
    if not folder.is_dir():
        raise UsageError(
            f"there is no program at {folder}",
            hint="name a folder, a .cpp, .cu or .py file, a certificate, or a run (`stitch-mcp runs list`)",
        )
    files: dict[str, Path] = {}
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        hidden = any(part.startswith(".") or part == "__pycache__" for part in relative.parts)
        if not hidden and path.is_file():
            files[relative.as_posix()] = path
    # Before anything is read: a folder of somebody's data would fill the memory.
    _refuse_large(str(folder), {name: path.stat().st_size for name, path in files.items()})
    return {name: _read(path) for name, path in files.items()}


def _read(path: Path) -> bytes:
    try:
        return read_small(path)
    except OSError as error:
        hint = _LIMITS if error.errno == errno.EFBIG else "check its permissions"
        raise UsageError(f"cannot read {path}: {error.strerror or error}", hint=hint) from error


def _refuse_large(where: str, sizes: Mapping[str, int]) -> None:
    """Raise a UsageError where files of these sizes are more than a program is made of."""
    large = next((name for name, size in sizes.items() if size > LARGEST_BYTES), None)
    total = sum(sizes.values())
    if large is not None:
        raise UsageError(f"{where} is too large: {large} is {sizes[large] >> 20} MiB large", hint=_LIMITS)
    if len(sizes) > _MAX_FILES or total > _MAX_BYTES:
        count = f"{len(sizes)} files of {total >> 20} MiB in all"
        raise UsageError(f"{where} is too large: it holds {count}", hint=_LIMITS)


def _find_main(folder: str, files: Mapping[str, bytes], native: bool) -> str:
    """The one file at the top of the folder that can be compiled, else the one Python file."""
    top = [name for name in files if "/" not in name]
    # C++ and CUDA come first: a folder may have a Python file beside its source, to build or test it.
    for suffixes in (_NATIVE,) if native else (_NATIVE, (".py",)):
        named = [name for name in top if Path(name).suffix in suffixes]
        if len(named) == 1:
            return named[0]
        if named:
            raise UsageError(
                f"{folder} could mean {', '.join(named)}", hint="choose one with {main}", options=("main",)
            )
    if native and any(Path(name).suffix == ".py" for name in top):
        hint = "a ModelNew in Python is built when it is loaded: `stitch-mcp check REF PROGRAM`"
        raise UsageError(f"{folder} has no .cpp or .cu file at its top to compile", hint=hint)
    raise UsageError(f"{folder} holds no program", hint="a program has a .cpp, .cu or .py file at its top")


def _format(main: str) -> ProgramFormat:
    suffix = Path(main).suffix
    if suffix in _NATIVE:
        return "native"
    if suffix == ".py":
        return "kernelbench"
    raise UsageError(f"{main} is no program", hint="a program is a .cpp, .cu or .py file")
