"""A wrong program that shows its steps is told which of them differs first."""

import pytest

from stitch_tools.judge.borders import border_names, describe_borders
from stitch_tools.judge.check_options import CheckOptions
from stitch_tools.models.verdict import BorderResult, Check
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store
from tests.tools.check_support import PROGRAMS, checked, make_program, make_task

REFERENCE = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.relu, self.second = nn.Linear(16, 24), nn.ReLU(inplace=True), nn.Linear(24, 8)

    def forward(self, x):
        return self.second(self.relu(self.first(x)))

def get_inputs():
    return [torch.randn(4, 16)]

def get_init_inputs():
    return []
"""
FEW = CheckOptions(own_draws=1, structured=False, batch_probe=False, second_weights=False, trace=False)


def check(session: TargetSession, store: Store, fault: str, options: CheckOptions = FEW) -> Check:
    files = {
        "two_layers.cpp": (PROGRAMS / "two_layers.cpp").read_bytes(),
        "fault.h": f"#define FAULT {fault}\n".encode(),
    }
    program = make_program(store, files, "two_layers.cpp")
    return checked(session, store, make_task(store, REFERENCE), program, options)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(tmp_path_factory.mktemp("borders") / "store")


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("FIRST", {"first": False, "relu": None, "second": False, "nowhere": None}),
        ("SECOND", {"first": True, "relu": True, "second": False, "nowhere": None}),
        ("HIDDEN", {"first": False, "relu": True, "second": False, "nowhere": None}),
        ("SHORT", {"first": False, "relu": True, "second": False, "nowhere": None}),
    ],
)
def test_the_first_border_that_differs_is_named(
    one_thread: TargetSession, store: Store, fault: str, expected: dict[str, bool | None]
) -> None:
    found = check(one_thread, store, fault)
    assert found.status == "incorrect", found.message
    rows = {row.name: row for row in found.borders}
    assert list(rows) == list(expected)
    for name, ok in expected.items():
        # A wrong value of the first layer may vanish in relu.
        assert name == "relu" or rows[name].ok == ok, rows[name]
    assert "no submodule of this name" in rows["nowhere"].problem
    wrong = next(row for row in found.borders if row.ok is False)
    assert wrong.problem.startswith("draw own-1: ")
    assert f"{wrong.name} is the first that differs" in found.message


def test_a_right_program_and_one_that_is_not_to_be_looked_into_have_no_borders(
    one_thread: TargetSession, store: Store
) -> None:
    right = check(one_thread, store, "NONE")
    assert (right.status, right.borders) == ("accepted", ())


def test_where_all_borders_are_right_the_fault_lies_behind_them() -> None:
    rows = [BorderResult(name="a", ok=True), BorderResult(name="b", ok=None, problem="no such thing")]
    assert describe_borders(rows) == "; it is right as far as a, the last step that it shows"
    assert describe_borders(rows[1:]) == ""


def test_names_come_from_the_text_each_once() -> None:
    calls = ['("a.0", x, 4)', '( "b", y, 4)', '("a.0", z, 4)', "(name, z, 4)"]
    source = "\n".join(f"STITCH_BORDER{call};" for call in calls)
    assert border_names(source) == ("a.0", "b")
