"""Our own small C and C++ sources, compiled once per machine into the user's cache.

These are the timed loop and the ceilings probe: trusted code of this package. Programs are built by
`stitch_tools.compile`, which knows diagnostics, limits and the rest.
"""

import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from stitch_tools.errors import EnvironmentMissingError
from stitch_tools.models import sha256_hex
from stitch_tools.store import storing

NATIVE = Path(__file__).parent / "native"
_C_COMPILERS = ("cc", "gcc", "clang")
_CXX_COMPILERS = ("c++", "g++", "clang++")
_BUILD_TIMEOUT_S = 120.0


def user_cache_dir() -> Path:
    """The folder of all our caches: `STITCH_CACHE_DIR`, else the platform's cache folder of the user."""
    configured = os.environ.get("STITCH_CACHE_DIR")
    if configured:
        return Path(configured)
    import platformdirs

    return platformdirs.user_cache_path("stitch-mcp")


def find_host_compiler(language: str) -> str | None:
    """Absolute path of the host compiler for `c` or `c++` (`CC`/`CXX` first), or None."""
    variable, names = ("CC", _C_COMPILERS) if language == "c" else ("CXX", _CXX_COMPILERS)
    configured = os.environ.get(variable)
    for name in (configured, *names) if configured else names:
        found = shutil.which(name)
        if found is not None:
            return found
    return None


def cpu_model() -> str:
    """The processor's model name, as the kernel says it."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def build_host_source(
    source: str, output: str, flags: Sequence[str], *, cache_dir: Path | None = None
) -> Path:
    """Path of `output`, compiled from `native/src/<source>`; a cache hit starts no process.

    The cache key holds the sources, the flags, the compiler's identity and, since the flags may say
    `-march=native`, the processor's model.

    Raises:
        EnvironmentMissingError: no host compiler, or it refused our source.
        StoreError: the cache folder cannot be written.
    """
    path = NATIVE / "src" / source
    language = "c" if path.suffix == ".c" else "c++"
    compiler = find_host_compiler(language)
    if compiler is None:
        raise EnvironmentMissingError(
            f"no host compiler for {language} was found", hint="install gcc and g++, or set CC and CXX"
        )
    folder = (cache_dir or user_cache_dir()) / "native" / _key(path, compiler, flags)
    built = folder / output
    if built.exists():
        return built
    with storing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=folder, prefix=".tmp-")
        os.close(handle)
    unfinished = Path(name)
    try:
        _compile([compiler, *flags, f"-I{NATIVE / 'include'}", str(path), "-o", name, "-ldl"])
        unfinished.chmod(0o755)
        unfinished.replace(built)
    finally:
        unfinished.unlink(missing_ok=True)
    return built


def _key(path: Path, compiler: str, flags: Sequence[str]) -> str:
    identity = Path(compiler).resolve().stat()
    parts = [
        path.read_bytes(),
        (NATIVE / "include" / "stitch" / "abi.h").read_bytes(),
        "\0".join(flags).encode(),
        f"{compiler}:{identity.st_size}:{identity.st_mtime_ns}".encode(),
        cpu_model().encode(),
    ]
    return sha256_hex(b"".join(sha256_hex(part).encode() for part in parts))[:32]


def _compile(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_BUILD_TIMEOUT_S, check=False, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentMissingError(
            f"the host compiler did not run: {error}", hint="check the compiler with stitch-mcp doctor"
        ) from error
    if done.returncode != 0:
        raise EnvironmentMissingError(
            f"the host compiler refused a source of ours: {done.stderr.strip()[-500:]}",
            hint="a gcc of version 9 or newer is needed (CC, CXX)",
        )


def build_runner(cache_dir: Path | None = None) -> Path:
    """The timed loop as a shared library (native/src/runner.c).

    Raises:
        EnvironmentMissingError: no C compiler, or it refused the source.
    """
    flags = ("-std=c11", "-O2", "-fPIC", "-shared", "-Wl,-z,now", "-fvisibility=hidden")
    return build_host_source("runner.c", "librunner.so", flags, cache_dir=cache_dir)


def build_probe(cache_dir: Path | None = None) -> Path:
    """The ceilings probe as a program (native/src/probe.cpp).

    Raises:
        EnvironmentMissingError: no C++ compiler with OpenMP, or it refused the source.
    """
    flags = ("-std=c++17", "-O3", "-march=native", "-fopenmp")
    return build_host_source("probe.cpp", "probe", flags, cache_dir=cache_dir)
