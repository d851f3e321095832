"""What other roundings of the reference excuse, and which few values of a draw make a difference."""

import functools
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from stitch_tools.worker.random_streams import generator_state, restore_generators
from stitch_tools.worker.reference.altered_inputs import smallest_alteration
from stitch_tools.worker.reference.draws import DrawUnavailableError
from stitch_tools.worker.reference.load_reference import ReferenceSource
from stitch_tools.worker.reference.reference_state import ServedDraw, ServerSettings, ServerState
from stitch_tools.worker.trees import flatten_inputs

EPS = 2.0**-23


@pytest.fixture(autouse=True)
def generators() -> Iterator[None]:
    state = generator_state()
    yield
    restore_generators(state)


def server(
    folder: Path, forward: str, inputs: str = "torch.randn(16, 256)", *, conv_precision: str = "fp32"
) -> ServerState:
    source = (
        "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n"
        f"class Model(nn.Module):\n    def forward(self, x):\n        return {forward}\n"
        f"def get_inputs():\n    return [{inputs}]\ndef get_init_inputs():\n    return []\n"
    )
    (folder / "conditioned.py").write_text(source, encoding="utf-8")
    state = ServerState()
    state.load(ReferenceSource(str(folder), "conditioned.py"), ServerSettings(conv_precision=conv_precision))
    state.set_weights(3)
    return state


def expect(state: ServerState, kind: str) -> ServedDraw:
    state.make_draw(kind, 5, 7)
    return state.expect(())


def test_a_division_of_nothing_by_nothing_is_judged_and_an_overflow_is_not(tmp_path: Path) -> None:
    state = server(tmp_path, "x / x.abs().sum(-1, keepdim=True)")
    _ = expect(state, "own-1")
    _ = expect(state, "zeros")
    assert state.unusable() is None
    assert state.compare([torch.full((16, 256), torch.nan)])[0].problem is None
    assert "where the reference has NaN" in (state.compare([torch.zeros(16, 256)])[0].problem or "")
    state = server(tmp_path, "torch.exp(x * 9)")
    _ = expect(state, "own-1")
    _ = expect(state, "amplified")
    assert "not finite" in (state.unusable() or "")


@pytest.mark.parametrize(
    ("forward", "kind"),
    [
        ("torch.softmax(x, -1)", "altered-1"),
        ("x.square().mean() + 0 * x", "altered-1024"),
    ],
)
def test_as_few_values_are_altered_as_make_a_difference(tmp_path: Path, forward: str, kind: str) -> None:
    state = server(tmp_path, forward, "torch.randn(16, 2048)")
    assert smallest_alteration(state, 5, 7) == kind


def test_a_task_that_does_not_look_at_its_values_is_not_altered(tmp_path: Path) -> None:
    with pytest.raises(DrawUnavailableError, match="hardly change"):
        smallest_alteration(server(tmp_path, "torch.ones_like(x)"), 5, 7)
    refusing = server(
        tmp_path, "x if type(self).forward.__dict__.setdefault('kept', x.sum()) == x.sum() else 1 / 0"
    )
    with pytest.raises(DrawUnavailableError, match="refuses it: ZeroDivisionError"):
        smallest_alteration(refusing, 5, 7)


ZERO_SUMS = {
    "norm of groups": ("F.group_norm(x, 4).mean([1, 2, 3])", "torch.randn(4, 8, 10, 12)"),
    "norm of a batch": ("F.batch_norm(x, None, None, training=True).mean()", "torch.randn(64, 16)"),
    "norm of a layer": ("F.layer_norm(x, (16,)).sum()", "torch.randn(3, 4, 16)"),
    "norm in fp64": ("F.layer_norm(x, (16,)).mean(-1)", "torch.randn(3, 4, 16).double()"),
    "softmax in fp64": (
        "(x.softmax(-1).sum(-1) - 1).abs() + 1e-3 * x[:, 0]",
        "torch.randn(64, 128).double()",
    ),
    "centred in fp64": ("(x - x.mean(0)).sum(0)", "torch.randn(64, 128).double()"),
}


def sequential(x: torch.Tensor, *dims: int) -> torch.Tensor:
    """The sum over these dimensions, one number after another in the type of `x`."""
    kept = [dim for dim in range(x.dim()) if dim not in dims]
    rows = x.permute(*kept, *dims).reshape(*(x.shape[dim] for dim in kept), -1)
    return functools.reduce(torch.add, rows.unbind(-1))


def normed(x: torch.Tensor, *dims: int) -> torch.Tensor:
    count = math.prod(x.shape[dim] for dim in dims)
    shape = [1 if dim in dims else size for dim, size in enumerate(x.shape)]
    centred = x - (sequential(x, *dims) / count).view(shape)
    return centred / (sequential(centred.square(), *dims) / count + 1e-5).sqrt().view(shape)


OTHER_ORDERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "norm of groups": lambda x: sequential(normed(x.view(4, 4, -1), 2), 1, 2) / 960,
    "norm of a batch": lambda x: sequential(normed(x, 0), 0, 1) / x.numel(),
    "norm of a layer": lambda x: sequential(normed(x, 2), 0, 1, 2),
    "norm in fp64": lambda x: sequential(normed(x, 2), 2) / 16,
    "softmax in fp64": lambda x: (
        (sequential(x.exp() / sequential(x.exp().flip(1), 1)[:, None], 1) - 1).abs() + 1e-3 * x[:, 0]
    ),
    "centred in fp64": lambda x: sequential(x - (sequential(x.flip(0), 0) / 64), 0),
}


@pytest.mark.parametrize("case", ZERO_SUMS)
def test_what_cancels_is_bounded_by_what_any_order_of_summation_rounds(tmp_path: Path, case: str) -> None:
    state = server(tmp_path, *ZERO_SUMS[case])
    for seed in range(6):
        state.make_draw("own-1", seed, 7)
        draw = state.expect(())
        x = flatten_inputs(draw.arguments).tensors[0]
        before = torch.get_rng_state()
        right = OTHER_ORDERS[case](x)
        found = state.compare([right])[0]
        assert found.problem is None, (seed, found)
        eps = torch.finfo(x.dtype).eps
        assert state.compare([right + 1])[0].problem is not None
        wrong = state.compare([right + 512 * eps * x.abs().max() * math.sqrt(x.numel())])[0]
        assert wrong.problem is not None, (seed, wrong)
        assert torch.equal(before, torch.get_rng_state())


def test_other_roundings_leave_the_bound_of_what_does_not_cancel(tmp_path: Path) -> None:
    state = server(tmp_path, "F.gelu(x @ x.T)")
    row = expect(state, "own-1").expected[0]
    floor = row.rounding.floor("fp32", "fp32")
    noise = torch.randn(row.oracle.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    rms = float(row.oracle.square().mean().sqrt())
    assert state.compare([(row.oracle + rms * noise).float()])[0].problem is not None
    assert state.draw is not None
    assert not state.draw.rounded_otherwise, "nobody runs the oracle again for what no rounding explains"
    found = state.compare([(row.oracle + 3 * floor * rms * noise).float()])[0]
    assert found.problem is not None
    assert found.bound == floor
    assert 0 < (found.reference_error or 0) < floor / 4


@pytest.mark.parametrize("case", ["norm of groups", "norm of a batch", "norm of a layer", "centred in fp64"])
@pytest.mark.parametrize("kind", ["constants", "near-constant"])
def test_where_only_rounding_is_left_no_order_of_summation_is_wrong(
    tmp_path: Path, case: str, kind: str
) -> None:
    state = server(tmp_path, *ZERO_SUMS[case])
    for seed in range(4):
        state.make_draw(kind, seed, 7)
        draw = state.expect(())
        right = OTHER_ORDERS[case](flatten_inputs(draw.arguments).tensors[0])
        found = state.compare([right])[0]
        assert found.problem is None, (seed, found)
        for other in (math.nan, math.inf, 1e9):
            assert state.compare([torch.full_like(right, other)])[0].problem is not None


def test_what_is_decided_beside_what_is_not_is_compared(tmp_path: Path) -> None:
    forward = "torch.stack([F.layer_norm(x, (300,)).sum(-1), x.sum(-1)], -1)"
    state = server(tmp_path, forward, "torch.randn(16, 300)")
    x = flatten_inputs(expect(state, "constants").arguments).tensors[0]
    right = torch.stack([sequential(normed(x, 1), 1), x.sum(-1)], -1)
    assert float((right[:, 0] - x.sum()).abs().min()) > 1e-2, "the draw has to be one that is off"
    found = state.compare([right])[0]
    assert (found.problem, found.decided) == (None, True), found
    assert found.undecided is not None
    assert found.undecided.startswith("16 of 32 values: rounding alone moves the reference by ")
    wrong = right.clone()
    wrong[3, 1] *= 1.01
    found = state.compare([wrong])[0]
    assert found.worst_index == (3, 1)
    assert found.problem is not None
    assert found.undecided is not None


def test_on_the_task_s_own_values_the_ceiling_rules_and_the_reason_is_told(tmp_path: Path) -> None:
    state = server(tmp_path, "F.layer_norm(x, (300,)).sum()", "torch.full((16, 300), 0.7)")
    x = flatten_inputs(expect(state, "own-1").arguments).tensors[0]
    off = sequential(normed(x, 1), 0, 1)
    assert float(off.abs()) > 1e-2
    found = state.compare([off])[0]
    assert found.undecided is None
    assert "(rounding alone moves the reference by " in (found.problem or "")
    assert "of 1e-05 that is allowed)" in (found.problem or "")


ROUNDING_DECIDES: dict[str, tuple[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "signs": ("y > 0", lambda y: y > 0),
    "the sign of one number": ("y.sum() > 0", lambda y: y.flip(0).cumsum(0)[-1] > 0),
    "the largest": ("y.argmax()", lambda y: y.argmax()),
    "an order": ("y.sort().indices", lambda y: y.sort().indices),
    "a number of signs": ("(y > 0).sum()", lambda y: (y > 0).sum()),
    "whole numbers": ("(y * 1e6).round().int()", lambda y: (y * 1e6).round().int()),
}


@pytest.mark.parametrize("case", ROUNDING_DECIDES)
@pytest.mark.parametrize("kind", ["constants", "near-constant"])
def test_what_rounding_alone_decides_is_no_wrong_decision(tmp_path: Path, case: str, kind: str) -> None:
    text, decide = ROUNDING_DECIDES[case]
    forward = f"(lambda y: (y, {text}))(F.layer_norm(x, (300,)).sum(-1))"
    state = server(tmp_path, forward, "torch.randn(16, 300)")
    for seed in range(6):
        state.make_draw(kind, seed, 7)
        x = flatten_inputs(state.expect(()).arguments).tensors[0]
        y = sequential(normed(x, 1), 1)
        found = state.compare([y, decide(y)])
        assert [row.problem for row in found] == [None, None], (seed, found)


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("x.sum(-1) > x.mean()", lambda x: x.sum(-1) > x.mean()),
        ("(x > 0).sum(-1)", lambda x: (x > 0).sum(-1)),
        ("torch.tensor([3, 1, 2]).argmax()", lambda x: torch.tensor(0)),
    ],
)
def test_decisions_on_other_values_are_compared_where_an_output_is_undecided(
    tmp_path: Path, text: str, right: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    state = server(tmp_path, f"(F.layer_norm(x, (300,)).sum(-1), {text})", "torch.randn(16, 300)")
    state.make_draw("constants", 5, 7)
    x = flatten_inputs(state.expect(()).arguments).tensors[0]
    y = sequential(normed(x, 1), 1)
    found = state.compare([y, right(x)])
    assert [row.problem for row in found] == [None, None], found
    assert [row.decided for row in found] == [False, True]
    wrong = right(x).logical_not() if right(x).dtype == torch.bool else right(x) + 1
    assert "values differ" in (state.compare([y, wrong])[1].problem or "")


def test_decisions_on_the_task_s_own_values_are_compared_whatever_rounding_does(tmp_path: Path) -> None:
    state = server(tmp_path, "(F.layer_norm(x, (300,)).sum(-1) * 1e3 > 0).sum()", "torch.randn(64, 300)")
    row = expect(state, "own-1").expected[0]
    assert state.compare([row.reference])[0].problem is None
    assert state.compare([row.reference + row.oracle + 1])[0].problem is not None


def shifted_softmax(x: torch.Tensor, top: torch.Tensor) -> torch.Tensor:
    powers = (x - top).exp()
    return powers / powers.sum(-1, keepdim=True)


def online_softmax(x: torch.Tensor) -> torch.Tensor:
    """One column after another, the sum rescaled whenever a larger element comes."""
    top, total = torch.full(x.shape[:1], -math.inf), torch.zeros(x.shape[0])
    for column in x.unbind(-1):
        larger = top.maximum(column)
        total = total * (top - larger).exp() + (column - larger).exp()
        top = larger
    return (x - top[:, None]).exp() / total[:, None]


def two_powers(x: torch.Tensor) -> torch.Tensor:
    """By powers of two, and the scale taken off before the maximum is."""
    scaled = x * math.log2(math.e)
    powers = (scaled - scaled.amax(-1, keepdim=True)).exp2()
    return powers / powers.sum(-1, keepdim=True)


def test_towers_show_a_maximum_that_is_nearly_right(tmp_path: Path) -> None:
    state = server(tmp_path, "F.softmax(x, -1)")
    for seed in range(6):
        state.make_draw("towers", seed, 7)
        x = flatten_inputs(state.expect(()).arguments).tensors[0]
        assert (state.unusable(), state.undecided()) == (None, None)
        top = x.amax(-1, keepdim=True)
        for right in (shifted_softmax(x, top), online_softmax(x), two_powers(x)):
            found = state.compare([right])[0]
            assert (found.problem, found.undecided) == (None, None), (seed, found)
        for nearly in (top.bfloat16().float(), 1.001 * top):
            found = state.compare([shifted_softmax(x, nearly)])[0]
            assert "are NaN where the reference has a number" in (found.problem or ""), (seed, found)


RIGHT_BESIDE_TOWERS: dict[str, tuple[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "norm in sequence": ("F.layer_norm(x, (256,))", lambda x: normed(x, 1)),
    "sum in sequence": ("x.sum(-1)", lambda x: sequential(x, 1)),
    "squares": ("x.square().mean(-1).sqrt()", lambda x: (sequential(x * x, 1) / 256).sqrt()),
    "product in sequence": ("x @ x.T", lambda x: sequential(x[:, None] * x[None], 2)),
    "gelu": ("F.gelu(x)", lambda x: 0.5 * x * (1 + torch.erf(x * math.sqrt(0.5)))),
    "logsumexp": (
        "x.logsumexp(-1)",
        lambda x: x.amax(-1) + sequential((x - x.amax(-1, keepdim=True)).exp(), 1).log(),
    ),
}


@pytest.mark.parametrize("case", RIGHT_BESIDE_TOWERS)
def test_what_is_right_stays_right_beside_towers(tmp_path: Path, case: str) -> None:
    forward, program = RIGHT_BESIDE_TOWERS[case]
    state = server(tmp_path, forward)
    for seed in range(6):
        state.make_draw("towers", seed, 7)
        x = flatten_inputs(state.expect(()).arguments).tensors[0]
        assert (state.unusable(), state.undecided()) == (None, None)
        found = state.compare([program(x)])[0]
        assert (found.problem, found.undecided) == (None, None), (seed, found)


def layers(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Convolutions with batch norms, their operands cut off to so many bits, as tensor cores do."""
    weight = (torch.arange(2304.0) * 577 % 4093 - 2046).div(2048).view(16, 16, 3, 3)
    for _ in range(LAYERS):
        x = functional.conv2d(cut(x, bits), cut(weight, bits), padding=1)
        x = functional.batch_norm(x, None, None, training=True)
    return x


def cut(values: torch.Tensor, bits: int) -> torch.Tensor:
    return (values.view(torch.int32) & (-1 << (23 - bits))).view(torch.float32)


LAYERS = 2


def test_behind_convolutions_in_tf32_other_roundings_count_as_the_reference_s_own_error(
    tmp_path: Path,
) -> None:
    weight = "(torch.arange(2304.) * 577 % 4093 - 2046).div(2048).view(16, 16, 3, 3).to(x.dtype)"
    forward = "x"
    for _ in range(LAYERS):
        forward = f"F.batch_norm(F.conv2d({forward}, w, padding=1), None, None, training=True)"
    lines = f"(lambda w: {forward})({weight})"
    for allowed, accepted in (("tf32", True), ("fp32", False)):
        state = server(tmp_path, lines, "torch.randn(4, 16, 12, 12)", conv_precision=allowed)
        draw = expect(state, "own-1")
        x = flatten_inputs(draw.arguments).tensors[0]
        assert state.compare([layers(x, 23)])[0].problem is None
        found = state.compare([layers(x, 10)])[0]
        assert (found.max_error or 0.0) > 1e-3, "or the contract's ceiling would do"
        assert (found.problem is None) == accepted, found
        assert state.compare([layers(x, 7)])[0].problem is not None


def test_where_memory_ends_before_all_roundings_are_seen_nothing_is_wrong(tmp_path: Path) -> None:
    state = server(tmp_path, "(x if x.dtype == torch.float32 else calls(x)).sum(-1)")
    assert state.reference is not None
    runs: list[int] = []

    def calls(x: torch.Tensor) -> torch.Tensor:
        runs.append(1)
        if len(runs) > 1:
            raise MemoryError
        return x

    vars(state.reference.namespace)["calls"] = calls
    row = expect(state, "scaled").expected[0]
    found = state.compare([row.reference * 1.5])[0]
    assert (found.problem, found.decided) == (None, False)
    assert "no memory" in (found.undecided or "")
