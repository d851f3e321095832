"""Looks for inputs that tell a mutant from its original: python -m tests.tools.judge.mutant_search SPEC.

Independent of the judge: both programs run in this process, side by side, on random and structured inputs of
several leading sizes, under several weights, then on inputs that climb towards where the two differ most. All
memory is poisoned, around the inputs too; the same instance is called again and again. The last line says
`same` or `different`, and why. A crash says the same as `different`. What rounding explains is that of a sum,
and more where the inputs' own last bits move the original further.
"""

import importlib.util
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch

from stitch_tools.worker.runtime.native import NativeProgram, ProgramError, make_workspace
from tests.tools.judge.mutant_inputs import Tensors, inputs, perturbed, resized, weights

CLIMB = 200
"""Steps of a climb, one under each set of weights."""
_GUARD = 64
_POISONS = (0xFF, 0x3E, 0x7E)
"""Bytes: NaN, a number like others, a large one."""
_FACTOR, _EPS = 16.0, 2.0**-23
_NUDGES = 8
"""Times that last bits of the inputs are changed, to see how far that moves the original."""
_NO_DIGIT = 0.5
"""A result that those move as far has no digit that counts: such inputs tell nothing apart."""


def load_reference(path: Path) -> ModuleType:
    """The reference's module."""
    spec = importlib.util.spec_from_file_location(f"reference_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class MutantSide:
    """One of the two programs."""

    def __init__(self, path: str, libraries: Sequence[str]) -> None:
        self.program = NativeProgram(path, libraries)

    def run(self, given: Sequence[torch.Tensor], poison: int) -> tuple[Tensors, bool] | None:
        """Outputs and inputs afterwards, and whether the memory beside them is intact; None: refused."""
        kept = [_surrounded(x.shape, x.stride(), x.dtype, poison) for x in given]
        for (copy, _), x in zip(kept, given, strict=True):
            copy.copy_(x)
        left = [copy for copy, _ in kept]
        try:
            planned = self.program.plan(left)
        except ProgramError:
            return None
        outputs = [_surrounded(shape, None, dtype, poison) for shape, dtype in planned.outputs]
        workspace = make_workspace(planned.workspace_bytes)
        if workspace is not None:
            workspace.view(torch.uint8).fill_(poison)
        results = [output for output, _ in outputs]
        self.program.call(self.program.prepare(left, results, workspace=workspace))
        edges = [edge for _, memory in (*kept, *outputs) for edge in (memory[:_GUARD], memory[-_GUARD:])]
        intact = all(bool((edge.view(torch.uint8) == poison).all()) for edge in edges)
        return [*results, *left], intact


def _surrounded(
    shape: Sequence[int], strides: Sequence[int] | None, dtype: torch.dtype, poison: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """A poisoned tensor, and its memory with as much beside it: who reads there has other results."""
    strides = strides or torch.empty(tuple(shape), device="meta").stride()
    span = 1 + sum((size - 1) * step for size, step in zip(shape, strides, strict=True))
    memory = torch.empty(span + 2 * _GUARD, dtype=dtype)
    memory.view(torch.uint8).fill_(poison)
    return memory.as_strided(tuple(shape), tuple(strides), _GUARD), memory


@dataclass
class Search:
    """Both programs, and what was seen of them so far."""

    source: ModuleType
    original: MutantSide
    mutant: MutantSide
    runs: int = 0
    worst: float = 0.0
    """Largest difference so far, by what rounding explains."""
    same_bits: bool = True

    def find(self) -> str:
        """`same` or `different`, and why."""
        number = 0
        for number, state in enumerate(weights(self.source)):
            for side in (self.original, self.mutant):
                side.program.init(state, threads=2)
            said = self._sweep() or self._climb()
            if said is not None:
                return f"different: {said}, weights {number}"
        tried = f"{self.runs} inputs, {number + 1} sets of weights"
        if self.same_bits:
            return f"same: bit by bit ({tried})"
        return f"same: within {self.worst:.2g} of what rounding explains ({tried})"

    def _sweep(self) -> str | None:
        for name, given in inputs(self.source):
            said = self._compare(given)[1]
            if said is not None:
                return f"{said} on {name}"
        return None

    def _climb(self) -> str | None:
        """Step by step, each time from the inputs with the largest difference so far."""
        best, top = self.source.get_inputs(), -1.0
        for _ in range(CLIMB):
            given = perturbed(self.source, best)
            gap, said = self._compare(given)
            if said is not None:
                return f"{said} on a climb"
            if gap >= top:
                best, top = given, gap
        return None

    def _compare(self, given: Tensors) -> tuple[float, str | None]:
        """The difference by what rounding explains, and what tells the two apart."""
        poison = _POISONS[self.runs % len(_POISONS)]
        self.runs += 1
        a, b = self.original.run(given, poison), self.mutant.run(given, poison)
        if (a is None) != (b is None):
            return math.inf, "one of both refuses"
        if a is None or b is None:
            return 0.0, None
        if not b[1]:
            return math.inf, "writes beside its tensors"
        gap = max(_distance(x, y) for x, y in zip(a[0], b[0], strict=True))
        self.same_bits &= gap == 0
        gap /= _allowed(given)
        if 1 < gap < math.inf:
            moved = self._moved(given, a[0], poison)
            gap = gap / max(1.0, moved / _FACTOR / _EPS) if moved < _NO_DIGIT else 0.0
        self.worst = max(self.worst, gap)
        return gap, f"{gap:.3g} times what rounding explains" if gap > 1 else None

    def _moved(self, given: Tensors, before: Tensors, poison: int) -> float:
        """How far last bits of the inputs move the original's results.

        A sum that is rounded otherwise gives what such inputs would, enlarged by the root of its length. If
        little is left of what cancels, that much is rounding; where a number comes or goes, nothing is.
        """
        moved = [0.0]
        for _ in range(_NUDGES):
            after = self.original.run([_nudged(x) for x in given], poison)
            if after is not None:
                moved += [_distance(x, y) for x, y in zip(before, after[0], strict=True)]
        return max(value for value in moved if value < math.inf)


def _nudged(x: torch.Tensor) -> torch.Tensor:
    """Each number one unit in the last place larger or smaller."""
    signs = 2 * torch.randint(0, 2, x.shape) - 1
    return resized(x * (1 + _EPS * signs), x, None) if x.is_floating_point() else x


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
    original, mutant = (MutantSide(spec[name], spec["libraries"]) for name in ("original", "mutant"))
    print(Search(load_reference(Path(spec["reference"])), original, mutant).find())
    return 0


if __name__ == "__main__":
    sys.exit(main())
