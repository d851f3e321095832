"""Stitches a module in this process: capture, plan, program, build, one forward."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from stitch_planner.plan import Plan
from stitch_planner.planning import make_plan
from stitch_planner.stitcher import Stitched, stitch
from stitch_tools.compile import compile_program
from stitch_tools.graph import build_graph
from stitch_tools.models.graph import Graph
from stitch_tools.models.program import Program
from stitch_tools.models.task import Contract, ReferenceFacts, Task
from stitch_tools.storage.store import Store
from stitch_tools.worker.candidate.python_program import PythonProgram
from stitch_tools.worker.capture.graph_capture import capture
from stitch_tools.worker.runtime.native import NativeProgram, make_workspace

NO_FACTS = ReferenceFacts(inputs=(), outputs=(), output_structure="", parameters=())


@dataclass(frozen=True)
class Made:
    """A stitched module."""

    graph: Graph
    plan: Plan
    stitched: Stitched

    @property
    def source(self) -> str:
        """The main file."""
        return self.stitched.files[self.stitched.main].decode("utf-8")

    @property
    def kinds(self) -> list[str]:
        """One word for each step: the template, or the kind of fused kernel."""
        return [step.family if step.kind == "library" else step.kind for step in self.plan.steps]


def made(module: nn.Module, inputs: Sequence[Any]) -> Made:
    """Plan and source of a module's forward."""
    contract = Contract(mode="train" if module.training else "eval")
    graph = build_graph(capture(module, list(inputs)), contract, None)
    task = Task(name="case", files=(), main="case.py", contract=contract)
    plan = make_plan(graph, NO_FACTS, task, None)
    return Made(graph, plan, stitch(task, NO_FACTS, graph, plan))


class Built:
    """A built native program with a module's weights."""

    def __init__(self, stitched: Stitched, module: nn.Module, folder: Path, *, threads: int = 2) -> None:
        store = Store(folder / "store")
        program = Program(
            format=stitched.format, target="cpu", files=store.put_files(stitched.files), main=stitched.main
        )
        build = compile_program(program, store)
        assert build.ok, [item.message for item in build.diagnostics]
        assert build.artifact is not None
        self.native = NativeProgram(build.artifact, build.libraries)
        state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        self.native.init([(name, value.detach()) for name, value in state.items()], threads=threads)

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Outputs of one forward, into poisoned memory."""
        planned = self.native.plan(inputs)
        outputs = [torch.empty(shape, dtype=dtype) for shape, dtype in planned.outputs]
        for output in outputs:
            output.view(torch.uint8).fill_(0xFF) if output.numel() and output.dim() else output.fill_(7)
        workspace = make_workspace(planned.workspace_bytes)
        self.native.call(self.native.prepare(inputs, outputs, workspace=workspace))
        return outputs


def leaves(value: Any) -> list[torch.Tensor]:
    """Tensors of an output tree, in order."""
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def assert_equal_to_torch(
    module: nn.Module, inputs: Sequence[Any], folder: Path, *, factor: float = 20.0
) -> Made:
    """Stitches, builds and runs the module; the result must be as close to float64 as torch's own is.

    Returns:
        What was made, so that a test can look at the plan.
    """
    result = made(module, inputs)
    assert result.stitched.format == "native", result.plan.notes
    actual = Built(result.stitched, module, folder)(list(inputs))
    with torch.no_grad():
        expected = leaves(module(*inputs))
        exact = leaves(module.double()(*(x.double() if x.is_floating_point() else x for x in inputs)))
        module.float()
    assert len(actual) == len(expected)
    for ours, eager, true in zip(actual, expected, exact, strict=True):
        assert ours.shape == eager.shape
        assert ours.dtype == eager.dtype
        if not eager.is_floating_point():
            assert torch.equal(ours, eager)
            continue
        assert torch.equal(torch.isfinite(ours), torch.isfinite(eager))
        finite = torch.isfinite(true)
        scale = float(true[finite].pow(2).mean().sqrt()) if finite.any() else 1.0
        own = float((eager.double() - true)[finite].abs().max()) if finite.any() else 0.0
        error = float((ours.double() - true)[finite].abs().max()) if finite.any() else 0.0
        assert error <= max(factor * own, 4e-6 * max(scale, 1e-30)), (error, own, scale)
    return result


@dataclass(frozen=True)
class Shared:
    """A reference and the program that PyTorch has a share in, both loaded into this process."""

    plan: Plan
    module: nn.Module
    """The reference's model; its constructor drew after seed 0."""
    inputs: list[torch.Tensor]
    program: PythonProgram
    """Initialized after seed 0, too."""

    @property
    def computed(self) -> nn.Module:
        """The program's model."""
        assert self.program.module is not None
        return self.program.module


def shared(text: str, structure: Sequence[str], folder: Path) -> Shared:
    """A KernelBench-style reference and its stitched program, which must be no native one.

    Args:
        text: the reference.
        structure: words of its outputs' structure.
        folder: where both are written.
    """
    folder.joinpath("reference.py").write_text(text, encoding="utf-8")
    names: dict[str, Any] = {}
    exec(compile(text, "reference.py", "exec"), names)
    torch.manual_seed(0)
    module, inputs = names["Model"](), names["get_inputs"]()
    graph = build_graph(capture(module, [x.clone() for x in inputs]), Contract(), None)
    task = Task(name="case", files=(), main="reference.py")
    facts = NO_FACTS.model_copy(update={"output_structure": json.dumps(list(structure))})
    plan = make_plan(graph, facts, task, None)
    stitched = stitch(task, facts, graph, plan, {"reference.py": text.encode("utf-8")})
    assert stitched.format == "kernelbench"
    for path, data in stitched.files.items():
        (folder / "program" / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / "program" / path).write_bytes(data)
    program = PythonProgram(str(folder / "program"), stitched.main)
    torch.manual_seed(0)
    program.init(b"", [])
    return Shared(plan, module, inputs, program)
