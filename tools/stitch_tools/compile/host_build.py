"""Our own small C and C++ sources, compiled once per machine into the user's cache.

These are the timed loop, the tools' host and the sampler: trusted code of this package. Compiler, limits and
environment are those that programs are built with; a refusal is our trouble here, not a result.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from stitch_tools.compile.cache import BuildCache
from stitch_tools.compile.confinement import readable_paths
from stitch_tools.compile.headers import native_include
from stitch_tools.compile.runner import run_compiler
from stitch_tools.compile.toolchain import INSTALL_CPP, Compiler, find_cpp_compiler, native_architecture
from stitch_tools.errors import EnvironmentMissingError
from stitch_tools.models.base import sha256_hex
from stitch_tools.storage.store import storing
from stitch_tools.storage.user_cache import user_cache_dir

_SOURCES = Path(__file__).parents[1] / "native" / "src"
_BUILD_TIMEOUT_S = 120.0


def build_runner(cache_dir: Path | None = None) -> Path:
    """The timed loop as a shared library (native/src/runner.c).

    Raises:
        EnvironmentMissingError: no host compiler, or it refused the source.
        StoreError: the cache folder cannot be written.
    """
    # A C++ compiler takes C too, when told so.
    language = ("-x", "c", "-std=c11")
    flags = (*language, "-O2", "-fPIC", "-shared", "-Wl,-z,now", "-fvisibility=hidden")
    return _build("runner.c", "librunner.so", flags, cache_dir)


def build_sanitizer_host(sanitizers: str, cache_dir: Path | None = None) -> Path:
    """The program that runs a candidate alone (native/src/sanitizer_host.cpp).

    Args:
        sanitizers: what it is built with, as -fsanitize takes it; "" for none.
        cache_dir: the cache folder; None is the user's.

    Raises:
        EnvironmentMissingError: no compiler, or its sanitizer runtimes are not installed.
        StoreError: the cache folder cannot be written.
    """
    chosen = (f"-fsanitize={sanitizers}", "-fno-omit-frame-pointer") if sanitizers else ()
    flags = ("-std=c++17", "-O1", "-g1", *chosen)
    return _build("sanitizer_host.cpp", "sanitizer_host", flags, cache_dir)


def build_sampler(cache_dir: Path | None = None) -> Path:
    """What times a CPU program's steps and samples its functions, as a library (native/src/sampler.c).

    Raises:
        EnvironmentMissingError: no host compiler, or it refused the source.
        StoreError: the cache folder cannot be written.
    """
    flags = ("-x", "c", "-std=gnu11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden")
    return _build("sampler.c", "libsampler.so", flags, cache_dir)


def _build(source: str, output: str, flags: Sequence[str], cache_dir: Path | None) -> Path:
    """The compiled `native/src/<source>`, from the cache where an equal one lies there."""
    compiler = find_cpp_compiler()
    path = _SOURCES / source
    command = (*compiler.command, *flags, f"-I{native_include()}", str(path), "-o", output, "-ldl")
    root, key = cache_dir or user_cache_dir(), _key(path, compiler, command)
    built = root / "native" / key / output
    if built.exists():
        return built
    cache = BuildCache(root)
    # A sandbox lets a worker read this very file: put in its place by another process, it could not.
    with storing(built, "STITCH_CACHE_DIR"), cache.building(key, wait_s=_BUILD_TIMEOUT_S):
        if not built.exists():
            with cache.workspace() as scratch:
                _compile(command, scratch, readable_paths([compiler], [_SOURCES, native_include()]))
                built.parent.mkdir(parents=True, exist_ok=True)
                (scratch / output).replace(built)
    return built


def _key(path: Path, compiler: Compiler, command: Sequence[str]) -> str:
    facts = {
        "source": sha256_hex(path.read_bytes()),
        "abi": sha256_hex((native_include() / "stitch" / "abi.h").read_bytes()),
        "compiler": compiler.version_line,
        "command": command,
        "machine": native_architecture(compiler),
    }
    return sha256_hex(json.dumps(facts, sort_keys=True).encode("utf-8"))[:32]


def _compile(command: Sequence[str], scratch: Path, readable: Sequence[str]) -> None:
    done = run_compiler(
        command,
        folder=scratch,
        scratch=scratch,
        time_limit_s=_BUILD_TIMEOUT_S,
        readable=readable,
    )
    if done.timed_out:
        raise EnvironmentMissingError(
            f"the host compiler did not finish a source of ours within {_BUILD_TIMEOUT_S:g} s",
            hint="try again when the machine is less busy, or name another compiler with STITCH_CXX",
        )
    if done.exit_code != 0:
        raise EnvironmentMissingError(
            f"the host compiler refused a source of ours: {done.output.strip()[-500:]}", hint=INSTALL_CPP
        )
