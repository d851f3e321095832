"""Many functions of tensors as one CUDA program: the host compiler takes seconds, whatever it compiles."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from torch import nn

from stitch_planner.stitcher.emit.cuda.emit_cuda import emit_cuda
from stitch_planner.stitcher.emit.cuda.testing import OnGpu, OnHost, lowered

Function = Callable[..., torch.Tensor | tuple[torch.Tensor, ...]]
Table = Mapping[str, tuple[Function, list[torch.Tensor]]]

needs_gpu = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/dev/nvidiactl").exists(), reason="no NVIDIA GPU here: not measured"),
]
"""Marks of a test that runs a program on a GPU."""
MACHINES = [pytest.param(OnHost, id="host"), pytest.param(OnGpu, id="gpu", marks=needs_gpu)]


class Together(nn.Module):
    """Every function of a table on its own inputs, and a module's weights for those that want them."""

    def __init__(self, table: Table, module: nn.Module | None = None) -> None:
        super().__init__()
        self.table, self.module = table, module

    @property
    def inputs(self) -> list[torch.Tensor]:
        """The inputs of all of them."""
        return [x for _, inputs in self.table.values() for x in inputs]

    def each(self, tensors: tuple[torch.Tensor, ...]) -> dict[str, list[torch.Tensor]]:
        """The outputs of each function."""
        outputs: dict[str, list[torch.Tensor]] = {}
        at = 0
        for name, (function, inputs) in self.table.items():
            own = tensors[at : at + len(inputs)]
            at += len(inputs)
            made = function(self.module, *own) if self.module is not None else function(*own)
            outputs[name] = list(made) if isinstance(made, tuple) else [made]
        return outputs

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(output for outputs in self.each(tensors).values() for output in outputs)


def run_together(
    table: Table, machine: type[OnHost | OnGpu], folder: Path, module: nn.Module | None = None
) -> tuple[dict[str, list[torch.Tensor]], str]:
    """What the program of a whole table gives for each of its functions, and the program."""
    together = Together(table, module)
    text = emit_cuda(lowered(together, together.inputs))
    weights = {name: value.detach() for name, value in together.state_dict().items()}
    outputs = machine(text, folder).run(together.inputs, weights, calls=2)
    expected = together.each(tuple(together.inputs))
    parts: dict[str, list[torch.Tensor]] = {}
    for name, own in expected.items():
        parts[name], outputs = outputs[: len(own)], outputs[len(own) :]
    return parts, text


def assert_as_torch(
    table: Table, machine: type[OnHost | OnGpu], folder: Path, module: nn.Module | None = None
) -> str:
    """The program's text, after its results were found to be torch's."""
    outputs, text = run_together(table, machine, folder, module)
    together = Together(table, module)
    for name, expected in together.each(tuple(together.inputs)).items():
        for ours, theirs in zip(outputs[name], expected, strict=True):
            torch.testing.assert_close(
                ours,
                theirs.detach(),
                rtol=2e-5,
                atol=5e-6,
                equal_nan=True,
                msg=lambda text, name=name: f"{name}: {text}",
            )
    return text
