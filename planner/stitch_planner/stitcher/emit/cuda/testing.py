"""Runs written CUDA programs, for tests: on a GPU, or on CPU tensors where the host compiler compiled them.

torch is imported only by whoever runs a program: this module belongs to tests.
"""

import atexit
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from stitch_planner.stitcher.emit.cpu.emit_cpp import header_closure
from stitch_planner.stitcher.emit.cuda.emit_cuda import MAIN
from stitch_planner.stitcher.graph.partition import partition
from stitch_planner.stitcher.graph.simplify import simplify
from stitch_planner.stitcher.kernel_program import lower_steps
from stitch_planner.stitcher.lower.cuda.templates import cuda_templates
from stitch_planner.stitcher.lower.graph_index import GraphIndex
from stitch_planner.stitcher.lower.kernel_ir import KernelProgram
from stitch_tools.compile.build import compile_program
from stitch_tools.compile.cpp import cpp_command
from stitch_tools.compile.headers import native_include
from stitch_tools.compile.toolchain import find_cpp_compiler
from stitch_tools.models.program import Build, Program
from stitch_tools.models.task import Contract
from stitch_tools.storage.store import Store

if TYPE_CHECKING:
    import torch
    from torch import nn


def cuda_headers() -> Path:
    """The package's folder of device headers."""
    return Path(str(files("stitch_planner") / "stitcher" / "native" / "include"))


def lowered(
    module: "nn.Module", inputs: "Sequence[torch.Tensor]", contract: Contract | None = None
) -> KernelProgram:
    """The kernels of a module's forward, captured in this process.

    Raises:
        UnloweredError: an operation has no template for GPUs.
    """
    from stitch_tools.graph.build import build_graph
    from stitch_tools.worker.capture.graph_capture import capture

    contract = contract or Contract(mode="train" if module.training else "eval")
    graph = simplify(build_graph(capture(module, inputs), contract, None))
    steps = partition(GraphIndex(graph), cuda_templates(contract))
    return lower_steps(type(module).__name__.lower(), "cuda:sm_90", graph, steps)


def build_for_gpus(text: str, folder: Path, archs: Sequence[str]) -> Build:
    """The build of a written program with every header that it can reach beside it.

    Raises:
        EnvironmentMissingError: there is no nvcc here.
    """
    headers = re.findall(r'#include "(stitch/[^"]+)"', text)
    contents = {MAIN: text.encode("utf-8"), **header_closure(headers)}
    store = Store(folder / "store")
    entries = store.put_files(contents)
    program = Program(format="native", target="cuda:sm_90", files=entries, main=MAIN)
    return compile_program(program, store, cache_dir=folder / "cache", archs=archs)


# -Og keeps tests quick; -Wno-unknown-pragmas: host compilers know no `#pragma unroll`.
_HOST_FLAGS = ("-Og", "-Wno-unknown-pragmas", "-Werror")
_IN_EVERY_PROGRAM = ("pointwise", "rows", "columns", "gemm", "program")


def _compile_on_host(main: str, output: str, folder: Path, *options: str) -> None:
    command = cpp_command(find_cpp_compiler(), main, output, [cuda_headers(), native_include()])
    done = subprocess.run(
        [*command, *_HOST_FLAGS, *options], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@lru_cache(maxsize=1)
def _parsed_headers() -> Path:
    """What every program includes, parsed once a process: a third of the time that a small one takes."""
    folder = Path(tempfile.mkdtemp(prefix="stitch-headers-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    header = folder / "parsed.hpp"
    lines = (f'#include "stitch/cuda/{name}.cuh"\n' for name in _IN_EVERY_PROGRAM)
    header.write_text("#define STITCH_ON_HOST 1\n" + "".join(lines), encoding="utf-8")
    _compile_on_host(header.name, f"{header.name}.gch", folder, "-c")
    return header


class OnHost:
    """A written program on CPU tensors."""

    def __init__(self, text: str, folder: Path) -> None:
        source = folder / "main.cpp"
        source.write_text(f"#define STITCH_ON_HOST 1\n{text}", encoding="utf-8")
        _compile_on_host(source.name, "program.so", folder, "-include", str(_parsed_headers()))
        self.path = str(folder / "program.so")

    def run(
        self,
        inputs: "Sequence[torch.Tensor]",
        parameters: "Mapping[str, torch.Tensor] | None" = None,
        *,
        calls: int = 1,
    ) -> "list[torch.Tensor]":
        """Outputs of the last of some forwards of one handle, poisoned before each."""
        return _outputs(self.path, inputs, parameters or {}, calls)

    def refusal(self, inputs: "Sequence[torch.Tensor]") -> str:
        """The sentence with which the program refuses such inputs.

        Raises:
            AssertionError: it takes them.
        """
        from stitch_tools.worker.runtime.native import NativeProgram, ProgramError

        program = NativeProgram(self.path)
        program.init([])
        try:
            program.plan(inputs)
        except ProgramError as error:
            return error.message
        raise AssertionError("the program accepts these inputs")


class OnGpu:
    """A written program on tensors of this machine's first GPU."""

    def __init__(
        self, text: str, folder: Path, parameters: "Mapping[str, torch.Tensor] | None" = None
    ) -> None:
        import torch

        from stitch_tools.worker.runtime.native import NativeProgram

        major, minor = torch.cuda.get_device_capability()
        build = build_for_gpus(text, folder, [f"sm_{major}{minor}"])
        assert build.ok, [row.message for row in build.diagnostics]
        assert build.artifact is not None
        self.native = NativeProgram(build.artifact, build.libraries)
        if parameters is not None:
            self.load(parameters)

    def load(self, parameters: "Mapping[str, torch.Tensor]") -> None:
        """Initialises the program with these weights."""
        import torch

        stream = torch.cuda.current_stream().cuda_stream
        weights = [(name, value.cuda()) for name, value in parameters.items()]
        self.native.init(weights, device="cuda", stream=stream)

    def prepared(self, inputs: "Sequence[torch.Tensor]") -> "tuple[Callable[[], None], list[torch.Tensor]]":
        """A forward on the current stream, and the outputs that it writes, poisoned until then."""
        import torch

        from stitch_tools.worker.runtime.native import make_workspace

        planned = self.native.plan(inputs)
        outputs = [torch.full(shape, 77, dtype=dtype, device="cuda") for shape, dtype in planned.outputs]
        workspace = make_workspace(planned.workspace_bytes, "cuda")
        stream = torch.cuda.current_stream().cuda_stream
        call = self.native.prepare(inputs, outputs, workspace=workspace, stream=stream)
        return lambda: self.native.call(call), outputs

    def run(
        self,
        inputs: "Sequence[torch.Tensor]",
        parameters: "Mapping[str, torch.Tensor] | None" = None,
        *,
        calls: int = 1,
    ) -> "list[torch.Tensor]":
        """Outputs of the last of some forwards, on the device of the inputs.

        Without `parameters` the program keeps those that it has.
        """
        import torch

        if parameters is not None or not self.native.handle:
            self.load(parameters or {})
        moved = [value.cuda() for value in inputs]
        outputs: list[torch.Tensor] = []
        for _ in range(calls):
            forward, outputs = self.prepared(moved)
            forward()
        torch.cuda.synchronize()
        return [output.to(inputs[0].device) for output in outputs]

    def captured(self, inputs: "Sequence[torch.Tensor]") -> "tuple[Callable[[], None], list[torch.Tensor]]":
        """The same forward as the replay of a CUDA graph."""
        import torch

        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            forward, outputs = self.prepared(inputs)
            forward()
        return graph.replay, outputs


def _outputs(
    path: str,
    inputs: "Sequence[torch.Tensor]",
    parameters: "Mapping[str, torch.Tensor]",
    calls: int,
) -> "list[torch.Tensor]":
    import torch

    from stitch_tools.worker.runtime.native import NativeProgram, make_workspace

    program = NativeProgram(path)
    program.init(list(parameters.items()))
    planned = program.plan(inputs)
    outputs: list[torch.Tensor] = []
    for _ in range(calls):
        outputs = [torch.full(shape, 77, dtype=dtype) for shape, dtype in planned.outputs]
        workspace = make_workspace(planned.workspace_bytes)
        program.call(program.prepare(inputs, outputs, workspace=workspace))
    program.close()
    return outputs
