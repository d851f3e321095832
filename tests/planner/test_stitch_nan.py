"""NaN and infinities come out of stitched programs where torch gives them."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.planner.stitch_support import Built, made
from tests.sampling import sampled

NAN, INF = float("nan"), float("inf")

ACTIVATIONS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    torch.relu,
    functional.relu6,
    functional.hardtanh,
    lambda x: functional.hardtanh(x, -0.5, 3.0),
    functional.gelu,
    lambda x: functional.gelu(x, approximate="tanh"),
    functional.silu,
    torch.sigmoid,
    torch.tanh,
    functional.leaky_relu,
    lambda x: functional.leaky_relu(x, 0.0),
]


def poisoned(x: torch.Tensor) -> torch.Tensor:
    """`x` with NaN, infinities and huge numbers, one in each of its first five rows."""
    for place, value in enumerate((NAN, INF, -INF, 1e38, -1e38)):
        x[place].view(-1)[0] = value
    return x


def differences(got: list[torch.Tensor], wanted: list[torch.Tensor]) -> list[str]:
    """A line for each output that is not torch's, NaN and infinities among it."""
    lines: list[str] = []
    for place, (ours, eager) in enumerate(zip(got, wanted, strict=True)):
        try:
            torch.testing.assert_close(ours, eager, equal_nan=True, rtol=1e-4, atol=1e-5)
        except AssertionError as error:
            lines.append(f"output {place}: {error}")
    return lines


def assert_the_same_pattern(module: nn.Module, inputs: list[torch.Tensor], folder: Path) -> list[str]:
    """Kinds of steps of the program, whose outputs are torch's with NaN and infinities in the same places."""
    result = made(module.eval(), inputs)
    with torch.no_grad():
        wanted = module(*inputs)
    assert not differences(Built(result.stitched, module, folder)(inputs), list(wanted))
    return result.kinds


class Activated(nn.Module):
    """Every activation behind a product, with and without a bias, and a residual before or behind it."""

    def __init__(self, product: Callable[..., torch.Tensor], *shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.product = product
        self.w, self.b = (nn.Parameter(torch.randn(shape) / 8) for shape in shapes)

    def forward(self, x: torch.Tensor, z: torch.Tensor) -> list[torch.Tensor]:
        results: list[torch.Tensor] = []
        for act in ACTIVATIONS:
            for bias in (None, self.b):
                results += [act(self.product(x, self.w, bias)), act(self.product(x, self.w, bias) + z)]
            results.append(torch.relu(act(self.product(x, self.w, self.b)) * z))
        return results


def _batched(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    weights = w.expand(x.shape[0], *w.shape)
    return torch.bmm(x, weights) if bias is None else torch.baddbmm(bias, x, weights)


PRODUCTS = {
    "linear": (functional.linear, ((33, 24), (33,)), (12, 24), (12, 33)),
    "linear into few columns": (functional.linear, ((3, 64), (3,)), (12, 64), (12, 3)),
    "bmm": (_batched, ((24, 33), (33,)), (6, 7, 24), (6, 7, 33)),
    "conv": (
        lambda x, w, b: functional.conv2d(x, w, b, padding=1),
        ((24, 8, 3, 3), (24,)),
        (6, 8, 6, 5),
        (6, 24, 6, 5),
    ),
    "depthwise": (
        lambda x, w, b: functional.conv2d(x, w, b, padding=1, groups=8),
        ((8, 1, 3, 3), (8,)),
        (6, 8, 6, 5),
        (6, 8, 6, 5),
    ),
    "pointwise into few channels": (functional.conv2d, ((4, 32, 1, 1), (4,)), (6, 32, 6, 5), (6, 4, 6, 5)),
}


@pytest.mark.parametrize("kind", sampled(PRODUCTS, ("linear", "conv")))
def test_activations_behind_a_product_keep_nan_and_infinities(kind: str, tmp_path: Path) -> None:
    product, shapes, given, other = PRODUCTS[kind]
    z = torch.randn(other)
    z.flatten(1)[5, 1], z.flatten(1)[5, 2] = NAN, INF
    kinds = assert_the_same_pattern(Activated(product, *shapes), [poisoned(torch.randn(given)), z], tmp_path)
    assert kinds.count("gemm") + kinds.count("conv") == 5 * len(ACTIVATIONS)
    assert kinds.count("pointwise") <= 5, "most activations belong to a product's call"


def test_finite_inputs_after_nan_and_a_residual_that_holds_it(tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.l = nn.Linear(16, 32)

        def forward(self, x: torch.Tensor, z: torch.Tensor) -> list[torch.Tensor]:
            return [functional.relu(self.l(x / x.norm(dim=-1, keepdim=True))), torch.relu(self.l(x) + z)]

    module = Net().eval()
    finite = [torch.randn(8, 16), torch.randn(8, 32)]
    built = Built(made(module, finite).stitched, module, tmp_path)
    worse = finite[1].clone()
    worse[3, 4] = NAN
    for inputs in (finite, [torch.zeros(8, 16), finite[1]], [finite[0], worse], finite):
        with torch.no_grad():
            wanted = module(*inputs)
        assert not differences(built(inputs), wanted)


class Reductions(nn.Module):
    """Over rows, over columns and over everything."""

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        results: list[torch.Tensor] = []
        for dim in (-1, 0):
            results += [
                x.sum(dim),
                x.mean(dim),
                x.amax(dim),
                x.amin(dim),
                x[:, :37].prod(dim),  # a longer product of numbers below 1 ends at 0, and 0 * inf at NaN
                x.std(dim),
                x.norm(dim=dim),
                torch.linalg.vector_norm(x, float("inf"), dim),
                torch.logsumexp(x, dim),
                torch.softmax(x, dim),
                torch.log_softmax(x, dim),
            ]
        return [*results, x.max(), x.min(), x.mean(), x.sum()]


class Orders(nn.Module):
    """What compares: torch passes NaN on."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [
            x.clamp(-0.5, 0.5),
            x.clamp(min=0.0),
            x.clamp(max=0.0),
            torch.maximum(x, y),
            torch.minimum(x, y),
            (x > 0).any(-1),
            functional.softplus(x),
            functional.logsigmoid(x),
            functional.elu(x),
            functional.selu(x),
            functional.mish(x),
            functional.hardswish(x),
            functional.hardsigmoid(x),
            functional.softsign(x),
            functional.relu(x),
        ]


class Norms(nn.Module):
    """Normalisations in training mode and with kept statistics, of channels last and first."""

    def __init__(self) -> None:
        super().__init__()
        self.batch, self.kept = nn.BatchNorm2d(8, track_running_stats=False), nn.BatchNorm2d(8)
        self.group, self.instance = nn.GroupNorm(2, 8), nn.InstanceNorm2d(8)
        self.layer, self.rms, self.conv = nn.LayerNorm(8), nn.RMSNorm(8), nn.Conv2d(8, 8, 1)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        seen = self.conv(x)
        return [
            self.batch(x),
            torch.relu(self.batch(x)),
            self.kept(x),
            self.group(x),
            torch.relu(self.group(x)),
            self.instance(x),
            self.layer(x),
            self.rms(x),
            functional.normalize(x, dim=1),
            functional.relu6(self.batch(seen) + x),
            self.group(seen),
        ]


class Pools(nn.Module):
    """Poolings, of images in both orders."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 1)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        results: list[torch.Tensor] = []
        for image in (x, self.conv(x)):
            results += [
                functional.max_pool2d(image, 2),
                functional.max_pool2d(image, 3, 1, 1),
                functional.max_pool2d(image, 3, 2, 1, 2),
                functional.avg_pool2d(image, 2),
                functional.avg_pool2d(image, 3, 2, 1),
                functional.adaptive_avg_pool2d(image, 3),
                functional.adaptive_max_pool2d(image, 3),
                functional.adaptive_avg_pool2d(image, 1),
                functional.interpolate(image, scale_factor=2, mode="nearest"),
                functional.interpolate(image, scale_factor=2, mode="bilinear"),
            ]
        return results


class Losses(nn.Module):
    """Losses between rows of scores."""

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> list[torch.Tensor]:
        results: list[torch.Tensor] = []
        for kind in ("none", "mean", "sum"):
            results += [
                functional.cross_entropy(x, target, reduction=kind),
                functional.cross_entropy(x, target, reduction=kind, label_smoothing=0.1),
                functional.nll_loss(functional.log_softmax(x, -1), target, reduction=kind),
            ]
        return results


class Attended(nn.Module):
    """Attention with every kind of mask, and written out."""

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, added: torch.Tensor, keep: torch.Tensor
    ) -> list[torch.Tensor]:
        weights = torch.softmax(q @ k.transpose(-1, -2) * 0.25 + added, -1)
        return [
            functional.scaled_dot_product_attention(q, k, v),
            functional.scaled_dot_product_attention(q, k, v, added),
            functional.scaled_dot_product_attention(q, k, v, keep),
            functional.scaled_dot_product_attention(q, k, v, is_causal=True),
            weights @ v,
        ]


def _attention(value: float, at: int) -> list[torch.Tensor]:
    """Poison in the queries, keys or values, and a mask whose fourth row hides all."""
    tensors = [torch.randn(2, 2, 19, 24) for _ in range(3)]
    tensors[at][0, 1, 5, 3] = value
    hidden = torch.rand(19, 19) < 0.3
    hidden[3] = True
    return [*tensors, torch.zeros(19, 19).masked_fill(hidden, -INF), ~hidden]


def _with(value: float, *shape: int) -> torch.Tensor:
    x = torch.randn(shape)
    x.view(-1)[3] = value
    x.view(-1)[x.numel() // 2 + 7] = value
    return x


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[float], list[torch.Tensor]]]] = {
    "reductions": (Reductions, lambda value: [_with(value, 9, 37)]),
    "long reductions": (Reductions, lambda value: [_with(value, 3, 2100)]),
    "comparisons": (Orders, lambda value: [_with(value, 9, 37), torch.randn(9, 37)]),
    "norms": (Norms, lambda value: [_with(value, 2, 8, 6, 8)]),
    "poolings": (Pools, lambda value: [_with(value, 2, 8, 7, 9)]),
    "losses": (
        Losses,
        lambda value: [_with(value, 9, 37), torch.randint(37, (9,))],
    ),
    **{
        f"attention to {name}": (Attended, lambda value, at=at: _attention(value, at))
        for at, name in enumerate(("queries", "keys", "values"))
    },
}


SAMPLE = ("reductions", "comparisons", "poolings", "attention to queries")


@pytest.mark.parametrize("case", sampled(CASES, SAMPLE))
def test_nan_and_infinities_come_out_where_torch_has_them(case: str, tmp_path: Path) -> None:
    kind, inputs = CASES[case]
    module = kind().eval()
    made_once = made(module, inputs(0.0))
    built = Built(made_once.stitched, module, tmp_path) if made_once.stitched.format == "native" else None
    assert built is not None, made_once.plan.notes
    wrong: list[str] = []
    for value in (NAN, INF, -INF):
        given = inputs(value)
        with torch.no_grad():
            wanted = module(*given)
        wrong += [f"{value}, {line}" for line in differences(built(given), wanted)]
    assert not wrong
