"""What people write and no template knows: PyTorch keeps it, or the refusal says why; never is it wrong."""

from pathlib import Path

import pytest

from stitch_planner.stitcher import StitchFailedError
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store
from tests.compose_outside import compose_outside
from tests.planner.judge_support import judged
from tests.sampling import sampled

TEXT = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}

    def forward(self, x):
        {forward}


def get_inputs():
    return [torch.randn(6, 8)]
"""
KEPT = {
    "numbers beside a tensor": (
        "native", "pass", "return x * 2, x.shape[0], 0.5, x.dim() > 1, None",
    ),
    "numbers and nothing beside what PyTorch computes": (
        "kernelbench", "pass", "return {'y': x.logcumsumexp(0) + 1, 'n': [x.shape[0], None, 0.5]}",
    ),
    "numbers alone with what depends on no input": ("native", "pass", "return torch.ones(3), x.shape[1]"),
    "complex numbers": (
        "kernelbench", "self.up = nn.Linear(8, 8)", "return torch.fft.rfft(self.up(x)).abs() * 2",
    ),
    "short integers": ("kernelbench", "pass", "return (x * 4).short().float() * 2"),
    "halves of a weight": (
        "kernelbench", "self.w = nn.Parameter(torch.randn(8).half())", "return x.relu() * self.w.float()",
    ),
    "an output in a type without templates": ("kernelbench", "pass", "return x * 2, x.bfloat16()"),
    "a function of another module": ("kernelbench", "pass", "return x.relu() + torch.special.bessel_j0(x)"),
}  # fmt: skip
SOONEST = ("numbers beside a tensor", "an output in a type without templates")
"""Cases of each run of the suite: the others end in the same lines."""
REFUSED = {
    "a branch": ("pass", "y = x * 2 if x.sum() > 0 else x", "if x.sum() > 0"),
    "a number of the data": ("pass", "return x * x.amax().item()", "x.amax().item()"),
    "a size of the data": ("pass", "return x[x > 0]", "x[x > 0]"),
}
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", sampled(KEPT, SOONEST))
def test_what_has_no_template_is_computed_all_the_same(
    name: str, session: TargetSession, tmp_path: Path
) -> None:
    wanted, init, forward = KEPT[name]
    path = tmp_path / "model.py"
    path.write_text(TEXT.format(init=init, forward=forward), encoding="utf-8")
    found = judged(path, session, Store(tmp_path / "store"))
    check = found.check
    assert (found.stitched.format, check.status) == (wanted, "accepted"), check.message


@pytest.mark.parametrize("name", REFUSED)
def test_a_forward_that_is_no_graph_is_refused_with_its_line(
    name: str, session: TargetSession, tmp_path: Path
) -> None:
    init, forward, code = REFUSED[name]
    path = tmp_path / "model.py"
    path.write_text(TEXT.format(init=init, forward=f"{forward}; return x"), encoding="utf-8")
    line = next(i for i, row in enumerate(path.read_text(encoding="utf-8").splitlines(), 1) if forward in row)
    with pytest.raises(StitchFailedError) as failure:
        judged(path, session, Store(tmp_path / "store"))
    assert f"model.py:{line}: " in failure.value.message
    assert code in failure.value.message
    assert "torch.where" in failure.value.hint


@pytest.mark.parametrize("seed", sampled(range(60), 60))
def test_a_random_reference_from_outside_the_templates_is_right(
    seed: int, session: TargetSession, tmp_path: Path
) -> None:
    composed = compose_outside(seed)
    check = judged(composed.write(tmp_path), session, Store(tmp_path / "store")).check
    assert check.status == "accepted", f"{', '.join(composed.layers)}: {check.message}"
