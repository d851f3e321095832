"""Attention of CUDA programs on a GPU: errors beside those of eager float32, poison, tiles left out."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from stitch_planner.stitcher.emit.cuda.emit_cuda import emit_cuda
from stitch_planner.stitcher.emit.cuda.testing import OnGpu, lowered
from stitch_tools.models.task import Contract

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here: not measured"),
]

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
INF = math.inf
SMALLEST_ERROR = 3e-7
"""Of attention in float32, over the result: eager mode, where nothing is split, cut off or corrected, is more
exact with sums of few products."""


def scores(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])


MASKS: dict[str, Attend] = {
    "none": lambda q, k, v, m: torch.softmax(scores(q, k), -1) @ v,
    "add": lambda q, k, v, m: torch.softmax(scores(q, k) + m, -1) @ v,
    "hide": lambda q, k, v, m: torch.softmax(scores(q, k).masked_fill(m < 0, -INF), -1) @ v,
    "keep": lambda q, k, v, m: functional.scaled_dot_product_attention(q, k, v, m > -0.5),
    "causal": lambda q, k, v, m: functional.scaled_dot_product_attention(q, k, v, is_causal=True),
    "relu": lambda q, k, v, m: torch.relu(scores(q, k).masked_fill(m < 0, -INF)) @ v,
}
SHAPES: dict[str, list[tuple[str, int, int, int, int]]] = {
    # mask, queries, keys, width, width of a value
    "narrow": [("none", 65, 65, 16, 16), ("hide", 200, 130, 32, 32), ("causal", 257, 257, 30, 31)],
    "middle": [("add", 127, 300, 64, 64), ("relu", 190, 190, 48, 64), ("hide", 512, 512, 96, 96)],
    "wide": [("causal", 140, 140, 128, 128), ("keep", 90, 70, 160, 192), ("none", 70, 90, 256, 200)],
    "few": [("none", 2, 2, 64, 64), ("keep", 40, 16, 20, 12), ("causal", 9, 9, 8, 8), ("add", 3, 5, 300, 40)],
}


class Many(nn.Module):
    """Each attention on its own four inputs."""

    def __init__(self, masks: list[str]) -> None:
        super().__init__()
        self.masks = masks

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        fours = zip(*[iter(tensors)] * 4, strict=True)
        return tuple(MASKS[mask](*four) for mask, four in zip(self.masks, fours, strict=True))


def inputs_of(shapes: list[tuple[str, int, int, int, int]]) -> list[torch.Tensor]:
    """Queries, keys and values as windows on [batch, position, head, width]; masks that hide whole tiles."""
    tensors: list[torch.Tensor] = []
    for _, queries, keys, width, value_width in shapes:
        sizes = ((queries, width), (keys, width), (keys, value_width))
        tensors += [torch.randn(2, rows, 3, columns).transpose(1, 2) for rows, columns in sizes]
        mask = torch.randn(1, 3, queries, keys)
        mask[..., keys // 3 : 2 * keys // 3] = -2.0
        mask[..., 0] = 1.0
        tensors.append(mask)
    return tensors


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    """The root of the mean square, over the result's."""
    return float((found.double() - exact).pow(2).mean().sqrt() / exact.pow(2).mean().sqrt())


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_errors_are_at_most_twice_those_of_eager_float32(kind: str, precision: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    shapes = SHAPES[kind]
    module, inputs = Many([mask for mask, *_ in shapes]).eval(), inputs_of(shapes)
    contract = Contract(mode="eval", matmul_precision=precision)  # type: ignore[arg-type]
    program = OnGpu(emit_cuda(lowered(module, inputs, contract)), tmp_path)
    moved = [x.cuda() for x in inputs]
    found, eager = program.run(moved, calls=2), module(*moved)
    for shape, one, own, exact in zip(
        shapes, found, eager, module(*(x.double() for x in moved)), strict=True
    ):
        limit = 2 * max(error(own, exact), SMALLEST_ERROR) if precision == "fp32" else 2e-3
        assert error(one, exact) <= limit, shape


def test_poison_comes_out_where_torch_has_it(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, inputs = Many(list(MASKS)).eval(), inputs_of([(mask, 200, 200, 32, 32) for mask in MASKS])
    program = OnGpu(emit_cuda(lowered(module, inputs)), tmp_path)
    for value in (math.nan, INF, -INF):
        for at in range(3):
            given = [x.clone() for x in inputs]
            for x in given[at::4]:
                x[1, 2, 170, 3] = value
            outputs = program.run([x.cuda() for x in given])
            for mask, one, expected in zip(MASKS, outputs, module(*given), strict=True):
                for test in (torch.isnan, torch.isposinf, torch.isneginf):
                    assert torch.equal(test(one.cpu()), test(expected)), (mask, value, at)


class Emptied(nn.Module):
    """A query that sees nothing, in a tile that is left out and in one that is not."""

    def forward(self, q: torch.Tensor, hide: torch.Tensor) -> tuple[torch.Tensor, ...]:
        written = torch.softmax((q @ q.transpose(-2, -1)).masked_fill(hide, -INF), -1) @ q
        library = functional.scaled_dot_product_attention(q, q, q, ~hide)
        # The least number hides no key from a query that has it for all of them.
        least = torch.finfo(torch.float32).min
        filled = torch.softmax((q @ q.transpose(-2, -1)).masked_fill(hide, least), -1) @ q
        added = torch.softmax(q @ q.transpose(-2, -1) + hide * least, -1) @ q
        return written, library, filled, added


def test_a_query_that_sees_nothing_gives_what_torch_gives(tmp_path: Path) -> None:
    q, hide = torch.randn(1, 2, 300, 64), torch.zeros(300, 300, dtype=torch.bool)
    hide[7], hide[128:256] = True, True
    module = Emptied().eval()
    outputs = OnGpu(emit_cuda(lowered(module, [q, hide])), tmp_path).run([q.cuda(), hide.cuda()])
    for one, expected in zip(outputs, module(q, hide), strict=True):
        torch.testing.assert_close(one.cpu(), expected, rtol=1e-4, atol=1e-5, equal_nan=True)
