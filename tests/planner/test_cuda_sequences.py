"""Scans, extremes, lookups, einsum and losses on GPUs: run on the host, and on a GPU where one is."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from stitch_planner.stitcher.emit.cuda.emit_cuda import emit_cuda
from stitch_planner.stitcher.emit.cuda.testing import OnGpu, OnHost, build_for_gpus, lowered
from tests.gpu_archs import each_arch
from tests.planner.cuda_support import MACHINES, Table, Together, assert_as_torch


def ties(*shape: int) -> torch.Tensor:
    return torch.randint(0, 4, shape).float()


def two_nan() -> torch.Tensor:
    x = torch.randn(4, 50)
    x[1, 7] = x[1, 9] = torch.nan
    return x


ALONG: Table = {
    "cumsum": (lambda x: x.cumsum(-1), [torch.randn(5, 300)]),
    "cumsum of few long rows": (lambda x: x.cumsum(-1), [torch.randn(2, 40000)]),
    "cumsum of rows of odd length": (lambda x: x.cumsum(-1), [torch.randn(3, 4099)]),
    "cumsum of one row": (lambda x: x.cumsum(0), [torch.randn(65537)]),
    "cumsum of a middle dim": (lambda x: x.cumsum(1), [torch.randn(3, 70, 9)]),
    "cumprod": (lambda x: x.cumprod(1), [torch.rand(4, 50) + 0.5]),
    "cumsum of integers": (lambda x: x.cumsum(1), [torch.arange(6000).reshape(2, 3000)]),
    "cumsum from behind": (lambda x: x.flip(1).cumsum(1).flip(1), [torch.randn(7, 33)]),
    "cumsum with NaN": (lambda x: x.cumsum(1), [two_nan()]),
    "argmax": (lambda x: x.argmax(1), [ties(9, 70, 80)]),
    "argmin keeping the dim": (lambda x: x.argmin(-1, keepdim=True), [ties(9, 80)]),
    "argmax of all": (lambda x: x.argmax(), [ties(90, 80)]),
    "max with places": (lambda x: tuple(x.max(1)), [ties(9, 70, 3)]),
    "max of long rows": (lambda x: tuple(x.max(-1)), [torch.randn(4, 5000)]),
    "min with places of integers": (lambda x: tuple(x.min(0)), [torch.randint(0, 9, (30, 4))]),
    "the first NaN": (lambda x: x.max(-1)[1], [two_nan()]),
}
PRODUCTS: Table = {
    "einsum of a matrix": (
        lambda x, w: torch.einsum("bijl,lk->bijk", x, w),
        [torch.randn(2, 3, 4, 5), torch.randn(5, 6)],
    ),
    "einsum of batches": (
        lambda q, k: torch.einsum("bqhd,bkhd->bhqk", q, k),
        [torch.randn(2, 6, 3, 8), torch.randn(2, 7, 3, 8)],
    ),
    "einsum turned": (
        lambda a, b: torch.einsum("ij,jk->ki", a, b) + 1,
        [torch.randn(6, 5), torch.randn(5, 4)],
    ),
    "einsum over two dims": (
        lambda a, b: torch.einsum("nij,ijk", a, b),
        [torch.randn(3, 4, 5), torch.randn(4, 5, 6)],
    ),
    "einsum to a number": (lambda a, b: torch.einsum("i,i->", a, b), [torch.randn(40), torch.randn(40)]),
    "einsum of four": (
        lambda c, b, d, x: torch.einsum("bclhn,bcshn,bhcls,bcshp->bclhp", c, b, d, x),
        [
            torch.randn(2, 3, 4, 2, 5),
            torch.randn(2, 3, 6, 2, 5),
            torch.randn(2, 2, 3, 4, 6),
            torch.randn(2, 3, 6, 2, 7),
        ],
    ),
    "einsum that ends in elements": (
        lambda c, s, d: torch.einsum("bclhn,bchpn,bhcl->bclhp", c, s, d),
        [torch.randn(2, 3, 4, 2, 5), torch.randn(2, 3, 2, 7, 5), torch.randn(2, 2, 3, 4)],
    ),
    "einsum that begins with elements": (
        lambda b, d, x: torch.einsum("bclhn,bhcl,bclhp->bchpn", b, d, x),
        [torch.randn(2, 3, 4, 2, 5), torch.randn(2, 2, 3, 4), torch.randn(2, 3, 4, 2, 7)],
    ),
    "rows of a tensor": (lambda t, i: t[i], [torch.randn(9, 4, 2), torch.tensor([[0, -1, 3], [8, 2, -9]])]),
    "other names": (
        lambda a, b: torch.multiply(a, b) + torch.divide(a, 2) - torch.subtract(a, b),
        [torch.randn(3, 4), torch.randn(3, 4)],
    ),
}
TARGET = torch.tensor([1, 0, 4, -100, 3, 3])
LOSSES: Table = {
    "smoothed": (
        lambda x, t: functional.cross_entropy(x, t, label_smoothing=0.1),
        [torch.randn(6, 5), TARGET],
    ),
    "weighted and smoothed": (
        lambda x, t, w: functional.cross_entropy(x, t, weight=w, label_smoothing=0.1),
        [torch.randn(6, 5), TARGET, torch.rand(5)],
    ),
    "of log-probabilities": (
        lambda x, t, w: functional.nll_loss(x.log_softmax(1), t, weight=w),
        [torch.randn(6, 5), TARGET, torch.rand(5)],
    ),
    "divergence": (
        lambda x, t: functional.kl_div(x.log_softmax(1), t, reduction="batchmean"),
        [torch.randn(6, 5), torch.eye(6, 5) * 0.75],
    ),
    "divergence from a logarithm": (
        lambda x, t: functional.kl_div(x, t, reduction="sum", log_target=True),
        [torch.randn(6, 5), torch.randn(6, 5)],
    ),
    "of triplets": (
        lambda a, p, n: functional.triplet_margin_loss(a, p, n, margin=0.5),
        [torch.randn(6, 50) for _ in "apn"],
    ),
    "of triplets, summed": (
        lambda a, p, n: functional.triplet_margin_loss(a, p, n, reduction="sum", p=1),
        [torch.randn(6, 50) for _ in "apn"],
    ),
    "of each pixel": (
        lambda x, t: functional.cross_entropy(x, t, reduction="none"),
        [torch.randn(2, 5, 3, 4), torch.randint(0, 5, (2, 3, 4))],
    ),
    "summed over pixels": (
        lambda x, t: functional.cross_entropy(x, t, reduction="sum"),
        [torch.randn(2, 300, 3), torch.randint(0, 300, (2, 3))],
    ),
}


class Tables(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.rows = nn.Embedding(11, width)
        self.mean = nn.EmbeddingBag(11, width, mode="mean")
        self.sum = nn.EmbeddingBag(11, width, mode="sum", padding_idx=2)


LOOKUPS: Table = {
    "rows": (lambda m, i: m.rows(i), [torch.randint(0, 11, (3, 4))]),
    "means of equal bags": (lambda m, i: m.mean(i), [torch.randint(0, 11, (3, 4))]),
    "sums of bags": (lambda m, i, o: m.sum(i, o), [torch.randint(0, 11, (12,)), torch.tensor([0, 3, 3, 9])]),
}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    "table",
    [
        pytest.param(ALONG, id="along a dim"),
        pytest.param(PRODUCTS, id="products"),
        pytest.param(LOSSES, id="losses"),
    ],
)
def test_results_are_torch_s(table: Table, machine: type[OnHost | OnGpu], tmp_path: Path) -> None:
    assert_as_torch(table, machine, tmp_path)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("width", [8, 7])
def test_rows_of_tables_are_torch_s(width: int, machine: type[OnHost | OnGpu], tmp_path: Path) -> None:
    assert_as_torch(LOOKUPS, machine, tmp_path, Tables(width))


def test_a_row_outside_the_table_is_nan(tmp_path: Path) -> None:
    module = nn.Embedding(5, 4)
    program = lowered(module, [torch.tensor([1, 4])])
    (output,) = OnHost(emit_cuda(program), tmp_path).run(
        [torch.tensor([5, -1])], {"weight": module.weight.data}
    )
    assert output.isnan().all()


@pytest.mark.nvcc
@pytest.mark.slow
@each_arch
@pytest.mark.parametrize("table", [pytest.param(ALONG, id="along"), pytest.param(LOSSES, id="losses")])
def test_such_programs_build(table: Table, archs: tuple[str, ...], tmp_path: Path) -> None:
    together = Together(table)
    build = build_for_gpus(emit_cuda(lowered(together, together.inputs)), tmp_path, archs)
    assert build.ok, [row.message for row in build.diagnostics]
    assert build.diagnostics == ()
