"""For tests: compiles a device header with a few lines around it, or the program of one graph."""

import ctypes
import subprocess
from importlib.resources import files
from pathlib import Path

from stitch_planner.stitcher.emit.cpu.emit_cpp import MAIN, emit_cpu
from stitch_planner.stitcher.graph.partition import Step, partition
from stitch_planner.stitcher.graph.simplify import simplify
from stitch_planner.stitcher.kernel_program import lower_steps
from stitch_planner.stitcher.lower.graph_index import GraphIndex
from stitch_tools.compile.cpp import cpp_command
from stitch_tools.compile.headers import find_onednn, native_include
from stitch_tools.compile.toolchain import find_cpp_compiler
from stitch_tools.models.graph import Graph

EXPORT = 'extern "C" __attribute__((visibility("default")))'
"""Marks a function of a test's C++ that Python calls."""


def header_folders() -> list[Path]:
    """Include folders of a stitched program: the templates', the ABI's, oneDNN's where it is installed."""
    own = Path(str(files("stitch_planner") / "stitcher" / "native" / "include"))
    onednn = find_onednn()
    return [own, native_include(), *([onednn.include] if onednn.include else [])]


def build_header_test(source: str, folder: Path, *, flags: tuple[str, ...] = ()) -> ctypes.CDLL:
    """The library made of `source` with the flags of a program; oneDNN is loaded first, as a worker does.

    Args:
        source: C++ that includes a header; `EXPORT` marks what Python calls.
        folder: where source and library are written.
        flags: more of the compiler's, such as another processor.

    Raises:
        AssertionError: the compiler refused it, or warned.
    """
    (folder / "header_test.cpp").write_text(source.replace("EXPORT", EXPORT), encoding="utf-8")
    shared = find_onednn().shared_object
    if shared is not None:
        ctypes.CDLL(str(shared), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(_compile(folder, "header_test.cpp", flags)))


def build_stitched(graph: Graph, folder: Path) -> tuple[Path, list[Step]]:
    """The library of the program for `graph`, built in `folder`, and the steps that it was planned in.

    Raises:
        AssertionError: the compiler refused it, or warned.
        UnloweredError: an operation has no template.
    """
    simple = simplify(graph)
    steps = partition(GraphIndex(simple))
    for path, content in emit_cpu(lower_steps("test", "cpu", simple, steps), "test", []).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return _compile(folder, MAIN), steps


def _compile(folder: Path, main: str, flags: tuple[str, ...] = ()) -> Path:
    output = folder / f"{Path(main).stem}.so"
    command = (*cpp_command(find_cpp_compiler(), main, output.name, header_folders()), *flags)
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr
    return output
