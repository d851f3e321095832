"""What a compiler may touch: its own installation, the system's headers, and what a build names besides.

The source that it reads is a stranger's, and `#include` or `.incbin` would take any file of the user's into
the library. Where a toolchain lies is asked of the compiler itself: it may be anywhere.
"""

import os
import re
import shlex
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

from stitch_tools.compile.toolchain import Compiler, ask_compiler
from stitch_tools.confine import linux
from stitch_tools.confine.sandbox import LEVELS
from stitch_tools.errors import SandboxError
from stitch_tools.machine.isolation import probe_isolation
from stitch_tools.models.verdict import SandboxLevel

_SYSTEM = (
    *(f"/usr/{name}" for name in ("bin", "include", "lib", "lib32", "lib64", "libx32", "libexec")),
    *(f"/usr/local/{name}" for name in ("include", "lib", "lib64")),
    *("/bin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store"),
    *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives"),
    *("/sys/devices/system/cpu", "/dev/urandom", "/dev/random"),
)
# Parts of the folder above a compiler's `bin`, not all of it: it may be an environment with much else.
_INSTALLED = (
    *("bin", "lib", "lib32", "lib64", "libexec", "include", "nvvm", "targets"),
    *("x86_64-linux-gnu", "x86_64-conda-linux-gnu", "aarch64-linux-gnu"),
)
_SEARCH_LIST = re.compile(r"search starts here:\n(.*?)^(?=\S)", re.MULTILINE | re.DOTALL)
_NAMED = re.compile(
    r"^(?:COLLECT_LTO_WRAPPER|COMPILER_PATH|LIBRARY_PATH|InstalledDir)[=:](.*)$", re.MULTILINE
)
_SEARCH_DIRS = re.compile(r"^(?:install|programs|libraries): =?(.*)$", re.MULTILINE)
_DRY_RUN = re.compile(r"^#\$ (?!PATH=|_|LD_LIBRARY_PATH=)\w+=(.*)$", re.MULTILINE)


@lru_cache(maxsize=1)
def compiler_level() -> SandboxLevel | None:
    """The isolation that compilers get on this machine; None where there is none (not Linux on x86-64)."""
    return probe_isolation() if linux.is_supported() else None


def refuse_weaker(level: SandboxLevel | None, required: SandboxLevel | None) -> None:
    """Go on where the level that works here is at least the required one.

    Raises:
        SandboxError: it is not.
    """
    if required is None or (level is not None and LEVELS.index(level) <= LEVELS.index(required)):
        return
    found = f"only {level} works here" if level is not None else "this system has none"
    raise SandboxError(
        f"isolation level {required} is required for compilers, but {found}",
        hint="`stitch-mcp doctor` names the fix; or require a lower level",
    )


def readable_paths(compilers: Iterable[Compiler], named: Iterable[Path] = ()) -> tuple[str, ...]:
    """Files and folders that these compilers may read, with those `named`; existing ones, each once."""
    paths = [Path(path) for path in _SYSTEM]
    for compiler in compilers:
        paths += toolchain_paths(compiler)
    # Libraries of a compiler that is not the system's; the variable is passed on to it.
    paths += [Path(folder) for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    found = [str(path.absolute()) for path in (*_narrow(paths), *named) if path.exists()]
    return tuple(dict.fromkeys(found))


@lru_cache(maxsize=16)
def toolchain_paths(compiler: Compiler) -> tuple[Path, ...]:
    """Where the compiler's parts, headers and libraries lie, by its own word; not all need exist."""
    said = _nvcc_folders(compiler) if compiler.kind == "nvcc" else _cpp_folders(compiler)
    paths = [*said, *_of_command(compiler)]
    for program in (compiler.path.absolute(), compiler.path.resolve()):
        paths += [program, *_installed_at(program.parent.parent)]
    return tuple(dict.fromkeys(path.resolve() for path in _narrow(paths)))


def _cpp_folders(compiler: Compiler) -> Iterator[Path]:
    verbose = ask_compiler([*compiler.command, "-v", "-E", "-x", "c++", os.devnull]) or ""
    for listed in _SEARCH_LIST.findall(verbose):
        for line in listed.splitlines():
            yield Path(line.strip())
    search = ask_compiler([*compiler.command, "-print-search-dirs"]) or ""
    for value in (*_NAMED.findall(verbose), *_SEARCH_DIRS.findall(search)):
        yield from map(Path, value.strip().split(":"))
    for tool in ("as", "ld"):
        found = Path((ask_compiler([*compiler.command, f"-print-prog-name={tool}"]) or "").strip())
        if found.is_absolute():
            yield from (found, found.resolve())


def _nvcc_folders(compiler: Compiler) -> Iterator[Path]:
    text = ask_compiler([*compiler.command, "--dryrun", "-E", "-x", "cu", os.devnull]) or ""
    for value in _DRY_RUN.findall(text):
        for word in _words(value):
            path = Path(re.sub(r"^-[IL]", "", word))
            # The toolkit's top may be a whole environment: its parts are enough.
            yield from _installed_at(path) if (path / "bin").is_dir() else (path,)


def _of_command(compiler: Compiler) -> Iterator[Path]:
    """What CXX names beside the compiler: another compiler behind a cache, a sysroot, a folder of headers."""
    for word in compiler.command[1:]:
        found = re.search(r"/.*", word)
        if found is not None:
            path = Path(found.group(0))
            yield path
            if path.is_file() and os.access(path, os.X_OK):
                yield from _installed_at(path.resolve().parent.parent)


def _installed_at(prefix: Path) -> list[Path]:
    """Parts of a folder that a compiler is installed in; none of one that holds the user's home too."""
    return [folder / part for folder in _narrow([prefix]) for part in _INSTALLED]


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _narrow(paths: Iterable[Path]) -> Iterator[Path]:
    """The absolute ones that do not open the user's whole home folder, or everything."""
    home = Path.home().resolve()
    too_wide = (Path("/"), home, *home.parents)
    return (path for path in paths if path.is_absolute() and path.resolve() not in too_wide)
