"""Split products on a GPU: errors against float64 beside cuBLAS's, odd sizes, layouts, special values."""

import ctypes
from collections.abc import Callable

import pytest
import torch

from stitch_tools.compile.toolchain import find_nvcc
from tests.planner.split_support import Layouts, SplitProduct, build_harness

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here: not measured"),
]

TIMES_CUBLAS = 2.0
"""A split product's error against float64, over that of a float32 product by cuBLAS."""
TIMES_CUBLAS_IF_SHORT = 12.0
"""The same for sums that programs leave to cuBLAS: it hardly rounds there, and halves are cut off as ever.

Of a single product, which cuBLAS rounds by 2**-24 at most, both splits may miss 2**-23, what is left out is
up to 2**-22, and the tensor core cuts off up to 2**-23: ten times as much.
"""
SHORTEST_DEPTH = 64
SMALLEST_ERROR = 2.0**-23
"""Of a float32 result, over its rms: cuBLAS may be lucky, above all with sums of positive numbers."""

SHAPES = [
    Layouts(128, 128, 32),
    Layouts(128, 256, 64),
    Layouts(1, 1, 1),
    Layouts(3, 5, 7),
    Layouts(129, 257, 33),
    Layouts(200, 130, 1),
    Layouts(64, 1000, 4096),
    Layouts(1025, 513, 999, b_transposed=False),
    Layouts(300, 260, 200, a_ld=212, b_ld=203, d_ld=261),
    Layouts(130, 300, 96, a_transposed=True),
    Layouts(100, 140, 160, batch=3),
    Layouts(256, 64, 512, batch=5, b_transposed=False),
    Layouts(128, 512, 16384),
]


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return build_harness(find_nvcc().command[0], tmp_path_factory.mktemp("split"))


Draw = Callable[[tuple[int, ...]], torch.Tensor]


def signed(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.randn(shape, device="cuda")


def positive(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.rand(shape, device="cuda")


def wide(shape: tuple[int, ...]) -> torch.Tensor:
    """Sizes from 1e-6 to 1e6."""
    return torch.randn(shape, device="cuda") * 10 ** (torch.rand(shape, device="cuda") * 12 - 6)


def scaled_rows(shape: tuple[int, ...]) -> torch.Tensor:
    """Rows of quite different sizes, each of one."""
    return torch.randn(shape, device="cuda") * 10 ** (torch.rand((*shape[:-1], 1), device="cuda") * 24 - 12)


DRAWS: list[Draw] = [signed, positive, wide, scaled_rows]


def stored(rows: int, columns: int, ld: int | None, batch: int, draw: Draw) -> torch.Tensor:
    """A matrix, or a batch of them, as a window of rows that are `ld` apart."""
    memory = draw((batch, rows, ld or columns))
    return memory[..., :columns]


class SplitCase:
    """Operands of a product, and its result in float64."""

    def __init__(self, layouts: Layouts, draw: Draw) -> None:
        one = layouts
        self.layouts = one
        a_size = (one.k, one.m) if one.a_transposed else (one.m, one.k)
        b_size = (one.n, one.k) if one.b_transposed else (one.k, one.n)
        self.a = stored(*a_size, one.a_ld, one.batch, draw)
        self.b = stored(*b_size, one.b_ld, one.batch, draw)
        self.bias = draw((one.n,))
        self.addend = stored(one.m, one.n, one.d_ld, one.batch, draw)

    def matrices(self) -> tuple[torch.Tensor, torch.Tensor]:
        a = self.a.mT if self.layouts.a_transposed else self.a
        return a, self.b.mT if self.layouts.b_transposed else self.b

    def exact(self) -> torch.Tensor:
        a, b = (matrix.double() for matrix in self.matrices())
        return a @ b

    def run(self, product: SplitProduct, name: str, *, extras: bool = False) -> torch.Tensor:
        one = self.layouts
        d = torch.full((one.batch, one.m, one.d_ld or one.n), 7.0, device="cuda")
        product.use(name)
        for _ in range(2):  # the second run finds counters as the first one left them
            product.run(name, self.a, self.b, d, self.addend if extras else None)
        assert bool((d[..., one.n :] == 7).all()), "written beside the result"
        return d[..., : one.n]


def errors(found: torch.Tensor, exact: torch.Tensor) -> tuple[float, float]:
    """The largest error, and the rms of errors, each row's over its own rms."""
    rms = exact.pow(2).mean(-1, keepdim=True).sqrt().clamp_min(1e-300)
    off = (found.double() - exact) / rms
    return float(off.abs().max()), float(off.pow(2).mean().sqrt())


def times_cublas(layouts: Layouts, draw: Draw) -> tuple[float, float]:
    """What the largest error and the rms may be, over cuBLAS's."""
    if layouts.k < SHORTEST_DEPTH:
        return TIMES_CUBLAS_IF_SHORT, TIMES_CUBLAS_IF_SHORT
    # Among sums of numbers that differ so much are some that one product outweighs: short ones.
    return TIMES_CUBLAS_IF_SHORT if draw is wide else TIMES_CUBLAS, TIMES_CUBLAS


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("constant", [True, False])
def test_errors_are_those_of_float32(harness: ctypes.CDLL, draw: Draw, constant: bool) -> None:
    torch.manual_seed(0)
    for layouts in SHAPES:
        case = SplitCase(layouts, draw)
        exact = case.exact()
        product = SplitProduct(harness, layouts, constant=case.b if constant else None)
        plain = errors(case.run(product, "cublas"), exact)
        for name in product.kinds():
            ours = errors(case.run(product, name), exact)
            for mine, theirs, most in zip(ours, plain, times_cublas(layouts, draw), strict=True):
                assert mine <= most * max(theirs, SMALLEST_ERROR), (layouts, name, ours, plain)
        product.close()


@pytest.mark.parametrize("layouts", [SHAPES[4], SHAPES[8], SHAPES[10], SHAPES[12]])
def test_bias_and_addend_are_added(harness: ctypes.CDLL, layouts: Layouts) -> None:
    torch.manual_seed(0)
    case = SplitCase(layouts, signed)
    exact = case.exact() + case.bias.double() + case.addend.double()
    product = SplitProduct(harness, layouts, constant=case.b, bias=case.bias, has_addend=True)
    for name in product.kinds():
        assert errors(case.run(product, name, extras=True), exact)[0] < 5e-5, name
    product.close()


def test_a_relu_keeps_nan(harness: ctypes.CDLL) -> None:
    torch.manual_seed(0)
    layouts = Layouts(130, 140, 70)
    case = SplitCase(layouts, signed)
    case.a[0, 3, 5] = float("nan")
    exact = case.exact().relu()
    product = SplitProduct(harness, layouts, constant=case.b, relu=True)
    for name in product.kinds():
        found = case.run(product, name)
        assert torch.equal(found.isnan(), exact.isnan()), name
        assert float((found.double() - exact).nan_to_num().abs().max()) < 1e-4, name
    product.close()


def test_infinities_and_nan_come_out_as_in_float32(harness: ctypes.CDLL) -> None:
    torch.manual_seed(0)
    layouts = Layouts(130, 140, 70)
    case = SplitCase(layouts, signed)
    infinity, nan = float("inf"), float("nan")
    case.a[0, 3, 5], case.a[0, 7, 9], case.a[0, 129, 0] = infinity, nan, -infinity
    case.a[0, 20, 1], case.a[0, 20, 2] = infinity, -infinity
    case.b[0, 11, 6], case.b[0, 12, 5], case.b[0, 13, 5], case.b[0, 139, 69] = infinity, 0.0, 1e-40, nan
    case.a[0, 40, 6] = 0.0
    exact = case.exact()
    product = SplitProduct(harness, layouts, constant=case.b)
    for name in product.kinds():
        found = case.run(product, name)
        assert torch.equal(found.isnan(), exact.isnan()), name
        assert torch.equal(found.isinf(), exact.isinf()), name
        assert torch.equal(found[exact.isinf()].sign().double(), exact[exact.isinf()].sign()), name
        finite = exact.isfinite()
        assert float((found.double() - exact)[finite].abs().max()) < 1e-4, name
    product.close()


@pytest.mark.parametrize(("a_size", "b_size"), [(1e-42, 1.0), (1e-38, 1e-3), (3e38, 1e-3), (1e30, 1e-36)])
def test_sizes_at_the_ends_of_float32_are_kept(harness: ctypes.CDLL, a_size: float, b_size: float) -> None:
    torch.manual_seed(0)
    layouts = Layouts(64, 96, 256)
    case = SplitCase(layouts, positive)
    case.a.mul_(a_size)
    case.b.mul_(b_size)
    exact = case.exact()
    product = SplitProduct(harness, layouts, constant=case.b)
    for name in product.kinds():
        off = (case.run(product, name).double() - exact).abs().max()
        assert float(off) <= max(4e-6 * float(exact.max()), 2.9e-45), name
    product.close()


def test_what_is_too_large_for_float32_is_infinite(harness: ctypes.CDLL) -> None:
    layouts = Layouts(16, 16, 64)
    case = SplitCase(layouts, positive)
    case.a.add_(1).mul_(1e30)
    case.b.add_(1).mul_(1e20)
    product = SplitProduct(harness, layouts, constant=case.b)
    for name in product.kinds():
        assert bool((case.run(product, name) == float("inf")).all()), name
    product.close()


def test_equal_inputs_give_equal_bits(harness: ctypes.CDLL) -> None:
    torch.manual_seed(0)
    layouts = Layouts(128, 512, 16384)
    case = SplitCase(layouts, signed)
    product = SplitProduct(harness, layouts, constant=case.b)
    for name in product.kinds():
        assert torch.equal(case.run(product, name), case.run(product, name)), name
    product.close()
