"""Which headers this machine holds: toolkits, NVIDIA's wheels, conda; by library and version."""

import contextlib
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

LIBRARIES: tuple[tuple[str, str], ...] = (
    (r"cuda\.h|cudaProfiler\.h|cuda[A-Z]\w*\.h|cuda_egl\w*\.h|cuda_gl\w*\.h|cuda_vdpau\w*\.h", "driver"),
    (
        r"cuda_(?:runtime|runtime_api|device_runtime_api|profiler_api|occupancy)\.h|driver_(?:types|functions)\.h|"
        r"(?:vector|texture|surface|builtin|library)_types\.h|channel_descriptor\.h|vector_functions\.h|"
        r"device_(?:types|launch_parameters)\.h|crt/host_defines\.h",
        "cudart",
    ),
    (
        r"cuda_(?:fp16|bf16|fp8|fp6|fp4)\.h|cuComplex\.h|crt/(?:math_functions|device_functions|mma|"
        r"device_double_functions|device_fp128_functions|sm_\w+_rt)\.h|(?:device|sm_\d+)_\w+\.h|math_constants\.h|"
        r"(?:texture|surface)_indirect_functions\.h|cuda_(?:pipeline|awbarrier)(?:_primitives)?\.h",
        "device",
    ),
    # What cooperative_groups/reduce.h and its like declare stands in the files behind them.
    (
        r"cooperative_groups(?:\.h|/\w+\.h|/details/(?:async|functional|memory|partitioning|reduce|scan)\.h)",
        "cooperative_groups",
    ),
    (r"cublasLt\w*\.h", "cublaslt"),
    (r"cublas(?:_v2|_api|Xt)?\.h", "cublas"),
    (r"cudnn_frontend\w*\.h|cudnn_frontend/.*\.h", "cudnn_frontend"),
    (r"cudnn\w*\.h", "cudnn"),
    (r"nccl\w*\.h", "nccl"),
    (r"cusparseLt\w*\.h", "cusparselt"),
    (r"cusparse\w*\.h", "cusparse"),
    (r"cusolver\w*\.h", "cusolver"),
    (r"cufft\w*\.h", "cufft"),
    (r"curand\w*\.h", "curand"),
    (r"nvrtc\.h", "nvrtc"),
    (r"nvJitLink\.h", "nvjitlink"),
    (r"(?:cupti\w*|nvperf\w*)\.h", "cupti"),
    (r"nvtx3/nvToolsExt\w*\.h", "nvtx"),
    (r"nvvm\.h", "nvvm"),
    (
        r"(?:cccl/)?cub/(?:(?:block|warp|device|iterator|thread)/\w+|util_(?:allocator|debug|type))\.cuh",
        "cub",
    ),
    (r"(?:cccl/)?thrust/(?:iterator/|random/)?\w+\.h", "thrust"),
    (
        r"(?:cccl/)?cuda/__(?:barrier|memcpy_async|ptx|warp|memory_resource|cmath|latch|semaphore)/.*\.h",
        "libcudacxx",
    ),
    # Of what is behind the interfaces only what programs name: kernels' own plumbing drowns all else.
    (
        r"cutlass/(?:arch|layout|gemm/device|gemm/collective|conv/device|epilogue/\w+|reduction)?/?\w+\.h",
        "cutlass",
    ),
    (
        r"cutlass/(?:(?:layout|pipeline|gemm|conv|epilogue/fusion)/)?\w+\.hpp|cutlass/gemm/kernel/gemm_universal\w*\.h(?:pp)?|"
        r"cutlass/gemm/(?:gemm|device/gemm_universal_adapter|collective/collective_\w+)\.h(?:pp)?",
        "cutlass",
    ),
    (r"cute/(?:\w+/)?\w+\.hpp", "cute"),
)
"""Paths below an include folder (regular expressions) and the library they belong to; the first wins."""

_LIBRARIES = tuple((re.compile(pattern), name) for pattern, name in LIBRARIES)
_SKIPPED = re.compile(
    r"generated_|_meta\.h$|_hpp$|Typedefs\.h$|cupti_(?:driver|runtime|nvtx)_cbid\.h|cupti_activity_deprecated\.h|"
    r"nvtxDetail|cudnn_backend_base|^cublas\.h$|cudnn\w*_v\d+\.h$|/detail/|cudaVDPAU|cudaEGL|cuda_egl|cuda_vdpau|specializations"
)
_VERSION_MACROS = {
    "driver": ("cuda.h", "CUDA_VERSION"),
    "cublas": ("cublas_api.h", "CUBLAS_VER"),
    "cublaslt": ("cublas_api.h", "CUBLAS_VER"),
    "cudnn": ("cudnn_version.h", "CUDNN"),
    "cudnn_frontend": ("cudnn_frontend_version.h", "CUDNN_FRONTEND"),
    "nccl": ("nccl.h", "NCCL"),
    "cusparselt": ("cusparseLt.h", "CUSPARSELT_VER"),
    "cufft": ("cufft.h", "CUFFT_VER"),
    "curand": ("curand.h", "CURAND_VER"),
    "cusparse": ("cusparse.h", "CUSPARSE_VER"),
    "cusolver": ("cusolver_common.h", "CUSOLVER_VER"),
    "cutlass": ("cutlass/version.h", "CUTLASS"),
    "cub": ("cub/version.cuh", "CUB_VERSION"),
    "thrust": ("thrust/version.h", "THRUST_VERSION"),
    "libcudacxx": ("cub/version.cuh", "CUB_VERSION"),  # released together; its own macro counts otherwise
}
_TOOLKIT = frozenset(
    ("driver", "cudart", "device", "cooperative_groups", "nvrtc", "cupti", "nvtx", "nvvm", "nvjitlink")
)
_LARGEST_BYTES = 6_000_000
SYSTEM_FOLDERS = tuple(
    Path("/usr") / name
    for name in ("include", "include/x86_64-linux-gnu", "include/aarch64-linux-gnu", "local/include")
)
_BESIDE_TOOLKIT = frozenset(("cudnn", "cudnn_frontend", "nccl", "cusparselt", "cutlass", "cute"))
"""Libraries whose packages put headers there; a toolkit has a folder of its own."""
_PACKAGE_FOLDERS = ("site-packages", "dist-packages")
_PACKAGES = (
    "lib/python3.*/site-packages",
    "lib64/python3.*/site-packages",
    "Lib/site-packages",
    # Debian's own Python has them elsewhere.
    "lib/python3*/dist-packages",
    "local/lib/python3*/dist-packages",
)
"""Where an interpreter keeps its packages, below its prefix."""


@dataclass(frozen=True, slots=True)
class Header:
    """One header to index."""

    path: Path
    relative: str
    """As an #include would name it."""
    library: str
    version: str | None
    source: str
    """Where it comes from, in words."""


@dataclass(frozen=True, slots=True)
class Root:
    """An include folder."""

    folder: Path
    source: str
    packages: Path | None = None
    """The site-packages folder of a wheel's headers, whose entries tell versions."""
    libraries: frozenset[str] = frozenset()
    """The only libraries that count there; empty means all."""


def find_roots(
    prefixes: Sequence[Path] = (),
    env: Mapping[str, str] | None = None,
    system: Sequence[Path] = SYSTEM_FOLDERS,
) -> list[Root]:
    """Include folders that hold CUDA headers, the preferred first, each once.

    Args:
        prefixes: `sys.prefix` of interpreters whose wheels count (the target interpreter's first), or folders
            of packages.
        env: environment to read; None is this process's own.
        system: include folders that the system's package manager fills.
    """
    roots: dict[Path, Root] = {}
    besides = (Root(folder, "system", libraries=_BESIDE_TOOLKIT) for folder in system)
    for root in (*_candidates(prefixes, os.environ if env is None else env), *besides):
        # A folder that others may not look into is none.
        with contextlib.suppress(OSError):
            if root.folder.is_dir() and any(True for _ in _marked(root.folder)):
                roots.setdefault(root.folder.resolve(), root)
    return list(roots.values())


def find_headers(roots: Iterable[Root]) -> list[Header]:
    """The headers worth indexing below `roots`, with library and version; unreadable folders have none.

    One that an earlier folder has of the same version is passed over: a toolkit and torch's own wheels bring
    the same.
    """
    headers: dict[tuple[object, ...], Header] = {}
    for root in roots:
        versions = {**_wheel_versions(root.packages), **_versions(root.folder)}
        for relative in _files(root.folder):
            library, path = library_of(relative), root.folder / relative
            if library is None or (root.libraries and library not in root.libraries):
                continue
            if 0 <= _size(path) <= _LARGEST_BYTES:
                version = versions.get(library)
                # Of an unknown version nobody knows whether it is the same.
                # CUDA 13 moved CUB and Thrust below cccl/: the same header of one version is one entry.
                key = (library, relative.removeprefix("cccl/"), version or path)
                headers.setdefault(key, Header(path, relative, library, version, root.source))
    return list(headers.values())


def _size(path: Path) -> int:
    """Bytes of a file; -1 for a link to nowhere, a pipe, or what nobody may look at."""
    try:
        return path.stat().st_size if path.is_file() else -1
    except OSError:
        return -1


def library_of(relative: str) -> str | None:
    """The library that a path below an include folder belongs to; None is not indexed."""
    if _SKIPPED.search(relative):
        return None
    return next((name for pattern, name in _LIBRARIES if pattern.fullmatch(relative)), None)


def _candidates(prefixes: Sequence[Path], env: Mapping[str, str]) -> Iterator[Root]:
    for name in ("STITCH_CUBLAS", "STITCH_CUTLASS"):
        if env.get(name):
            yield Root(Path(env[name]) / "include", name)
    yield from _toolkits(env)
    for prefix in dict.fromkeys([*prefixes, Path(sys.prefix)]):
        for packages in _package_folders(prefix):
            yield from _wheels(packages)
    # An environment of conda keeps its headers itself, and need not be the activated one.
    conda = [prefix for prefix in prefixes if (prefix / "conda-meta").is_dir()]
    if env.get("CONDA_PREFIX"):
        conda.append(Path(env["CONDA_PREFIX"]))
    for prefix in conda:
        folders = (prefix / "include", *sorted(prefix.glob("targets/*/include")))
        yield from (Root(folder, "conda") for folder in folders)


def _package_folders(prefix: Path) -> list[Path]:
    """Where an interpreter keeps its packages; a folder of packages is one itself."""
    if prefix.name in _PACKAGE_FOLDERS:
        return [prefix]
    return [folder for pattern in _PACKAGES for folder in sorted(prefix.glob(pattern))]


def _toolkits(env: Mapping[str, str]) -> Iterator[Root]:
    from stitch_tools.compile.toolchain import cuda_root, find_nvcc
    from stitch_tools.errors import EnvironmentMissingError

    named = env.get("CUDA_HOME") or env.get("CUDA_PATH")
    if named:
        yield Root(Path(named) / "include", "CUDA toolkit")
        return
    with contextlib.suppress(EnvironmentMissingError):
        yield Root(cuda_root(find_nvcc(env)) / "include", "CUDA toolkit")


def _wheels(packages: Path) -> Iterator[Root]:
    for folder in sorted(packages.glob("nvidia/*/include"), reverse=True):
        yield Root(folder, f"wheel nvidia/{folder.parent.name}", packages)
    yield Root(packages / "include", "wheel", packages)
    yield Root(packages / "cutlass_library" / "source" / "include", "wheel nvidia-cutlass", packages)
    yield Root(packages / "cuda" / "cccl" / "headers" / "include", "wheel cuda-cccl", packages)


_MARKS = (
    "cuda.h",
    "cuda_runtime.h",
    "cublasLt.h",
    "cublas_v2.h",
    "cudnn.h",
    "cudnn_frontend.h",
    "nccl.h",
    "cusparseLt.h",
    "nvrtc.h",
    "cufft.h",
    "curand.h",
    "cusolverDn.h",
    "cusparse.h",
    "cutlass/cutlass.h",
    "cuda_fp16.h",
    "cub/cub.cuh",
    "cccl/cub/cub.cuh",
    "nvJitLink.h",
    "cupti.h",
)


def _marked(folder: Path) -> Iterator[Path]:
    return (folder / name for name in _MARKS if (folder / name).is_file())


def _files(folder: Path) -> Iterator[str]:
    """Headers below `folder`, as an #include names them, in a fixed order, without following links."""
    begin = len(str(folder)) + 1
    for current, folders, names in os.walk(folder):
        folders.sort()
        here = f"{current[begin:].replace(os.sep, '/')}/" if len(current) > begin else ""
        yield from (f"{here}{name}" for name in sorted(names) if name.endswith((".h", ".hpp", ".cuh")))


def _versions(folder: Path) -> dict[str, str]:
    """Library to version, as far as headers say."""
    versions: dict[str, str] = {}
    for library, (name, prefix) in _VERSION_MACROS.items():
        path = next((p for p in (folder / name, folder / "cccl" / name) if p.is_file()), None)
        version = read_version(_text(path), prefix) if path else None
        if version:
            versions[library] = version
    toolkit = versions.get("driver") or _toolkit_version(folder)
    if toolkit:
        for library in _TOOLKIT:
            versions.setdefault(library, toolkit)
    return versions


def _wheel_versions(packages: Path | None) -> dict[str, str]:
    """Library to version of the packages that name it; of CUDA 12 and 13 side by side the newer one."""
    versions: dict[str, str] = {}
    for entry in sorted(packages.glob("nvidia_*.dist-info")) if packages else []:
        name, _, version = entry.name.removesuffix(".dist-info").rpartition("-")
        library = re.sub(r"^nvidia_(?:cuda_)?|_cu\d+$", "", name)
        versions[library] = version
    if "cutlass" in versions:
        versions["cute"] = versions["cutlass"]
    return versions


def _toolkit_version(folder: Path) -> str | None:
    return read_version(_text(folder / "cuda_runtime_api.h"), "CUDART_VERSION")


def _text(path: Path) -> str:
    """The text of a file; "" where there is none to read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    except OSError:
        return ""


def read_version(text: str, prefix: str) -> str | None:
    """The version that a header defines: MAJOR, MINOR (and PATCH) macros, or one number like 13000."""
    parts: list[str] = []
    for pattern in ("MAJOR", "MINOR", "PATCH|PATCHLEVEL"):
        match = re.search(rf"#\s*define\s+{prefix}(?:_VERSION)?_(?:{pattern})(?:_VERSION)?\s+(\d+)", text)
        if match is None:
            break
        parts.append(match[1])
    if len(parts) >= 2:
        return ".".join(parts)
    single = re.search(rf"#\s*define\s+{prefix}\s+(\d+)", text)
    if single is None:
        return None
    number = int(single[1])
    if prefix.startswith("CUD"):
        return f"{number // 1000}.{number % 1000 // 10}"
    return f"{number // 100000}.{number // 100 % 1000}.{number % 100}"
