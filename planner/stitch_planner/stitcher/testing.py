"""Compiles device headers alone, for tests: a few lines of C++ around a header, called through ctypes."""

import ctypes
import subprocess
from importlib.resources import files
from pathlib import Path

from stitch_tools.compile.cpp import cpp_command
from stitch_tools.compile.headers import find_onednn, native_include
from stitch_tools.compile.toolchain import find_cpp_compiler

EXPORT = 'extern "C" __attribute__((visibility("default")))'
"""Marks a function of a test's C++ that Python calls."""


def header_folders() -> list[Path]:
    """Include folders of a stitched program: the templates', the ABI's, oneDNN's where it is installed."""
    own = Path(str(files("stitch_planner") / "stitcher" / "native" / "include"))
    onednn = find_onednn()
    return [own, native_include(), *([onednn.include] if onednn.include else [])]


def build_header_test(source: str, folder: Path) -> ctypes.CDLL:
    """The library made of `source` with the flags of a program; oneDNN is loaded first, as a worker does.

    Args:
        source: C++ that includes a header; `EXPORT` marks what Python calls.
        folder: where source and library are written.

    Raises:
        AssertionError: the compiler refused it, or warned.
    """
    (folder / "header_test.cpp").write_text(source.replace("EXPORT", EXPORT), encoding="utf-8")
    command = cpp_command(find_cpp_compiler(), "header_test.cpp", "header_test.so", header_folders())
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr
    shared = find_onednn().shared_object
    if shared is not None:
        ctypes.CDLL(str(shared), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(folder / "header_test.so"))
