"""Libraries that a program may use: where their headers and shared objects lie, or how to get them.

Programs load these libraries by soname and never link them, so a header folder is all that a build needs.
"""

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files as package_files
from pathlib import Path

from stitch_tools.compile.toolchain import cuda_root, find_nvcc
from stitch_tools.errors import EnvironmentMissingError

ONEDNN_SONAME = "libdnnl.so.3"
INSTALL_ONEDNN = (
    "`pip install onednn-cpu-gomp==2023.2.0 onednn-devel-cpu-gomp==2023.2.0` into the target interpreter "
    "(the extra `stitch-mcp[torch]` brings both), or set STITCH_ONEDNN to a folder with include/ and lib/"
)
INSTALL_CUBLAS = (
    "install the toolkit's cuBLAS development files, or `pip install nvidia-cublas`; "
    "or set STITCH_CUBLAS to a folder with include/cublasLt.h"
)


@dataclass(frozen=True)
class Library:
    """A library that was looked for."""

    name: str
    include: Path | None
    """Folder with its headers, None when they were not found."""
    shared_object: Path | None
    """The library to preload; None when there is none or torch brings it."""
    hint: str
    """How to get it."""

    @property
    def found(self) -> bool:
        """Whether a program that includes its headers can be built."""
        return self.include is not None

    def require(self) -> Path:
        """The header folder.

        Raises:
            EnvironmentMissingError: the library is not there.
        """
        if self.include is None:
            raise EnvironmentMissingError(f"the headers of {self.name} were not found", hint=self.hint)
        return self.include


def native_include() -> Path:
    """The package's own folder of C headers, in which `stitch/abi.h` lies."""
    return Path(str(package_files("stitch_tools") / "native" / "include"))


def find_onednn(prefixes: Sequence[Path] = ()) -> Library:
    """oneDNN: STITCH_ONEDNN, else the given prefixes (target interpreters), else our own interpreter's.

    `prefixes`: `sys.prefix` of interpreters whose wheel may be used, best first.
    """
    for root in _roots(prefixes):
        include = root / "include"
        if not (include / "dnnl.h").is_file():
            continue
        for shared in (root / "lib" / ONEDNN_SONAME, root / "lib64" / ONEDNN_SONAME):
            if shared.is_file():
                return Library("oneDNN", include, shared, INSTALL_ONEDNN)
    return Library("oneDNN", None, None, INSTALL_ONEDNN)


def find_cublas(prefixes: Sequence[Path] = ()) -> Library:
    """The headers of cuBLASLt: STITCH_CUBLAS, else the toolkit's, else those of an nvidia-cublas wheel.

    The library itself comes with torch and is loaded by soname, so only the headers are looked for.
    """
    for include in _cublas_includes(prefixes):
        if (include / "cublasLt.h").is_file():
            return Library("cuBLASLt", include, None, INSTALL_CUBLAS)
    return Library("cuBLASLt", None, None, INSTALL_CUBLAS)


def _roots(prefixes: Sequence[Path]) -> Iterator[Path]:
    if chosen := os.environ.get("STITCH_ONEDNN"):
        yield Path(chosen)
    yield from prefixes
    yield Path(sys.prefix)
    yield Path.home() / ".local"


def _cublas_includes(prefixes: Sequence[Path]) -> Iterator[Path]:
    if chosen := os.environ.get("STITCH_CUBLAS"):
        yield Path(chosen) / "include"
    with contextlib.suppress(EnvironmentMissingError):
        yield cuda_root(find_nvcc()) / "include"
    site_folders = [path for prefix in prefixes for path in prefix.glob("lib/python3.*/site-packages")]
    for folder in (*site_folders, *map(Path, sys.path)):
        yield from sorted(folder.glob("nvidia/cu[0-9]*/include"), reverse=True)
        yield folder / "nvidia" / "cublas" / "include"
