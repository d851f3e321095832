"""Programs in Python were captured with inputs of one shape, and refuse others as native programs do."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store
from stitch_tools.worker.runtime.input_shapes import take
from stitch_tools.worker.runtime.native import ProgramError
from tests.planner.judge_support import SHORT, judged
from tests.planner.test_partial_programs import TEXT
from tests.sampling import sampled

BAKED = {
    "states that an LSTM with dropout starts from": (
        "self.lstm = torch.nn.LSTM(8, 12, 2, dropout=0.2, batch_first=True)",
        "return self.lstm(x)[0]",
    ),
    "states that an LSTM with projections starts from": (
        "self.lstm = torch.nn.LSTM(8, 12, proj_size=5, batch_first=True)",
        "return self.lstm(x)[0]",
    ),
    "states that a GRU in float64 starts from": (
        "self.gru = torch.nn.GRU(8, 12, batch_first=True).double()",
        "return self.gru(x.double())[0]",
    ),
    "ones of the batch's size": ("", "return torch.einsum('bi,bj->bij', x[:, 0], torch.ones(x.shape[0], 3))"),
}
TENSORS = {"x": ("float32", (2, 3), None), "rest.0": ("int64", (4,), (2,))}
CONSTANTS = {"rest.1": ("int", "3"), "name": ("str", "a"), "last": ("NoneType", "None")}


@pytest.mark.slow
@pytest.mark.parametrize("name", sampled(BAKED, 2))
def test_a_leading_size_that_is_part_of_the_program_is_refused(
    name: str, session: TargetSession, tmp_path: Path
) -> None:
    init, forward = BAKED[name]
    path = tmp_path / "model.py"
    text = TEXT.replace("torch.randn(6, 8)", "torch.randn(3, 9, 8)")
    path.write_text(text.format(init=init or "pass", forward=forward), encoding="utf-8")
    check = judged(path, session, Store(tmp_path / "store"), replace(SHORT, batch_probe=True)).check
    assert check.status == "accepted", check.message
    assert {"partial", "specialized"} <= set(check.flags), check.not_checked


def given(x: object = None, rest: object = None, **others: object) -> dict[str, object]:
    strided = torch.zeros(8, dtype=torch.int64)[::2]
    own = {"x": torch.zeros(2, 3), "rest": [strided, 3], "name": "a", "last": None}
    return own | ({} if x is None else {"x": x}) | ({} if rest is None else {"rest": rest}) | others


def test_tensors_are_taken_by_their_paths_whatever_holds_them() -> None:
    arguments = given()
    found = take((), arguments, TENSORS, CONSTANTS)
    assert list(found) == ["x", "rest.0"]
    assert found["x"] is arguments["x"]
    by_place = {"0": TENSORS["x"], "1.h": TENSORS["x"]}
    assert set(take((torch.zeros(2, 3), {"h": torch.ones(2, 3)}), {}, by_place, {})) == {"0", "1.h"}


def test_a_dense_tensor_may_come_with_other_strides() -> None:
    assert take((torch.zeros(3, 2).T,), {}, {"0": TENSORS["x"]}, {})["0"].stride() == (1, 2)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (given(x=torch.zeros(3, 3)), "input x: made for float32[2, 3], given float32[3, 3]"),
        (given(x=torch.zeros(2, 3).double()), "input x: made for float32[2, 3], given float64[2, 3]"),
        (given(x=torch.zeros(2, 3, device="meta")), "input x is on meta, made for the CPU"),
        (given(x=1.0), "input x is no tensor"),
        (given(rest=[torch.zeros(4).long(), 3]), "input rest.0: made for strides (2,), given (1,)"),
        (given(rest=[torch.zeros(8).long()[::2], 4]), "input rest.1: made for int 3, given int 4"),
        (given(name="b"), "input name: made for str a, given str b"),
        (given(last=torch.zeros(1)), "input last: made for NoneType None, given tensor float32[1]"),
        (given(more=1), "input more: made for none, given int 1"),
        ({"x": torch.zeros(2, 3)}, "input rest.0 is missing"),
    ],
)
def test_other_arguments_are_refused_with_the_reason(arguments: dict[str, object], reason: str) -> None:
    with pytest.raises(ProgramError) as refused:
        take((), arguments, TENSORS, CONSTANTS)
    assert (refused.value.status, refused.value.message) == ("unsupported", reason)


def test_constants_that_nobody_observed_are_not_compared() -> None:
    assert set(take((torch.zeros(2, 3), 5), {}, {"0": TENSORS["x"]}, None)) == {"0"}
