"""A task that hardly reacts proves little: probes scale it until it reacts, or the pass is weak."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from stitch_tools.check import CheckOptions, ReferenceServer, check_program
from stitch_tools.models import Check, Sensitivity, Task
from stitch_tools.processes.interpreter import find_interpreter
from stitch_tools.processes.session import TargetSession
from stitch_tools.store import Store
from tests.tools.check_support import make_task, model_new

HEAD = "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n"
TAIL = "def get_init_inputs():\n    return []\n"

# Of the same nature as published tasks whose output does not depend on the input: name, constructor, forward,
# inputs, the first probe that reacts.
TASKS = {
    "a deep perceptron with small weights": (
        "self.layers = nn.Sequential(*[m for _ in range(24) for m in (nn.Linear(32, 32), nn.ReLU())])",
        "self.layers(x)",
        "torch.rand(16, 32)",
        "order-1",
    ),
    "a softmax over hardly any logits": (
        "self.fc = nn.Linear(32, 10, bias=False)\nnn.init.normal_(self.fc.weight, std=1e-5)",
        "self.fc(x).softmax(-1)",
        "torch.rand(16, 32)",
        "order-1",
    ),
    "pooling that leaves nothing": (
        "self.conv = nn.Conv2d(1, 4, 3, padding=1)\nself.head = nn.Linear(4, 5)\n"
        "nn.init.normal_(self.head.weight, std=1e-3)",
        "self.head(self.conv(x).mean((2, 3)))",
        "torch.rand(2, 1, 96, 96)",
        "order-1",
    ),
    "the last step of stacked recurrent layers": (
        "self.rnn = nn.LSTM(4, 8, 9, batch_first=True)",
        "self.rnn(x)[0][:, -1]",
        "torch.rand(4, 12, 4)",
        "order-1",
    ),
}


class Room:
    """A warm session."""

    def __init__(self, session: TargetSession, store: Store) -> None:
        self.session, self.store = session, store

    def task(self, init: str, forward: str, inputs: str) -> Task:
        source = f"{HEAD}{_module('Model', init, forward)}def get_inputs():\n    return [{inputs}]\n{TAIL}"
        return make_task(self.store, source)

    def check(self, task: Task, program: str, **switches: bool) -> Check:
        options = replace(CheckOptions(trace=False), **switches)
        with ReferenceServer(self.session, task, self.store) as server:
            return check_program(
                task,
                model_new(self.store, HEAD + program),
                None,
                session=self.session,
                store=self.store,
                facts=server.observe(),
                options=options,
                reference=server,
            )


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Room]:
    root = tmp_path_factory.mktemp("sensitivity")
    with TargetSession(find_interpreter(None, root), threads=1, scratch_root=root / "scratch") as session:
        yield Room(session, Store(root / "store"))


def _module(name: str, init: str, forward: str) -> str:
    rows = "".join(f"        {row}\n" for row in init.splitlines())
    start = f"class {name}(nn.Module):\n    def __init__(self):\n        super().__init__()\n{rows}"
    return f"{start}    def forward(self, x):\n        return {forward}\n"


def _blind(init: str, forward: str) -> str:
    """A program that computes everything, but always for the same input."""
    return _module("ModelNew", init, forward).replace(
        "        return", "        x = torch.full_like(x, 0.5)\n        return"
    )


def _reacting(rows: tuple[Sensitivity, ...], subject: str) -> str | None:
    return next((row.probe for row in rows if row.subject == subject and row.reacts), None)


@pytest.mark.parametrize("name", TASKS)
def test_a_task_that_hardly_reacts_is_scaled_until_it_does(room: Room, name: str) -> None:
    init, forward, inputs, probe = TASKS[name]
    task = room.task(init, forward, inputs)
    honest = room.check(task, _module("ModelNew", init, forward))
    assert honest.status == "accepted", honest.message
    assert honest.flags == ()
    assert (_reacting(honest.sensitivity, "inputs") or "").startswith(probe)
    own = next(row for row in honest.sensitivity if (row.probe, row.subject) == ("own", "inputs"))
    assert own.change is not None
    assert own.tolerance is not None
    assert own.change < own.tolerance


def test_a_program_that_ignores_its_input_is_caught_where_kernelbench_s_rule_is_not_enough(
    room: Room,
) -> None:
    init, forward, inputs, _ = TASKS["a deep perceptron with small weights"]
    task = room.task(init, forward, inputs)
    blind = _blind(init, forward)
    caught = room.check(task, blind)
    assert caught.status == "incorrect", caught.message
    assert "draw order-1/own-6" in caught.message
    assert room.check(task, blind, order_one_weights=False).flags == ("weak",)
    assert caught.reference_tolerance is not None
    assert caught.reference_tolerance.ok


def test_a_pass_that_rests_on_insensitive_draws_alone_is_weak(room: Room) -> None:
    # A token that never sees the others, however the weights are scaled.
    task = room.task(
        "self.token = nn.Parameter(torch.randn(1, 8))", "self.token + 0 * x[:, 0]", "torch.rand(4, 2, 8)"
    )
    for program in ("self.token + 0 * x[:, 0]", "self.token.expand(x.shape[0], 8)"):
        check = room.check(task, _module("ModelNew", "self.token = nn.Parameter(torch.randn(1, 8))", program))
        assert check.status == "accepted", check.message
        assert check.flags == ("weak",)
        assert _reacting(check.sensitivity, "inputs") is None
        assert [row.probe for row in check.sensitivity if row.subject == "inputs"][
            -1
        ] == "order-1 x4 amplified"
        assert _reacting(check.sensitivity, "weights") == "own"


def test_without_the_probes_the_same_pass_is_weak_or_not_seen_at_all(room: Room) -> None:
    init, forward, inputs, _ = TASKS["a softmax over hardly any logits"]
    task = room.task(init, forward, inputs)
    honest = _module("ModelNew", init, forward)
    assert room.check(task, honest, order_one_weights=False).flags == ("weak",)
    assert room.check(task, honest, sensitivity=False).flags == ("weak",)
    assert room.check(task, honest, sensitivity=False).sensitivity == ()


def test_an_input_that_only_matters_amplified_gets_a_round_of_its_own(room: Room) -> None:
    init, forward = "self.fc = nn.Linear(8, 8)", "self.fc(torch.zeros_like(x)) + F.relu(x.abs() - 40)"
    task = room.task(init, forward, "torch.rand(16, 8)")
    honest = room.check(task, _module("ModelNew", init, forward))
    assert honest.status == "accepted", honest.message
    assert honest.flags == ()
    assert _reacting(honest.sensitivity, "inputs") == "order-1 amplified"
    assert "order-1 amplified/amplified" in [draw.draw for draw in honest.draws]
    cheat = _module("ModelNew", init, "self.fc(torch.zeros_like(x))")
    caught = room.check(task, cheat, structured=False)
    assert caught.status == "incorrect", caught.message
    assert "draw order-1 amplified/amplified" in caught.message
    missed = room.check(task, cheat, structured=False, sensitivity=False)
    assert (missed.status, missed.flags) == ("accepted", ("weak",))


def test_outputs_that_never_move_are_named(room: Room) -> None:
    task = room.task("self.fc = nn.Linear(8, 8)", "(self.fc(x), x.shape[0])", "torch.rand(16, 8)")
    check = room.check(task, _module("ModelNew", "self.fc = nn.Linear(8, 8)", "(self.fc(x), x.shape[0])"))
    assert [row.unmoved for row in check.sensitivity] == [("1",), ("1",)]
    assert check.flags == ()
