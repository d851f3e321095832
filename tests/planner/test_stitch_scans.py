"""Running sums, places of extremes, einsum, flips and losses."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.planner.stitch_support import Built, assert_equal_to_torch, made

Function = Callable[..., torch.Tensor | tuple[torch.Tensor, ...]]


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def ties(*shape: int) -> torch.Tensor:
    return torch.randint(0, 4, shape).float()


FUNCTIONS: dict[str, tuple[Function, list[torch.Tensor]]] = {
    "cumsum of the last dim": (lambda x: x.cumsum(-1), [drawn(5, 300)]),
    "cumsum of a middle dim": (lambda x: x.cumsum(1), [drawn(3, 70, 90)]),
    "cumsum of a transposed input": (lambda x: x.cumsum(1), [drawn(70, 90).t()]),
    "cumprod": (lambda x: x.cumprod(0), [drawn(20, 90)]),
    "cumsum of integers": (lambda x: x.cumsum(0), [torch.arange(60).reshape(20, 3)]),
    "cumsum from behind": (lambda x: x.flip(1).cumsum(1).flip(1), [drawn(7, 33)]),
    "flip of two dims": (lambda x: x.flip(0, -1) * 2, [drawn(4, 5, 6)]),
    "argmax": (lambda x: x.argmax(1), [ties(9, 70, 80)]),
    "argmin keeping the dim": (lambda x: x.argmin(-1, keepdim=True), [ties(9, 80)]),
    "argmax of all": (lambda x: x.argmax(), [ties(9, 80)]),
    "max with places": (lambda x: tuple(x.max(1)), [ties(9, 70, 3)]),
    "min with places of integers": (lambda x: tuple(x.min(0)), [torch.randint(0, 9, (30, 4))]),
    "max without places": (lambda x: x.max(1).values + 1, [drawn(9, 70, 3)]),
    "min keeping the dim": (lambda x: x - x.min(1, keepdim=True)[0], [drawn(9, 70)]),
    "only places": (lambda x: x.max(-1)[1], [ties(9, 70)]),
    "einsum of a matrix": (
        lambda x, w: torch.einsum("bijl,lk->bijk", x, w),
        [drawn(2, 3, 4, 5), drawn(5, 6)],
    ),
    "einsum of batches": (
        lambda q, k: torch.einsum("bqhd,bkhd->bhqk", q, k),
        [drawn(2, 6, 3, 8), drawn(2, 7, 3, 8)],
    ),
    "einsum turned": (lambda a, b: torch.einsum("ij,jk->ki", a, b) + 1, [drawn(6, 5), drawn(5, 4)]),
    "einsum over two dims": (lambda a, b: torch.einsum("nij,ijk", a, b), [drawn(3, 4, 5), drawn(4, 5, 6)]),
    "einsum to a number": (lambda a, b: torch.einsum("i,i->", a, b), [drawn(40), drawn(40)]),
    "mse": (functional.mse_loss, [drawn(30, 40), drawn(30, 40)]),
    "l1 summed": (lambda x, y: functional.l1_loss(x, y, reduction="sum"), [drawn(30, 40), drawn(30, 40)]),
    "smooth l1": (lambda x, y: functional.smooth_l1_loss(x, y, beta=0.7), [drawn(30, 40), drawn(40, 30).t()]),
    "huber": (lambda x, y: functional.huber_loss(x, y, delta=0.7), [drawn(30, 40), drawn(30, 40)]),
    "numpy's T": (lambda x: x.T + 1, [drawn(3, 5)]),
}


class All(nn.Module):
    """Every function: a program is built once."""

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor | tuple[torch.Tensor, ...], ...]:
        waiting = iter(inputs)
        return tuple(function(*(next(waiting) for _ in given)) for function, given in FUNCTIONS.values())


def test_what_torch_computes_along_a_dim_has_templates(tmp_path: Path) -> None:
    assert_equal_to_torch(All(), [x for _, given in FUNCTIONS.values() for x in given], tmp_path)


class Extremes(nn.Module):
    """Places and values."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return *x.max(1), *x.min(1), x.argmax(0)


def test_a_nan_is_the_largest_and_the_smallest_and_the_first_one_counts(tmp_path: Path) -> None:
    x = torch.tensor([[1.0, float("nan"), 3.0, float("nan")], [float("inf"), -1.0, float("-inf"), 2.0]])
    module = Extremes()

    results = Built(made(module, [x]).stitched, module, tmp_path)([x])

    for ours, expected in zip(results, module(x), strict=True):
        torch.testing.assert_close(ours, expected, equal_nan=True)


@pytest.mark.parametrize("equation", ["ii,ij->ij", "bi,bj->bij", "ij,kj->i", "...i,ij->...j"])
def test_einsum_that_is_no_matrix_product_stays_with_torch(equation: str) -> None:
    class Product(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return torch.einsum(equation, a, b)

    from stitch_planner.planning import make_plan
    from stitch_tools.graph import build_graph
    from stitch_tools.models.task import Contract, Task
    from stitch_tools.worker.capture.graph_capture import capture
    from tests.planner.stitch_support import NO_FACTS

    graph = build_graph(capture(Product(), [drawn(4, 4), drawn(4, 4)]), Contract(), None)
    plan = make_plan(graph, NO_FACTS, Task(name="case", files=(), main="case.py"), None)

    assert [step.kind for step in plan.steps] == ["eager"]
