"""Each probe catches a program that passes without it."""

from dataclasses import replace

import pytest

from stitch_tools.judge.check_options import CheckOptions
from stitch_tools.judge.correctness.reference_variation import describe_variation
from stitch_tools.models.program import Program
from stitch_tools.models.task import Contract, ReferenceFacts, Task
from stitch_tools.models.verdict import Check, DrawResult, OutputError
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store
from tests.tools.check_support import (
    checked,
    faulty_program,
    linear_relu_task,
    make_task,
    model_new,
    noted,
)

HEAD = "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n"
MAKERS = "def get_inputs():\n    return [torch.rand(16, 8)]\ndef get_init_inputs():\n    return []\n"


class ServerContext:
    """A warm session."""

    def __init__(self, session: TargetSession, store: Store) -> None:
        self.session, self.store = session, store

    def check(self, task: Task, program: Program, **switches: bool) -> Check:
        options = replace(CheckOptions(trace=False), **switches)
        return checked(self.session, self.store, task, program, options)

    def python(
        self, reference: str, program: str, contract: Contract | None = None, /, **switches: bool
    ) -> Check:
        task = make_task(self.store, HEAD + reference, contract=contract or Contract())
        return self.check(task, model_new(self.store, HEAD + program), **switches)


@pytest.fixture(scope="module")
def room(one_thread: TargetSession, tmp_path_factory: pytest.TempPathFactory) -> ServerContext:
    root = tmp_path_factory.mktemp("probes")
    return ServerContext(one_thread, Store(root / "store"))


def module(name: str, forward: str, init: str = "") -> str:
    lines = [f"class {name}(nn.Module):"]
    if init:
        lines += [
            "    def __init__(self):",
            "        super().__init__()",
            *(f"        {row}" for row in init.splitlines()),
        ]
    lines += ["    def forward(self, x):", *(f"        {row}" for row in forward.splitlines())]
    return "\n".join(lines) + "\n"


DOUBLED = module("Model", "return x * 2") + MAKERS
LINEAR = "self.fc = nn.Linear(8, 8)"
CASES = {
    "mutate_storage": (
        DOUBLED,
        module(
            "ModelNew",
            "if x.data_ptr() != self.seen:\n    self.seen, self.y = x.data_ptr(), x * 2\nreturn self.y",
            "self.seen = 0",
        ),
        "rejected_cheat",
        "draw own-2",
    ),
    "structured": (
        module("Model", "return F.relu(x)") + MAKERS,
        module("ModelNew", "return x.clone()"),
        "incorrect",
        "draw signed",
    ),
    "batch_probe": (
        DOUBLED,
        module("ModelNew", "y = x.clone()\ny[:16] *= 2\nreturn y if len(x) == 16 else x"),
        "rejected_cheat",
        "draw batch-probe",
    ),
    "order_one_weights": (
        module("Model", "return self.fc(x)", LINEAR + "\nnn.init.zeros_(self.fc.bias)") + MAKERS,
        module("ModelNew", "return F.linear(x, self.fc.weight)", LINEAR + "\nnn.init.zeros_(self.fc.bias)"),
        "incorrect",
        "draw order-1/own-6",
    ),
}  # fmt: skip


@pytest.mark.parametrize("probe", CASES)
def test_a_cheat_passes_without_its_probe_and_is_caught_with_it(room: ServerContext, probe: str) -> None:
    reference, cheat, status, words = CASES[probe]
    without = room.python(reference, cheat, **{probe: False})
    assert without.status == "accepted", without.message
    caught = room.python(reference, cheat)
    assert caught.status == status, caught.message
    assert words in caught.message


def test_writes_to_inputs_are_seen(room: ServerContext) -> None:
    check = room.python(DOUBLED, module("ModelNew", "y = x * 2\nx.zero_()\nreturn y"))
    assert check.status == "incorrect", check.message
    assert "draw own-1: the program modified its inputs" in check.message


def test_writes_to_inputs_are_seen_on_draws_of_ours_too(room: ServerContext) -> None:
    reference = module("Model", "return F.relu(x)") + MAKERS
    clearing = module("ModelNew", "return x.clamp_(min=0) if (x < 0).any() else x.clone()")
    check = room.python(reference, clearing)
    assert check.status == "incorrect", check.message
    assert "draw signed: the program modified its inputs" in check.message


# So many values that the one which is altered is hardly ever the one that is looked at.
MANY = DOUBLED.replace("torch.rand(16, 8)", "torch.rand(1024, 512)")
RECOGNISED = {
    "version": ("state = (id(x), x._version)", "rejected_cheat", "draw own-2", "cached_results"),
    "one value": ("state = x[0, 0].item()", "incorrect", "draw altered", "unchanged_results"),
}


@pytest.mark.parametrize("name", RECOGNISED)
def test_inputs_that_are_recognised_by_less_than_their_values_get_old_results(
    room: ServerContext, name: str
) -> None:
    key, status, draw, rule = RECOGNISED[name]
    forward = (
        f"{key}\nif state != self.state:\n    self.state, self.x, self.y = state, x, x * 2\nreturn self.y"
    )
    cheat = module("ModelNew", forward, "self.state = None")
    assert room.python(MANY, cheat, mutate_storage=False).status == "accepted"
    check = room.python(MANY, cheat)
    assert check.status == status, check.message
    assert draw in check.message
    assert rule in noted(check)


def test_one_number_everywhere_is_wrong_and_not_a_cached_result(room: ServerContext) -> None:
    reference = module(
        "Model", "return self.norm(x).mean(-1, keepdim=True).expand(-1, 8)", "self.norm = nn.LayerNorm(8)"
    )
    check = room.python(reference + MAKERS, module("ModelNew", "return torch.zeros(len(x), 8)"))
    assert check.status == "incorrect", check.message
    assert "cached_results" not in noted(check)


def test_sizes_above_the_task_s_own_and_one_must_be_right_or_refused(room: ServerContext) -> None:
    larger = module("ModelNew", "y = x * 2\ny[16:] = 0\nreturn y")
    single = module("ModelNew", "return x * 2 if len(x) > 1 else x")
    for program, draw in ((larger, "batch-larger"), (single, "batch-1")):
        check = room.python(DOUBLED, program)
        assert check.status == "rejected_cheat", check.message
        assert f"draw {draw}" in check.message
    short = module("ModelNew", "if len(x) > 16:\n    raise MemoryError('room for 16')\nreturn x * 2")
    check = room.python(DOUBLED, short)
    assert (check.status, check.flags) == ("accepted", ("specialized",)), check.message


def test_nothing_divided_by_nothing_must_not_become_a_number(room: ServerContext) -> None:
    reference = module("Model", "return x / x.sum(-1, keepdim=True)") + MAKERS
    guarded = module("ModelNew", "return (x / x.sum(-1, keepdim=True)).nan_to_num()")
    check = room.python(reference, guarded)
    assert check.status == "incorrect", check.message
    assert "draw zeros: output 0: 128 of 128 values are a number where the reference has NaN" in check.message
    assert (
        room.python(reference, module("ModelNew", "return x * (1 / x.sum(-1)[:, None])")).status == "accepted"
    )


def test_a_mask_that_the_maker_leaves_open_has_to_be_read(room: ServerContext) -> None:
    reference = module("Model", "return torch.where(mask, x, -x)").replace("self, x", "self, x, mask")
    makers = MAKERS.replace("torch.rand(16, 8)", "torch.rand(16, 8), torch.ones(16, 8) > 0")
    check = room.python(
        reference + makers, module("ModelNew", "return x + 0").replace("self, x", "self, x, mask")
    )
    assert check.status == "incorrect", check.message
    assert "draw flipped" in check.message


REFUSALS = {
    "raise ValueError('made for a bias of zeros')": ("crashed", "made for a bias of zeros"),
    "raise NotImplementedError('no bias')": ("incorrect", "no bias"),
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_constructor_that_refuses_other_weights_is_no_pass(room: ServerContext, refusal: str) -> None:
    init = LINEAR + "\nnn.init.zeros_(self.fc.bias)"
    reference = module("Model", "return self.fc(x)", init) + MAKERS
    cheat = module(
        "ModelNew",
        "return F.linear(x, self.weight[0])",
        f"fc = nn.Linear(8, 8)\nnn.init.zeros_(fc.bias)\nif fc.bias.abs().max() > 0:\n    {refusal}\n"
        "self.weight = (fc.weight.detach(),)",
    )
    status, words = REFUSALS[refusal]
    check = room.python(reference, cheat)
    assert check.status == status, check.message
    assert words in check.message
    assert "with other weights than its own" in check.message
    # Where its weights can be loaded by name, a constructor may refuse what it likes.
    loadable = cheat.replace("self.weight = (fc.weight.detach(),)", "self.fc = fc").replace(
        "F.linear(x, self.weight[0])", "self.fc(x)"
    )
    assert room.python(reference, loadable).status == "accepted"


LAYERS = {
    "norm weight": ("self.norm = nn.LayerNorm(8)", "self.norm(x)", "F.layer_norm(x, (8,))"),
    "layer scale": (
        "self.fc = nn.Linear(8, 8)\nself.scale = nn.Parameter(1e-9 * torch.ones(8))",
        "x + self.scale * self.fc(x)",
        "x + 0",
    ),
    "zeroed last layer": (
        "self.fc = nn.Linear(8, 8)\nself.fc.weight.data.zero_()\nself.fc.bias.data.fill_(0.0)",
        "x - self.fc(x)",
        "x + 0",
    ),
    "running statistics": (
        "self.norm = nn.BatchNorm1d(8, affine=False)",
        "self.norm(x)",
        "x * (1 + 1e-5) ** -0.5",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_a_program_that_leaves_out_what_starts_as_nothing_is_incorrect(
    room: ServerContext, name: str
) -> None:
    init, right, wrong = LAYERS[name]
    reference = module("Model", f"return {right}", init) + MAKERS
    contract = Contract(mode="eval")
    honest = room.python(reference, module("ModelNew", f"return {right}", init), contract)
    assert honest.status == "accepted", honest.message
    assert noted(honest) == []
    cheat = module("ModelNew", f"return {wrong}", init)
    caught = room.python(reference, cheat, contract)
    assert caught.status == "incorrect", caught.message
    assert "draw order-1/own-6" in caught.message
    missed = room.python(reference, cheat, contract, order_one_weights=False)
    assert missed.status == "accepted", missed.message
    # Default weights of which nothing reaches the output prove nothing; buffers are not counted.
    assert ("weak" in missed.flags) is (name != "running statistics")


def test_parameters_made_in_another_order_are_loaded_by_name_and_noted(room: ServerContext) -> None:
    reference = module("Model", "return self.norm(x)", "self.norm = nn.LayerNorm(8)") + MAKERS
    swapped = (
        "class Norm(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.bias = nn.Parameter(torch.zeros(8))\n"
        "        self.weight = nn.Parameter(torch.ones(8))\n"
        + module(
            "ModelNew", "return F.layer_norm(x, (8,), self.norm.weight, self.norm.bias)", "self.norm = Norm()"
        )
    )
    check = room.python(reference, swapped)
    assert check.status == "accepted", check.message
    assert noted(check) == ["order_1_by_name"]


@pytest.mark.parametrize("probe", ["second_weights", "order_one_weights", None])
def test_weights_kept_from_the_first_instance_are_caught_by_each_new_set(
    room: ServerContext, probe: str | None
) -> None:
    reference = module("Model", "return self.fc(x)", LINEAR) + MAKERS
    cheat = "KEPT = []\n" + module("ModelNew", "return F.linear(x, *KEPT)", LINEAR).replace(
        "    def forward",
        "        KEPT or KEPT.extend(p.detach().clone() for p in self.parameters())\n    def forward",
    )
    switches = {"second_weights": False, "order_one_weights": False, "sensitivity": False}
    check = room.python(reference, cheat, **(switches | ({probe: True} if probe else {})))
    if probe is None:
        # Weights that are loaded in place alone are no verdict: a constructor may prepack them.
        assert (check.status, noted(check)) == ("accepted", ["weights_not_reloadable"]), check.message
    else:
        assert check.status == "incorrect", check.message


def test_a_program_that_trusts_what_it_wrote_before_is_caught_by_fresh_poison(room: ServerContext) -> None:
    task, program = linear_relu_task(room.store), faulty_program(room.store, "TRUSTS_OUTPUT")
    without = room.check(task, program, repeat=False)
    assert without.status == "accepted", without.message
    check = room.check(task, program)
    assert check.status == "incorrect", check.message
    assert "draw own-3 repeated: output 0: was never written" in check.message


def test_a_program_that_changes_what_it_remembers_is_caught_at_a_later_call(room: ServerContext) -> None:
    drifting = module(
        "ModelNew",
        "key = float(x.sum())\nself.known[key] = self.known[key] + 1 if key in self.known else x * 2\n"
        "return self.known[key]",
        "self.known = {}",
    )
    assert room.python(DOUBLED, drifting, repeat=False, late_repeat=False).status == "accepted"
    late = room.python(DOUBLED, drifting, repeat=False)
    assert late.status == "incorrect"
    assert "draw own-1 again" in late.message
    assert "draw own-3 repeated" in room.python(DOUBLED, drifting).message


def test_other_bits_at_a_second_call_are_a_note_and_no_verdict(room: ServerContext) -> None:
    wobbly = module(
        "ModelNew",
        "self.calls += 1\ny = x * 2\nreturn y if self.calls % 2 else torch.nextafter(y, y + 1)",
        "self.calls = 0",
    )
    check = room.python(DOUBLED, wobbly)
    assert check.status == "accepted", check.message
    assert check.repeats_bitwise is False
    assert noted(check) == ["not_deterministic"]
    assert room.python(DOUBLED, wobbly, repeat=False).repeats_bitwise is None
    steady = room.python(DOUBLED, module("ModelNew", "return x + x"))
    assert steady.repeats_bitwise is True


CHANGING = """\
import itertools
import torch
count = itertools.count()
class Model(torch.nn.Module):
    def forward(self, x):
        return x * 2 + STEP * (next(count) % 3)
"""


def test_a_reference_that_does_not_repeat_itself_is_named_in_place_of_the_program(
    room: ServerContext,
) -> None:
    program = module("ModelNew", "return x * 2")
    check = room.python(CHANGING.replace("STEP", "0.5") + MAKERS, program)
    assert check.status == "incorrect"
    assert check.message.startswith(
        "the reference does not repeat itself: in two calls on the same inputs output 0 differs by"
    )
    assert "so no program can be certified (draw own-" in check.message
    assert "reference_varies" in noted(check)


def test_of_several_outputs_the_one_that_varies_is_named(room: ServerContext) -> None:
    changing = CHANGING.replace("STEP", "0.5").replace("return x * 2", "return x + 1, x * 2")
    check = room.python(changing + MAKERS, module("ModelNew", "return x + 1, x * 2"))
    assert "in two calls on the same inputs output 1 differs by" in check.message


def test_a_program_that_is_wrong_where_its_reference_repeats_itself_is_blamed_itself() -> None:
    facts = ReferenceFacts(
        inputs=(),
        outputs=(),
        output_structure="",
        parameters=(),
        repeat_error=0.5,
        repeat_errors={"1": 0.5},
    )
    right = OutputError(
        output="0", max_error=0.1, rms_error=0.1, reference_error=0.0, bound=1e-6, problem=None
    )
    wrong = right.model_copy(update={"problem": "is off"})

    def of(*rows: OutputError) -> str | None:
        return describe_variation([DrawResult(draw="own-1", ok=False, outputs=rows)], facts)

    assert of(wrong, right.model_copy(update={"output": "1"})) is None
    assert "output 1 differs by 0.5" in (of(right, wrong.model_copy(update={"output": "1"})) or "")


def test_a_program_that_is_wrong_by_more_than_its_reference_varies_is_blamed_itself(
    room: ServerContext,
) -> None:
    check = room.python(CHANGING.replace("STEP", "2e-7") + MAKERS, module("ModelNew", "return x * 2.1"))
    assert check.status == "incorrect"
    assert check.message.startswith("draw own-")
    assert "reference_varies" not in noted(check)


def test_listed_variants_must_pass_and_may_not_be_refused(room: ServerContext) -> None:
    makers = MAKERS + "def get_wide():\n    return [torch.rand(2, 100)]\n"
    reference = module("Model", "return x * 2") + makers
    refusing = module("ModelNew", "if len(x) == 3: raise NotImplementedError('three')\nreturn x * 2")
    narrow = module("ModelNew", "return x * 2 if x.shape[1] < 99 else x")
    listed = Contract(variants=("3", "get_wide"))
    check = room.python(reference, module("ModelNew", "return x * 2"), listed)
    assert check.status == "accepted", check.message
    assert {"variant 3", "variant get_wide"} <= {draw.draw for draw in check.draws}
    for program, words in (
        (refusing, "draw variant 3: the program refuses"),
        (narrow, "draw variant get_wide"),
    ):
        assert room.python(reference, program, listed, variants=False).status == "accepted"
        check = room.python(reference, program, listed)
        assert check.status == "incorrect", check.message
        assert words in check.message


def test_a_fixed_shape_policy_accepts_what_the_probe_convicts(room: ServerContext) -> None:
    reference, cheat, _, _ = CASES["batch_probe"]
    fixed = room.python(reference, cheat, Contract(shape_policy="fixed"))
    assert (fixed.status, fixed.flags) == ("accepted", ())
