"""Programs that leave operations to PyTorch: constants, shared weights and arguments reach these."""

from pathlib import Path

import pytest

from stitch_tools.protocol.layout import BUFFER
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store
from tests.planner.judge_support import Judged, judged
from tests.sampling import sampled

TEXT = """
import torch
from torch.nn import functional as F


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        {init}

    def forward(self, x):
        {forward}


def get_inputs():
    return [torch.randn(6, 8)]


def get_init_inputs():
    return []
"""
CASES = {
    "a constant of the module": (
        "self.mask = torch.ones(6, 6).tril().bool()",
        "return torch.logcumsumexp(x @ x.T, 1).masked_fill(~self.mask, float('-inf')).softmax(1) * 2",
    ),
    "a constant of forward": (
        "",
        "return torch.searchsorted(torch.tensor([-1.0, 0.0, 1.0]), torch.relu(x) - 0.5), torch.tensor([3])",
    ),
    "a constant without elements": (
        "self.none = torch.zeros(0, 8)",
        "return torch.logcumsumexp(torch.cat([torch.cummax(torch.relu(x), 0).values, self.none]), 0) + 1",
    ),
    "buffers outside the state dict": (
        "self.register_buffer('order', torch.tensor([3, 1, 0]), persistent=False);"
        " self.register_buffer('scale', torch.arange(8.0), persistent=False)",
        "return torch.logcumsumexp(x * self.scale, 1).index_select(1, self.order) + 1",
    ),
    "a weight of two modules": (
        "self.a, self.b = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8); self.b.weight = self.a.weight",
        "return self.b(torch.logcumsumexp(self.a(x), dim=1))",
    ),
    "dimensions and flags": (
        "",
        "values, places = torch.sort(torch.relu(x) + x, dim=0, descending=True, stable=True);"
        " top = torch.topk(values * 2, k=3, dim=1, largest=False).values;"
        " middle = torch.median(values, dim=1, keepdim=True).values;"
        " return torch.cumsum(top + middle, dim=0, dtype=torch.float64) * 2, places",
    ),
    "a norm that moves its vectors in every call": (
        "self.lin = torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(8, 8))",
        "return torch.relu(self.lin(x)) * 2",
    ),
    "the share that dropout keeps": (
        "self.drop = torch.nn.Dropout(p=0.3)",
        "return F.dropout(self.drop(torch.relu(x) + 1), p=0.7, training=True) * 2",
    ),
}
UPDATES = {
    "running statistics and their count": (
        "self.scale = torch.nn.Linear(8, 8); self.norm = torch.nn.BatchNorm1d(8)",
        "return torch.relu(self.norm(self.scale(x)) * 2 + 1)",
    ),
    "an average that the output reads before it moves": (
        "self.register_buffer('mean', torch.zeros(8))",
        "y = torch.relu(x - self.mean) + 1; self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1); return y * 2",
    ),
    "what a copy of a buffer held before": (
        "self.register_buffer('last', torch.zeros(8)); self.norm = torch.nn.BatchNorm1d(8)",
        "old, mean = self.last.clone(), self.norm.running_mean.clone(); self.last.copy_(x[0]);"
        " return torch.relu(self.norm(x)) + 1, old, mean",
    ),
    "a sum that the output reads after it grew": (
        "self.register_buffer('total', torch.ones(8)); self.register_buffer('kept', torch.ones(8))",
        "self.total += x.sum(0); return torch.sigmoid(x * self.total + self.kept)",
    ),
}
pytestmark = pytest.mark.slow


def judged_in_training(text: str, session: TargetSession, folder: Path, buffers: str = "ignored") -> Judged:
    path = folder / "model.py"
    path.write_text(text, encoding="utf-8")
    overrides: dict[str, object] = {"mode": "train", "buffers": buffers}
    return judged(path, session, Store(folder / "store"), overrides=overrides)


@pytest.mark.parametrize("name", sampled(CASES, 4))
def test_what_stays_with_pytorch_gets_its(name: str, session: TargetSession, tmp_path: Path) -> None:
    init, forward = CASES[name]
    found = judged_in_training(TEXT.format(init=init or "pass", forward=forward), session, tmp_path)
    stitched, check = found.stitched, found.check
    assert stitched.format == "kernelbench"
    assert any(path.endswith(".cpp") for path in stitched.files), "a part of it is native"
    assert (check.status, "partial" in check.flags) == ("accepted", True), check.message


@pytest.mark.parametrize("name", sampled(UPDATES, 2))
def test_buffers_that_forward_updates_are_written(name: str, session: TargetSession, tmp_path: Path) -> None:
    init, forward = UPDATES[name]
    found = judged_in_training(TEXT.format(init=init, forward=forward), session, tmp_path, "updated")
    stitched, check = found.stitched, found.check
    assert stitched.format == "kernelbench"
    assert any(path.endswith(".cpp") for path in stitched.files), "a part of it is native"
    assert check.status == "accepted", check.message
    compared = {row.output for draw in check.draws for row in draw.outputs}
    assert any(name.startswith(BUFFER) for name in compared), compared
