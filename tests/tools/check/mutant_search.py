"""Looks for inputs that tell a mutant from its original: python -m tests.tools.check.mutant_search SPEC.

Independent of the judge: both programs run in this process, side by side, on random and structured inputs of
several leading sizes, under several weights, on poisoned memory, called again and again, and are compared
with each other. The last line says `same` or `different`, and why. A crash says the same as `different`.
"""

import importlib.util
import json
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

import torch

from stitch_tools.worker.candidate.native import NativeProgram, ProgramError, make_workspace

DRAWS = 12
_GUARD = 64
_FACTOR, _EPS = 16.0, 2.0**-23


def load_reference(path: Path) -> ModuleType:
    """The reference's module."""
    spec = importlib.util.spec_from_file_location(f"reference_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def weights(source: ModuleType) -> Iterator[list[tuple[str, torch.Tensor]]]:
    """Parameters and buffers: as initialised, of order 1, and large; once where there are none."""
    for scale in (None, 1.0, 30.0):
        model = source.Model(*source.get_init_inputs())
        state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        if scale is not None and not state:
            return
        with torch.no_grad():
            if scale is not None:
                for value in state.values():
                    if value.is_floating_point():
                        value.copy_(torch.randn(value.shape) * scale)
        yield [(name, value.detach()) for name, value in state.items()]


def inputs(source: ModuleType) -> Iterator[tuple[str, list[torch.Tensor]]]:
    """Random and structured inputs of the task's own size and of other leading sizes."""
    changes = {
        "random": lambda x: x,
        "signed": lambda x: torch.randn_like(x),
        "large": lambda x: x * 40,
        "tiny": lambda x: x * 1e-3,
        "zeros": torch.zeros_like,
        "constant": lambda x: torch.full_like(x, 1.75),
        "one outlier": _one_outlier,
        "ascending": lambda x: torch.arange(x.numel(), dtype=x.dtype).reshape(x.shape) / x.numel(),
        "descending": lambda x: -torch.arange(x.numel(), dtype=x.dtype).reshape(x.shape) / x.numel(),
        "ties": lambda x: x.round(),
        "near-constant": lambda x: 1 + torch.randn_like(x) * 2**-9,
        "one-hot rows": lambda x: torch.eye(x.shape[-1], dtype=x.dtype)[
            torch.randint(x.shape[-1], x.shape[:-1])
        ],
    }
    for size in (None, 1, 2, 3, 17):
        for name, change in changes.items():
            for _ in range(DRAWS if name == "random" and size is None else 3):
                yield f"{name} ({size or 'own'})", [_resized(change(x), x, size) for x in source.get_inputs()]
    for first in range(0, source.get_inputs()[0].shape[-1], _rows(source.get_inputs()[0])):
        yield "an outlier in every column", [_outliers_from(x, first) for x in source.get_inputs()]


def _one_outlier(x: torch.Tensor) -> torch.Tensor:
    changed = x.contiguous().clone()
    changed.view(-1)[int(torch.randint(x.numel(), ()))] = 100.0
    return changed


def _rows(x: torch.Tensor) -> int:
    return max(1, x.numel() // x.shape[-1])


def _outliers_from(x: torch.Tensor, first: int) -> torch.Tensor:
    """An outlier in each row: in the column `first`, in the next one, and so on."""
    places = (torch.arange(_rows(x)) + first) % x.shape[-1]
    return _resized(x.contiguous().scatter(-1, places.reshape(*x.shape[:-1], 1), 1000.0), x, None)


def _resized(x: torch.Tensor, like: torch.Tensor, size: int | None) -> torch.Tensor:
    """With another leading size, and the strides of the task's own."""
    if size is not None:
        x = x[torch.arange(size) % len(x)]
    order = sorted(range(x.dim()), key=lambda dim: -like.stride(dim))
    back = [order.index(dim) for dim in range(x.dim())]
    return x.permute(order).contiguous().permute(back)


class Side:
    """One of the two programs."""

    def __init__(self, path: str, libraries: Sequence[str]) -> None:
        self.program = NativeProgram(path, libraries)

    def run(self, given: Sequence[torch.Tensor], poison: int) -> tuple[list[torch.Tensor], bool] | None:
        """Outputs and inputs afterwards, and whether memory beside the outputs is intact; None: refused."""
        kept = [x.clone() for x in given]
        try:
            planned = self.program.plan(kept)
        except ProgramError:
            return None
        outputs, memories = [], []
        for shape, dtype in planned.outputs:
            count = math.prod(shape)
            memory = torch.empty(count + 2 * _GUARD, dtype=dtype)
            memory.view(torch.uint8).fill_(poison)
            memories.append(memory)
            outputs.append(memory[_GUARD : _GUARD + count].view(shape))
        workspace = make_workspace(planned.workspace_bytes)
        if workspace is not None:
            workspace.view(torch.uint8).fill_(poison)
        self.program.call(self.program.prepare(kept, outputs, workspace=workspace))
        edges = [edge.view(torch.uint8) for row in memories for edge in (row[:_GUARD], row[-_GUARD:])]
        return [*outputs, *kept], all(bool((edge == poison).all()) for edge in edges)


def compare(source: ModuleType, original: Side, mutant: Side) -> str:
    """`same` or `different`, and why."""
    worst, bits = 0.0, True
    for number, state in enumerate(weights(source)):
        for side in (original, mutant):
            side.program.init(state, threads=2)
        for count, (name, given) in enumerate(inputs(source)):
            poison = (0xFF, 0x3E)[count % 2]
            a, b = original.run(given, poison), mutant.run(given, poison)
            if (a is None) != (b is None):
                return f"different: refuses {name}"
            if a is None or b is None:
                continue
            if not b[1]:
                return f"different: writes beside its outputs on {name}"
            gap = max(_distance(x, y) for x, y in zip(a[0], b[0], strict=True))
            bits &= gap == 0
            worst = max(worst, gap / _allowed(given))
            if worst > 1:
                return f"different: {worst:.3g} times what rounding explains on {name}, weights {number}"
    return "same: bit by bit" if bits else f"same: within {worst:.2g} of what rounding explains"


def _allowed(given: Sequence[torch.Tensor]) -> float:
    longest = max((x[0].numel() for x in given if x.dim()), default=1)
    return _FACTOR * _EPS * math.sqrt(longest)


def _distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """Largest difference by the size of the element or the rms of all, whichever is larger."""
    a, b = a.reshape(-1), b.reshape(-1)
    if torch.equal(a.view(torch.uint8), b.view(torch.uint8)):
        return 0.0
    if not a.is_floating_point():
        return math.inf
    wide, other = a.double(), b.double()
    odd = ~wide.isfinite() | ~other.isfinite()
    if not torch.equal(wide[odd].nan_to_num(7.0), other[odd].nan_to_num(7.0)):
        return math.inf
    wide, other = wide[~odd], other[~odd]
    if not wide.numel():
        return 0.0
    scale = wide.abs().clamp_min(max(float(wide.square().mean().sqrt()), 1e-30))
    return float(((wide - other).abs() / scale).max())


def main() -> int:
    torch.manual_seed(20261121)
    spec = json.loads(sys.argv[1])
    sides = [Side(spec[name], spec["libraries"]) for name in ("original", "mutant")]
    print(compare(load_reference(Path(spec["reference"])), *sides))
    return 0


if __name__ == "__main__":
    sys.exit(main())
