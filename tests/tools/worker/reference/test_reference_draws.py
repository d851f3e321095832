"""Draws: the task's own inputs from hidden seeds, and variations within what the contract allows."""

import contextlib
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from stitch_tools.protocol.messages import encode
from stitch_tools.protocol.messages_reference import LoadReference, ReferenceSource
from stitch_tools.worker.reference.draw_kinds import BATCHES, STRUCTURED
from stitch_tools.worker.reference.draws import DrawUnavailableError, InputBounds, make_draw, structures_of
from stitch_tools.worker.reference.load_reference import LoadedReference
from stitch_tools.worker.reference.reference_operations import handlers
from stitch_tools.worker.reference.reference_state import ServerSettings, ServerState
from stitch_tools.worker.trees import flatten_inputs


def task(folder: Path, inputs: str) -> LoadedReference:
    source = f"import torch\ndef Model(*xs):\n    return xs\ndef get_inputs():\n    return {inputs}\n"
    (folder / "drawn_from.py").write_text(source, encoding="utf-8")
    return LoadedReference(ReferenceSource(str(folder), "drawn_from.py", init_inputs=None))


def draw(reference: LoadedReference, kind: str, seed: int = 5, **bounds: Any) -> tuple[Any, ...]:
    return cast("tuple[Any, ...]", make_draw(reference, kind, seed, InputBounds(**bounds)))


def test_equal_seeds_give_equal_draws_in_fresh_memory(tmp_path: Path) -> None:
    reference = task(tmp_path, "[torch.rand(64, 8)]")
    changing = set(STRUCTURED) - {"zeros", "permuted", "flipped"}
    for kind in ("own-1", "altered-3", *sorted(changing), *BATCHES):
        (one,), (two,), (other,) = draw(reference, kind), draw(reference, kind), draw(reference, kind, seed=6)
        assert torch.equal(one, two)
        assert one.data_ptr() != two.data_ptr()
        assert not torch.equal(one, other)


def test_each_structured_kind_has_its_structure(tmp_path: Path) -> None:
    reference = task(tmp_path, "[torch.rand(64, 256)]")
    (own,) = draw(reference, "own-1")
    (signed,) = draw(reference, "signed")
    assert torch.equal(signed.abs(), own)
    assert 0.3 < float((signed < 0).float().mean()) < 0.7
    (scaled,) = draw(reference, "scaled")
    factor = float((scaled / own).nanmean())
    assert 4 <= factor <= 16 or 1 / 16 <= factor <= 1 / 4
    (outliers,) = draw(reference, "outliers")
    assert 1 <= int((outliers != own).sum()) < 60
    assert float(outliers.max()) > 10
    (peaks,) = draw(reference, "peaks")
    rows, columns = (peaks != own).nonzero().unbind(1)
    assert rows.tolist() == list(range(64))
    assert {0, 255} < set(columns.tolist())
    assert float(peaks.max()) == pytest.approx(8 * float(own.square().mean().sqrt()))
    (spikes,) = draw(reference, "spikes")
    rows, columns = (spikes.abs() > 100).nonzero().unbind(1)
    assert rows.tolist() == list(range(64))
    high = {int(column) for row, column in zip(rows, columns, strict=True) if spikes[row, column] > 0}
    assert {0, 15, 16, 127, 128, 255} < high
    (towers,) = draw(reference, "towers")
    heights = towers.abs().amax(1) / float(own.square().mean().sqrt())
    assert (towers.abs() > 100).sum(1).tolist() == [1] * 64
    assert 2**17 <= float(heights.min()) < 2**18 < 2**19 < float(heights.max()) <= 2**20
    assert bool((towers > 100).any())
    assert bool((towers < -100).any())
    (constants,) = draw(reference, "constants")
    assert len(constants.unique()) == 1
    (rows,) = draw(reference, "near-constant")
    assert 0 < float((rows.std(1) / rows.mean(1)).max()) < 0.1
    (negative,) = draw(reference, "negative")
    assert torch.equal(negative, -own)
    (zeros,) = draw(reference, "zeros")
    assert not zeros.any()


def test_of_each_row_of_a_matrix_some_spike_lies_just_beyond_the_diagonal(tmp_path: Path) -> None:
    (values,) = draw(task(tmp_path, "[torch.randn(4, 9, 9)]"), "spikes")
    found = {(int(row), int(column)) for _, row, column in (values.abs() > 100).nonzero()}
    assert {(row, (row + 1) % 9) for row in range(9)} <= found


def test_the_contract_s_bounds_are_kept(tmp_path: Path) -> None:
    reference = task(tmp_path, "[torch.rand(64, 8) + 0.5]")
    for kind in STRUCTURED:
        try:
            (values,) = draw(reference, kind, low=0.25)
        except DrawUnavailableError:
            assert kind in ("signed", "negative", "zeros", "permuted", "flipped")
            continue
        assert float(values.min()) >= 0.25
    for kind in ("scaled", "outliers"):
        with pytest.raises(DrawUnavailableError, match="on both sides"):
            draw(reference, kind, low=0.0, high=2.0)


def test_no_value_is_larger_than_the_formats_on_its_way_hold(tmp_path: Path) -> None:
    with pytest.raises(DrawUnavailableError, match="holds no such values"):
        draw(task(tmp_path, "[torch.rand(4, 8).half()]"), "towers")
    reference = task(tmp_path, "[torch.rand(4, 8)]")
    state = ServerState()
    load = LoadReference(
        ReferenceSource(str(tmp_path), "drawn_from.py", init_inputs=None), rtol=1e-3, atol=1e-5,
        matmul_precision="fp32", conv_precision="fp32", input_low=None, input_high=None, input_writes=True,
    )  # fmt: skip
    for conv, largest in (("bf16", math.inf), ("fp16", 65504.0)):
        request = encode(replace(load, conv_precision=conv))
        handlers(state)[load.op](request)
        assert state.settings.bounds.largest == largest
    assert draw(reference, "towers")[0].isfinite().all()
    with pytest.raises(DrawUnavailableError, match="holds no such values"):
        draw(reference, "towers", largest=65504.0)


def test_each_sign_has_a_draw_with_nothing_else(tmp_path: Path) -> None:
    reference = task(tmp_path, "[torch.randn(8, 16)]")
    assert float(draw(reference, "negative")[0].max()) < 0
    assert float(draw(reference, "near-constant")[0].min()) > 0
    with pytest.raises(DrawUnavailableError, match="no positive values"):
        draw(task(tmp_path, "[-torch.rand(8, 16)]"), "negative")
    with pytest.raises(DrawUnavailableError, match="negative inputs"):
        draw(reference, "negative", low=0.0)
    assert float(draw(reference, "negative", low=-0.5)[0].min()) == -0.5


def test_signs_are_not_drawn_again_where_the_task_has_both(tmp_path: Path) -> None:
    with pytest.raises(DrawUnavailableError, match="have both signs"):
        draw(task(tmp_path, "[torch.randn(64)]"), "signed")


def test_integers_and_masks_are_only_permuted(tmp_path: Path) -> None:
    reference = task(tmp_path, "[torch.rand(40, 3), torch.randint(0, 9, (40,)), torch.rand(40) > 0.8]")
    own, permuted = draw(reference, "own-1"), draw(reference, "permuted")
    assert torch.equal(own[0], permuted[0])
    assert not torch.equal(own[1], permuted[1])
    assert torch.equal(own[1].sort().values, permuted[1].sort().values)
    assert int(own[2].sum()) == int(permuted[2].sum())
    for kind in ("scaled", "zeros", "outliers"):
        assert torch.equal(draw(reference, kind)[1], own[1])
    integers = task(tmp_path, "[torch.randint(0, 9, (40,))]")
    with pytest.raises(DrawUnavailableError, match="no floating inputs"):
        draw(integers, "zeros")


def test_inputs_without_elements_are_not_said_to_be_missing_or_of_different_sizes(tmp_path: Path) -> None:
    reference = task(tmp_path, "[torch.randn(0, 16), torch.ones(0, dtype=torch.int64)]")
    for kind, reason in (
        ("zeros", "floating inputs have no elements"),
        ("batch-probe", "leading size is 0"),
        ("permuted", "no integer or bool inputs of several elements"),
    ):
        with pytest.raises(DrawUnavailableError, match=reason):
            draw(reference, kind)


def test_some_values_of_a_mask_are_flipped_and_no_other_integers(tmp_path: Path) -> None:
    inputs = "[torch.rand(64, 3), torch.ones(64, 64) > 0, torch.ones(9, dtype=torch.int64), torch.arange(9)]"
    reference = task(tmp_path, inputs)
    own, flipped = draw(reference, "own-1"), draw(reference, "flipped")
    assert torch.equal(own[0], flipped[0])
    assert 0.8 < float(flipped[1].float().mean()) < 0.95
    assert 0 <= int(flipped[2].min()) < int(flipped[2].max()) == 1
    assert torch.equal(own[3], flipped[3])
    with pytest.raises(DrawUnavailableError, match="no masks"):
        draw(task(tmp_path, "[torch.arange(9)]"), "flipped")


def test_an_altered_draw_differs_in_so_many_values_from_that_of_its_seed(tmp_path: Path) -> None:
    reference = task(tmp_path, "[torch.rand(64, 8), torch.randint(0, 9, (40,))]")
    own, altered = draw(reference, "own-1"), draw(reference, "altered-1")
    assert int((own[0] != altered[0]).sum()) == 1
    assert torch.equal(own[1], altered[1])
    assert 20 < int((own[0] != draw(reference, "altered-32")[0]).sum()) <= 32
    indices = task(tmp_path, "[torch.arange(40).flip(0)]")
    assert int((draw(indices, "own-1")[0] != draw(indices, "altered-1")[0]).sum()) == 1
    with pytest.raises(DrawUnavailableError, match="one value everywhere"):
        draw(task(tmp_path, "[torch.ones(40)]"), "altered-32")


@pytest.mark.parametrize(
    "inputs",
    [
        "[torch.rand(6, 4).t()]",
        "[torch.rand(8, 10)[::2, 1:7]]",
        "[torch.rand(1, 5).expand(3, 5)]",
        "[torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)]",
        "[torch.rand(0, 5)]",
    ],
)
def test_strides_of_the_task_s_own_inputs_are_kept(tmp_path: Path, inputs: str) -> None:
    reference = task(tmp_path, inputs)
    (made,) = cast("tuple[torch.Tensor]", reference.make_inputs(5))
    for kind in ("own-1", *STRUCTURED):
        try:
            (values,) = draw(reference, kind)
        except DrawUnavailableError:
            continue
        assert (values.shape, values.stride()) == (made.shape, made.stride()), kind


def test_low_precision_inputs_stay_low_precision(tmp_path: Path) -> None:
    reference = task(tmp_path, "[torch.rand(16, 8).bfloat16()]")
    assert all(draw(reference, kind)[0].dtype == torch.bfloat16 for kind in ("own-1", "signed", "outliers"))


@pytest.mark.parametrize(("size", "other"), [(1, 2), (2, 3), (3, 2), (8, 5), (64, 33)])
def test_the_batch_probe_changes_every_leading_size_alike(tmp_path: Path, size: int, other: int) -> None:
    reference = task(tmp_path, f"[torch.rand({size}, 3), torch.randint(0, 9, ({size},)), 7]")
    probe = draw(reference, "batch-probe")
    assert [tensor.shape[0] for tensor in probe[:2]] == [other, other]
    assert probe[2] == 7


@pytest.mark.parametrize(("size", "larger"), [(1, 2), (2, 4), (8, 13), (64, 97)])
def test_a_larger_leading_size_and_one_are_tried_too(tmp_path: Path, size: int, larger: int) -> None:
    reference = task(tmp_path, f"[torch.rand({size}, 3)]")
    assert draw(reference, "batch-larger")[0].shape[0] == larger
    if size > 1:
        assert draw(reference, "batch-1")[0].shape[0] == 1
        return
    with pytest.raises(DrawUnavailableError, match="own leading size"):
        draw(reference, "batch-1")


def test_inputs_without_a_common_leading_size_are_not_probed(tmp_path: Path) -> None:
    for inputs in ("[torch.rand(4, 3), torch.rand(5, 3)]", "[torch.rand(4), torch.rand(())]", "[3]"):
        with pytest.raises(DrawUnavailableError, match="leading size"):
            draw(task(tmp_path, inputs), "batch-probe")


def test_named_inputs_stay_named(tmp_path: Path) -> None:
    probe = draw(task(tmp_path, "{'x': torch.rand(4, 3), 'flag': True}"), "batch-probe")
    assert probe["x"].shape == (3, 3)  # pyright: ignore[reportCallIssue, reportArgumentType]
    assert probe["flag"] is True  # pyright: ignore[reportCallIssue, reportArgumentType]


def masked_server(folder: Path) -> ServerState:
    """Scores and a causal mask that is added to them."""
    (folder / "masked.py").write_text(
        "import torch\nfrom torch import nn\n"
        "class Model(nn.Module):\n    def forward(self, x, mask):\n"
        "        return torch.softmax(x + mask, dim=-1)\n"
        "def get_inputs():\n    mask = torch.full((16, 16), float('-inf')).triu(1)\n"
        "    return [torch.randn(16, 16), mask]\ndef get_init_inputs():\n    return []\n",
        encoding="utf-8",
    )
    state = ServerState()
    state.load(ReferenceSource(str(folder), "masked.py"), ServerSettings())
    state.set_weights(3)
    return state


@pytest.mark.parametrize("kind", [kind for kind in STRUCTURED if kind not in ("permuted", "flipped")])
def test_a_mask_of_minus_infinity_makes_no_nan(tmp_path: Path, kind: str) -> None:
    state = masked_server(tmp_path)
    for seed in range(3):
        state.make_draw(kind, seed, 7)
        draw = state.expect(())
        scores, mask = flatten_inputs(draw.arguments).tensors
        assert bool(scores.isfinite().all())
        whole = kind in ("constants", "zeros", "near-constant")
        # Where nothing else is left, a program that takes the mask for causal is wrong.
        assert bool(mask.isfinite().all()) is whole
        assert not bool(draw.expected[0].reference.isnan().any())


@pytest.mark.parametrize(
    ("maker", "kept"),
    [
        ("torch.rand(32, 32).tril()", lambda x: torch.equal(x, x.tril())),
        (
            "torch.diag_embed(torch.rand(4, 16))",
            lambda x: torch.equal(x, torch.diag_embed(x.diagonal(0, -2, -1))),
        ),
        ("(lambda a: a + a.T)(torch.rand(32, 32))", lambda x: torch.equal(x, x.T)),
        ("torch.rand(4, 64).sort(-1).values", lambda x: torch.equal(x, x.sort(-1).values)),
        (
            "torch.nn.functional.normalize(torch.randn(16, 64), dim=-1)",
            lambda x: torch.allclose(x.norm(dim=-1), torch.ones(16), atol=1e-5),
        ),
        ("torch.rand(16, 64).softmax(-1)", lambda x: torch.allclose(x.sum(-1), torch.ones(16), atol=1e-5)),
    ],
    ids=["triangular", "diagonal", "symmetric", "ascending", "of length one", "distributions"],
)
def test_what_every_draw_of_the_maker_has_is_kept(
    tmp_path: Path, maker: str, kept: Callable[[torch.Tensor], bool]
) -> None:
    reference = task(tmp_path, f"[{maker}]")
    (own,) = draw(reference, "own-1")
    others = 0
    for kind in ("altered-32", *STRUCTURED):
        with contextlib.suppress(DrawUnavailableError):
            (other,) = draw(reference, kind)
            assert kept(other), kind
            others += not torch.equal(own, other)
    assert others > 4
    for kind in BATCHES:
        with contextlib.suppress(DrawUnavailableError):
            (other,) = draw(reference, kind)
            assert other.dim() > 2 or own.shape[0] != own.shape[1], "half of a square matrix has no such half"


def test_numbers_that_depend_on_each_other_are_left_alone(tmp_path: Path) -> None:
    table = "torch.where(torch.arange(8) < 5, torch.randperm(64)[:32].view(4, 8), -1)"
    lengths = "torch.randint(1, 5, (4,))"
    reference = task(tmp_path, f"[torch.rand(64, 8), {table}, {lengths}, torch.arange(9).cumsum(0)]")
    own = draw(reference, "own-1")
    for kind in ("altered-32", "signed", "zeros"):
        assert all(map(torch.equal, draw(reference, kind)[1:], own[1:])), kind
    tokens = task(tmp_path, "[torch.randint(99, (64, 1)), torch.randint(99, (64,))]")
    for kind in ("altered-32", "permuted"):
        changed = zip(draw(tokens, kind), draw(tokens, "own-1"), strict=True)
        assert not any(torch.equal(*pair) for pair in changed), "nothing says that they depend on each other"
    (numbers,) = draw(task(tmp_path, "[torch.randint(-8, 8, (64,), dtype=torch.int8)]"), "permuted")
    assert numbers.min() < 0
    with pytest.raises(DrawUnavailableError, match="beside ascending numbers"):
        draw(reference, "permuted")


@pytest.mark.parametrize(
    ("mask", "stays"),
    [
        ("torch.ones(16, 16).tril().bool()", True),
        ("torch.arange(16) < torch.randint(1, 16, (4, 1))", True),
        ("torch.eye(16)[torch.randint(16, (4,))].long()", True),
        ("torch.ones(4, 16).bool()", False),
        ("torch.rand(4, 16) < 0.5", False),
    ],
    ids=["triangular", "lengths", "one-hot", "all true", "random"],
)
def test_masks_with_a_shape_stay_and_others_are_turned_over(tmp_path: Path, mask: str, stays: bool) -> None:
    reference = task(tmp_path, f"[torch.rand(4, 16), {mask}]")
    if stays:
        with pytest.raises(DrawUnavailableError, match="the maker's values stay"):
            draw(reference, "flipped")
    else:
        assert not torch.equal(draw(reference, "flipped")[1], draw(reference, "own-1")[1])


def test_what_holds_by_chance_or_in_one_draw_only_is_no_structure(tmp_path: Path) -> None:
    reference = task(
        tmp_path, "[torch.relu(torch.randn(32, 32)), torch.zeros(2, 8), torch.randint(9, (64,))]"
    )
    assert [row.describe() for row in structures_of(reference)] == ["", "", ""]
    signed, hidden, numbers = draw(reference, "permuted")
    assert sorted(numbers.tolist()) == sorted(draw(reference, "own-1")[2].tolist())
    assert signed.shape == (32, 32)
    assert not hidden.any()
