"""A task that hardly reacts proves little: probes scale it until it reacts, or the pass is weak."""

from dataclasses import replace

import pytest

from stitch_tools.judge.check_options import CheckOptions
from stitch_tools.models.task import Task
from stitch_tools.models.verdict import Check, Sensitivity
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store
from tests.sampling import sampled
from tests.tools.check_support import checked, make_task, model_new

HEAD = "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n"
TAIL = "def get_init_inputs():\n    return []\n"

DEEP = "*[m for _ in range({}) for m in (nn.Linear(16, 16), nn.ReLU())]"
CLASSIFIER = f"nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), {DEEP}, nn.Linear(16, 5))"
CONVOLUTIONS = (
    "self.features = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),"
    " nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))\nself.classifier = "
)
LAYERS = (
    "nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0), 2, enable_nested_tensor=False)"
)

# Twins of the published tasks whose output does not depend on the input (the number is that of KernelBench's
# level 3), and others of their nature: constructor, forward, inputs, the first probe that reacts or None.
TASKS: dict[str, tuple[str, str, str, str | None]] = {
    "3: a deep perceptron with small weights": (
        "self.layers = nn.Sequential(*[m for _ in range(24) for m in (nn.Linear(32, 32), nn.ReLU())])",
        "self.layers(x)",
        "torch.rand(16, 32)",
        "order-1",
    ),
    "7: branches that are joined and averaged": (
        "self.branches = nn.ModuleList([nn.Conv2d(1, 4, n, padding=n // 2) for n in (1, 3, 5)])\n"
        "self.head = nn.Linear(12, 5)\nnn.init.normal_(self.head.weight, std=1e-5)",
        "self.head(torch.cat([F.relu(branch(x)) for branch in self.branches], 1).mean((2, 3)))",
        "torch.rand(2, 1, 96, 96)",
        "order-1",
    ),
    "11: convolutions and maxima before a deep classifier": (
        CONVOLUTIONS + CLASSIFIER.format(12),
        "self.classifier(self.features(x))",
        "torch.rand(4, 1, 16, 16)",
        "order-1",
    ),
    "12: the same, and deeper": (
        CONVOLUTIONS + CLASSIFIER.format(15),
        "self.classifier(self.features(x))",
        "torch.rand(4, 1, 16, 16)",
        "order-1",
    ),
    "18: channels that are squeezed, expanded and averaged behind a ReLU": (
        # Of so many channels never all are dead behind a ReLU.
        "self.squeeze = nn.Conv2d(1, 24, 1)\nself.one = nn.Conv2d(24, 16, 1)\n"
        "self.three = nn.Conv2d(24, 16, 3, padding=1)\nself.head = nn.Conv2d(32, 24, 1)\n"
        "nn.init.normal_(self.head.weight, std=1e-5)\nnn.init.constant_(self.head.bias, 0.1)",
        "F.relu(self.head(torch.cat([F.relu(part(F.relu(self.squeeze(x))))"
        " for part in (self.one, self.three)], 1))).mean((2, 3))",
        "torch.rand(2, 1, 96, 96)",
        "order-1",
    ),
    "28: a token of attention over the wrong axis": (
        "self.embed, self.token = nn.Linear(6, 8), nn.Parameter(torch.randn(1, 1, 8))\n"
        f"self.layers = {LAYERS}",
        "self.layers(torch.cat((self.token.expand(x.shape[0], -1, -1), self.embed(x)), 1))[:, 0]",
        "torch.rand(2, 5, 6)",
        None,
    ),
    "35: the last step of stacked recurrent layers that begin at random": (
        "self.rnn = nn.LSTM(4, 8, 9, batch_first=True)",
        "self.rnn(x, (torch.randn(9, x.shape[0], 8), torch.randn(9, x.shape[0], 8)))[0][:, -1]",
        "torch.rand(4, 12, 4)",
        "order-1",
    ),
    "a softmax over hardly any logits": (
        "self.fc = nn.Linear(32, 10, bias=False)\nnn.init.normal_(self.fc.weight, std=1e-5)",
        "self.fc(x).softmax(-1)",
        "torch.rand(16, 32)",
        "order-1",
    ),
    "an output that is always zero": (
        "self.fc = nn.Linear(8, 8)",
        "F.relu(self.fc(x) - 10)",
        "torch.rand(16, 8)",
        "order-1 amplified",
    ),
    "an output that saturates": (
        "self.fc = nn.Linear(8, 8)",
        "torch.sigmoid(self.fc(x) + 20)",
        "torch.rand(16, 8)",
        "order-1 amplified",
    ),
    "dead code beside a constant": (
        "self.fc, self.bias = nn.Linear(8, 8), nn.Parameter(torch.randn(8))",
        "0 * self.fc(x) + self.bias",
        "torch.rand(16, 8)",
        None,
    ),
}
DEEP_PERCEPTRON = next(iter(TASKS))


class SensitivitySetup:
    """A warm session."""

    def __init__(self, session: TargetSession, store: Store) -> None:
        self.session, self.store = session, store

    def task(self, init: str, forward: str, inputs: str) -> Task:
        source = f"{HEAD}{_module('Model', init, forward)}def get_inputs():\n    return [{inputs}]\n{TAIL}"
        return make_task(self.store, source)

    def check(self, task: Task, program: str, **switches: bool) -> Check:
        options = replace(CheckOptions(trace=False), **switches)
        return checked(self.session, self.store, task, model_new(self.store, HEAD + program), options)


@pytest.fixture(scope="module")
def setup(one_thread: TargetSession, tmp_path_factory: pytest.TempPathFactory) -> SensitivitySetup:
    root = tmp_path_factory.mktemp("sensitivity")
    return SensitivitySetup(one_thread, Store(root / "store"))


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


@pytest.mark.parametrize("name", sampled(TASKS, 3))
def test_a_task_that_hardly_reacts_is_scaled_until_it_does_or_the_pass_is_weak(
    setup: SensitivitySetup, name: str
) -> None:
    init, forward, inputs, probe = TASKS[name]
    honest = setup.check(setup.task(init, forward, inputs), _module("ModelNew", init, forward))
    assert honest.status == "accepted", honest.message
    assert honest.flags == (() if probe else ("weak",))
    found = _reacting(honest.sensitivity, "inputs")
    assert found is probe if probe is None else (found or "").startswith(probe)
    own = next(row for row in honest.sensitivity if (row.probe, row.subject) == ("own", "inputs"))
    assert own.change is not None
    assert own.tolerance is not None
    assert own.change < own.tolerance


@pytest.mark.parametrize("name", sampled(TASKS, 2))
def test_a_program_that_ignores_its_input_is_caught_or_its_pass_is_weak(
    setup: SensitivitySetup, name: str
) -> None:
    init, forward, inputs, probe = TASKS[name]
    blind = setup.check(setup.task(init, forward, inputs), _blind(init, forward))
    if probe is None:
        assert (blind.status, blind.flags) == ("accepted", ("weak",))
    else:
        assert blind.status in ("incorrect", "rejected_cheat"), blind.message
    assert blind.reference_tolerance is not None
    assert blind.reference_tolerance.ok, "KernelBench's rule is not enough"


def test_the_probe_that_makes_a_task_react_is_what_catches_a_blind_program(setup: SensitivitySetup) -> None:
    init, forward, inputs, _ = TASKS[DEEP_PERCEPTRON]
    task = setup.task(init, forward, inputs)
    blind = _blind(init, forward)
    caught = setup.check(task, blind, structured=False)
    assert caught.status == "incorrect", caught.message
    assert "draw order-1/own-6" in caught.message
    assert setup.check(task, blind, order_one_weights=False, structured=False).flags == ("weak",)
    # Inputs as large as a tower show it under the task's own weights, too.
    towers = setup.check(task, blind, order_one_weights=False)
    assert towers.status in ("incorrect", "rejected_cheat"), towers.message
    assert "draw towers" in towers.message


def test_a_pass_that_rests_on_insensitive_draws_alone_is_weak(setup: SensitivitySetup) -> None:
    # A token that never sees the others, however the weights are scaled.
    task = setup.task(
        "self.token = nn.Parameter(torch.randn(1, 8))", "self.token + 0 * x[:, 0]", "torch.rand(4, 2, 8)"
    )
    for program in ("self.token + 0 * x[:, 0]", "self.token.expand(x.shape[0], 8)"):
        check = setup.check(
            task, _module("ModelNew", "self.token = nn.Parameter(torch.randn(1, 8))", program)
        )
        assert check.status == "accepted", check.message
        assert check.flags == ("weak",)
        assert _reacting(check.sensitivity, "inputs") is None
        assert [row.probe for row in check.sensitivity if row.subject == "inputs"][
            -1
        ] == "order-1 x4 amplified"
        assert _reacting(check.sensitivity, "weights") == "own"


def test_without_the_probes_the_same_pass_is_weak_or_not_seen_at_all(setup: SensitivitySetup) -> None:
    init, forward, inputs, _ = TASKS["a softmax over hardly any logits"]
    task = setup.task(init, forward, inputs)
    honest = _module("ModelNew", init, forward)
    assert setup.check(task, honest, order_one_weights=False).flags == ("weak",)
    assert setup.check(task, honest, sensitivity=False).flags == ("weak",)
    assert setup.check(task, honest, sensitivity=False).sensitivity == ()


def test_an_input_that_only_matters_amplified_gets_a_round_of_its_own(setup: SensitivitySetup) -> None:
    init, forward = "self.fc = nn.Linear(8, 8)", "self.fc(torch.zeros_like(x)) + F.relu(x.abs() - 40)"
    task = setup.task(init, forward, "torch.rand(16, 8)")
    honest = setup.check(task, _module("ModelNew", init, forward))
    assert honest.status == "accepted", honest.message
    assert honest.flags == ()
    assert _reacting(honest.sensitivity, "inputs") == "order-1 amplified"
    assert "order-1 amplified/amplified" in [draw.draw for draw in honest.draws]
    cheat = _module("ModelNew", init, "self.fc(torch.zeros_like(x))")
    caught = setup.check(task, cheat, structured=False)
    assert caught.status == "incorrect", caught.message
    assert "draw order-1 amplified/amplified" in caught.message
    missed = setup.check(task, cheat, structured=False, sensitivity=False)
    assert (missed.status, missed.flags) == ("accepted", ("weak",))


def test_outputs_that_never_move_are_named(setup: SensitivitySetup) -> None:
    task = setup.task("self.fc = nn.Linear(8, 8)", "(self.fc(x), x.shape[0])", "torch.rand(16, 8)")
    check = setup.check(task, _module("ModelNew", "self.fc = nn.Linear(8, 8)", "(self.fc(x), x.shape[0])"))
    assert [row.unmoved for row in check.sensitivity] == [("1",), ("1",)]
    assert check.flags == ()
