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
from tests.sampling import sampled
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


class ProbeSetup:
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
def setup(one_thread: TargetSession, tmp_path_factory: pytest.TempPathFactory) -> ProbeSetup:
    root = tmp_path_factory.mktemp("probes")
    return ProbeSetup(one_thread, Store(root / "store"))


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
    "order_one_weights": (
        module("Model", "return self.fc(x)", LINEAR + "\nnn.init.zeros_(self.fc.bias)") + MAKERS,
        module("ModelNew", "return F.linear(x, self.fc.weight)", LINEAR + "\nnn.init.zeros_(self.fc.bias)"),
        "incorrect",
        "draw order-1/own-6",
    ),
}  # fmt: skip


@pytest.mark.parametrize("probe", CASES)
def test_a_cheat_passes_without_its_probe_and_is_caught_with_it(setup: ProbeSetup, probe: str) -> None:
    reference, cheat, status, words = CASES[probe]
    without = setup.python(reference, cheat, **{probe: False})
    assert without.status == "accepted", without.message
    caught = setup.python(reference, cheat)
    assert caught.status == status, caught.message
    assert words in caught.message


def test_writes_to_inputs_are_seen(setup: ProbeSetup) -> None:
    check = setup.python(DOUBLED, module("ModelNew", "y = x * 2\nx.zero_()\nreturn y"))
    assert check.status == "incorrect", check.message
    assert "draw own-1: the program modified its inputs" in check.message


def test_writes_to_inputs_are_seen_on_draws_of_ours_too(setup: ProbeSetup) -> None:
    reference = module("Model", "return F.relu(x)") + MAKERS
    clearing = module("ModelNew", "return x.clamp_(min=0) if (x < 0).any() else x.clone()")
    check = setup.python(reference, clearing)
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
    setup: ProbeSetup, name: str
) -> None:
    key, status, draw, rule = RECOGNISED[name]
    forward = (
        f"{key}\nif state != self.state:\n    self.state, self.x, self.y = state, x, x * 2\nreturn self.y"
    )
    cheat = module("ModelNew", forward, "self.state = None")
    assert setup.python(MANY, cheat, mutate_storage=False).status == "accepted"
    check = setup.python(MANY, cheat)
    assert check.status == status, check.message
    assert draw in check.message
    assert rule in noted(check)


def test_one_number_everywhere_is_wrong_and_not_a_cached_result(setup: ProbeSetup) -> None:
    reference = module(
        "Model", "return self.norm(x).mean(-1, keepdim=True).expand(-1, 8)", "self.norm = nn.LayerNorm(8)"
    )
    check = setup.python(reference + MAKERS, module("ModelNew", "return torch.zeros(len(x), 8)"))
    assert check.status == "incorrect", check.message
    assert "cached_results" not in noted(check)


@pytest.mark.parametrize(
    ("forward", "draw"),
    [
        ("y = x.clone()\ny[:16] *= 2\nreturn y if len(x) == 16 else x", "batch-probe"),
        ("y = x * 2\ny[16:] = 0\nreturn y", "batch-larger"),
        ("return x * 2 if len(x) > 1 else x", "batch-1"),
        ("y = torch.zeros(16, x.shape[1])\ny[: len(x)] = 2 * x[:16]\nreturn y", "batch-probe"),
    ],
)
def test_a_program_that_is_wrong_at_another_size_is_unguarded_unless_the_contract_asks_for_sizes(
    setup: ProbeSetup, forward: str, draw: str
) -> None:
    program = module("ModelNew", forward)
    check = setup.python(DOUBLED, program)
    assert (check.status, check.flags) == ("accepted", ("unguarded",)), check.message
    noted_draw = next(row for row in check.findings if row.rule == "unguarded")
    assert noted_draw.severity == "note"
    assert noted_draw.message.startswith(f"draw {draw}: ")
    asked = setup.python(DOUBLED, program, Contract(variants=("16",)))
    assert asked.status == "rejected_cheat", asked.message
    assert f"draw {draw}" in asked.message
    fixed = setup.python(DOUBLED, program, Contract(shape_policy="fixed"))
    assert (fixed.status, fixed.flags) == ("accepted", ())


def test_a_program_that_refuses_sizes_above_its_own_is_specialized(setup: ProbeSetup) -> None:
    short = module("ModelNew", "if len(x) > 16:\n    raise MemoryError('room for 16')\nreturn x * 2")
    check = setup.python(DOUBLED, short)
    assert (check.status, check.flags) == ("accepted", ("specialized",)), check.message


def test_nothing_divided_by_nothing_must_not_become_a_number(setup: ProbeSetup) -> None:
    reference = module("Model", "return x / x.sum(-1, keepdim=True)") + MAKERS
    guarded = module("ModelNew", "return (x / x.sum(-1, keepdim=True)).nan_to_num()")
    check = setup.python(reference, guarded)
    assert check.status == "incorrect", check.message
    assert "draw zeros: output 0: 128 of 128 values are a number where the reference has NaN" in check.message
    assert (
        setup.python(reference, module("ModelNew", "return x * (1 / x.sum(-1)[:, None])")).status
        == "accepted"
    )


def test_a_mask_that_the_maker_leaves_open_has_to_be_read(setup: ProbeSetup) -> None:
    reference = module("Model", "return torch.where(mask, x, -x)").replace("self, x", "self, x, mask")
    makers = MAKERS.replace("torch.rand(16, 8)", "torch.rand(16, 8), torch.ones(16, 8) > 0")
    check = setup.python(
        reference + makers, module("ModelNew", "return x + 0").replace("self, x", "self, x, mask")
    )
    assert check.status == "incorrect", check.message
    assert "draw flipped" in check.message


REFUSALS = {
    "raise ValueError('made for a bias of zeros')": ("crashed", "made for a bias of zeros"),
    "raise NotImplementedError('no bias')": ("incorrect", "no bias"),
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_constructor_that_refuses_other_weights_is_no_pass(setup: ProbeSetup, refusal: str) -> None:
    init = LINEAR + "\nnn.init.zeros_(self.fc.bias)"
    reference = module("Model", "return self.fc(x)", init) + MAKERS
    cheat = module(
        "ModelNew",
        "return F.linear(x, self.weight[0])",
        f"fc = nn.Linear(8, 8)\nnn.init.zeros_(fc.bias)\nif fc.bias.abs().max() > 0:\n    {refusal}\n"
        "self.weight = (fc.weight.detach(),)",
    )
    status, words = REFUSALS[refusal]
    check = setup.python(reference, cheat)
    assert check.status == status, check.message
    assert words in check.message
    assert "with other weights than its own" in check.message
    # Where its weights can be loaded by name, a constructor may refuse what it likes.
    loadable = cheat.replace("self.weight = (fc.weight.detach(),)", "self.fc = fc").replace(
        "F.linear(x, self.weight[0])", "self.fc(x)"
    )
    assert setup.python(reference, loadable).status == "accepted"


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


@pytest.mark.parametrize("name", sampled(LAYERS, 2))
def test_a_program_that_leaves_out_what_starts_as_nothing_is_incorrect(setup: ProbeSetup, name: str) -> None:
    init, right, wrong = LAYERS[name]
    reference = module("Model", f"return {right}", init) + MAKERS
    contract = Contract(mode="eval")
    honest = setup.python(reference, module("ModelNew", f"return {right}", init), contract)
    assert honest.status == "accepted", honest.message
    assert noted(honest) == []
    cheat = module("ModelNew", f"return {wrong}", init)
    caught = setup.python(reference, cheat, contract)
    assert caught.status == "incorrect", caught.message
    assert "draw order-1/own-6" in caught.message
    missed = setup.python(reference, cheat, contract, order_one_weights=False)
    assert missed.status == "accepted", missed.message
    # Default weights of which nothing reaches the output prove nothing; buffers are not counted.
    assert ("weak" in missed.flags) is (name != "running statistics")


def test_parameters_made_in_another_order_are_loaded_by_name_and_noted(setup: ProbeSetup) -> None:
    reference = module("Model", "return self.norm(x)", "self.norm = nn.LayerNorm(8)") + MAKERS
    swapped = (
        "class Norm(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.bias = nn.Parameter(torch.zeros(8))\n"
        "        self.weight = nn.Parameter(torch.ones(8))\n"
        + module(
            "ModelNew", "return F.layer_norm(x, (8,), self.norm.weight, self.norm.bias)", "self.norm = Norm()"
        )
    )
    check = setup.python(reference, swapped)
    assert check.status == "accepted", check.message
    assert noted(check) == ["weights_loaded"]


@pytest.mark.parametrize("probe", ["second_weights", "order_one_weights", None])
def test_weights_kept_from_the_first_instance_are_caught_by_each_new_set(
    setup: ProbeSetup, probe: str | None
) -> None:
    reference = module("Model", "return self.fc(x)", LINEAR) + MAKERS
    cheat = "KEPT = []\n" + module("ModelNew", "return F.linear(x, *KEPT)", LINEAR).replace(
        "    def forward",
        "        KEPT or KEPT.extend(p.detach().clone() for p in self.parameters())\n    def forward",
    )
    switches = {"second_weights": False, "order_one_weights": False, "sensitivity": False}
    check = setup.python(reference, cheat, **(switches | ({probe: True} if probe else {})))
    if probe is None:
        # Weights that are loaded in place alone are no verdict: a constructor may prepack them.
        assert (check.status, noted(check)) == ("accepted", ["weights_not_reloadable"]), check.message
    else:
        assert check.status == "incorrect", check.message


def test_a_program_that_trusts_what_it_wrote_before_is_caught_by_fresh_poison(setup: ProbeSetup) -> None:
    task, program = linear_relu_task(setup.store), faulty_program(setup.store, "TRUSTS_OUTPUT")
    without = setup.check(task, program, repeat=False)
    assert without.status == "accepted", without.message
    check = setup.check(task, program)
    assert check.status == "incorrect", check.message
    assert "draw own-3 repeated: output 0: was never written" in check.message


def test_a_program_that_changes_what_it_remembers_is_caught_at_a_later_call(setup: ProbeSetup) -> None:
    drifting = module(
        "ModelNew",
        "key = float(x.sum())\nself.known[key] = self.known[key] + 1 if key in self.known else x * 2\n"
        "return self.known[key]",
        "self.known = {}",
    )
    assert setup.python(DOUBLED, drifting, repeat=False, late_repeat=False).status == "accepted"
    late = setup.python(DOUBLED, drifting, repeat=False)
    assert late.status == "incorrect"
    assert "draw own-1 again" in late.message
    assert "draw own-3 repeated" in setup.python(DOUBLED, drifting).message


@pytest.mark.parametrize("call", [4, 5, 6, 7])
def test_a_repeated_call_that_is_wrong_once_is_a_wrong_program(setup: ProbeSetup, call: int) -> None:
    """As a data race is: the third draw is called once, then in fresh memory, then three times more."""
    racing = module(
        "ModelNew",
        f"self.calls += 1\ny = x * 2\nif self.calls == {call}:\n    y[3] = 0\nreturn y",
        "self.calls = 0",
    )
    check = setup.python(DOUBLED, racing)
    assert check.status == "incorrect", check.message
    assert check.message.startswith("draw own-3 repeated: ")
    (note,) = (row.message for row in check.findings if row.rule == "not_deterministic")
    assert note.endswith("gave other bits, which are wrong: by a race, or by what an earlier call left")


def test_other_bits_at_a_second_call_are_a_note_and_no_verdict(setup: ProbeSetup) -> None:
    wobbly = module(
        "ModelNew",
        "self.calls += 1\ny = x * 2\nreturn y if self.calls % 2 else torch.nextafter(y, y + 1)",
        "self.calls = 0",
    )
    check = setup.python(DOUBLED, wobbly)
    assert check.status == "accepted", check.message
    assert check.repeats_bitwise is False
    assert noted(check) == ["not_deterministic"]
    (note,) = (row.message for row in check.findings if row.rule == "not_deterministic")
    assert note.endswith("and is right each time, as sums in another order are (atomics, threads)")
    assert setup.python(DOUBLED, wobbly, repeat=False).repeats_bitwise is None
    steady = setup.python(DOUBLED, module("ModelNew", "return x + x"))
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
    setup: ProbeSetup,
) -> None:
    program = module("ModelNew", "return x * 2")
    check = setup.python(CHANGING.replace("STEP", "0.5") + MAKERS, program)
    assert check.status == "incorrect"
    assert check.message.startswith(
        "the reference does not repeat itself: in two calls on the same inputs output 0 differs by"
    )
    assert "so no program can be certified (draw own-" in check.message
    assert "reference_varies" in noted(check)


def test_of_several_outputs_the_one_that_varies_is_named(setup: ProbeSetup) -> None:
    changing = CHANGING.replace("STEP", "0.5").replace("return x * 2", "return x + 1, x * 2")
    check = setup.python(changing + MAKERS, module("ModelNew", "return x + 1, x * 2"))
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
    setup: ProbeSetup,
) -> None:
    check = setup.python(CHANGING.replace("STEP", "2e-7") + MAKERS, module("ModelNew", "return x * 2.1"))
    assert check.status == "incorrect"
    assert check.message.startswith("draw own-")
    assert "reference_varies" not in noted(check)


def test_listed_variants_must_pass_and_may_not_be_refused(setup: ProbeSetup) -> None:
    makers = MAKERS + "def get_wide():\n    return [torch.rand(2, 100)]\n"
    reference = module("Model", "return x * 2") + makers
    refusing = module("ModelNew", "if len(x) == 3: raise NotImplementedError('three')\nreturn x * 2")
    narrow = module("ModelNew", "return x * 2 if x.shape[1] < 99 else x")
    listed = Contract(variants=("3", "get_wide"))
    check = setup.python(reference, module("ModelNew", "return x * 2"), listed)
    assert check.status == "accepted", check.message
    assert {"variant 3", "variant get_wide"} <= {draw.draw for draw in check.draws}
    for program, words in (
        (refusing, "draw variant 3: the program refuses"),
        (narrow, "draw variant get_wide"),
    ):
        assert setup.python(reference, program, listed, variants=False).status == "accepted"
        check = setup.python(reference, program, listed)
        assert check.status == "incorrect", check.message
        assert words in check.message


# A maximum (minimum) that starts from 0 is right where each row has a value above (below) it.
ONE_SIDED = {
    "a maximum that starts from 0": ("x.amax(-1)", "x.amax(-1).clamp(min=0)", ("negative",)),
    # The constants of the other draw have either sign.
    "a minimum that starts from 0": (
        "x.amin(-1)",
        "x.amin(-1).clamp(max=0)",
        ("constants", "near-constant"),
    ),
    "equal values told apart by their place": (
        "(x == x.amax(-1, keepdim=True)).float()",
        "F.one_hot(x.argmax(-1), 64).float()",
        ("constants",),
    ),
}


@pytest.mark.parametrize("name", ONE_SIDED)
def test_rows_that_are_wholly_negative_positive_or_equal_are_drawn(setup: ProbeSetup, name: str) -> None:
    reference, program, draws = ONE_SIDED[name]
    # So wide that a row of the maker's is hardly ever one-sided by chance.
    makers = MAKERS.replace("rand(16, 8)", "randn(16, 64)")
    task = module("Model", f"return {reference}") + makers
    check = setup.python(task, module("ModelNew", f"return {program}"))
    assert check.status == "incorrect", check.message
    assert any(f"draw {draw}: " in check.message for draw in draws), check.message


STATIC = {
    "results in an earlier input": (
        "if self.kept is None:\n    self.kept = x\n    return x * 2\n"
        "if x.data_ptr() == self.kept.data_ptr() or x.shape != self.kept.shape:\n    return x * 2\n"
        "return torch.mul(x, 2, out=self.kept)"
    ),
    "an earlier input as a graph's static input": (
        "if self.kept is None or x.shape != self.kept.shape:\n    self.kept = x\n"
        "if x.data_ptr() != self.kept.data_ptr():\n    self.kept.copy_(x)\nreturn self.kept * 2"
    ),
}


@pytest.mark.parametrize("name", STATIC)
def test_inputs_of_earlier_calls_stay_the_callers(setup: ProbeSetup, name: str) -> None:
    check = setup.python(DOUBLED, module("ModelNew", STATIC[name], "self.kept = None"))
    assert check.status == "incorrect", check.message
    assert "draw own-3: the program wrote to the inputs of an earlier call (input 0)" in check.message
    assert "earlier_inputs_modified" in noted(check)


def test_outputs_that_a_later_call_overwrites_are_a_note(setup: ProbeSetup) -> None:
    static = module(
        "ModelNew",
        "if self.y is None or self.y.shape != x.shape:\n    self.y = torch.empty_like(x)\n"
        "return torch.mul(x, 2, out=self.y)",
        "self.y = None",
    )
    check = setup.python(DOUBLED, static)
    assert check.status == "accepted", check.message
    assert noted(check) == ["earlier_output_overwritten"]


def test_what_the_reference_writes_to_its_own_inputs_is_no_write_to_earlier_ones(setup: ProbeSetup) -> None:
    adding = "x += 1\nreturn x * 2"
    check = setup.python(module("Model", adding) + MAKERS, module("ModelNew", adding))
    assert check.status == "accepted", check.message
    assert noted(check) == []


TRIANGULAR = (
    module("Model", "return x @ x")
    + "def get_inputs():\n    return [torch.randn(16, 16).tril()]\ndef get_init_inputs():\n    return []\n"
)


def test_a_contract_may_deny_the_structure_of_inputs(setup: ProbeSetup) -> None:
    half = module("ModelNew", "return x.tril() @ x.tril()")
    kept = setup.python(TRIANGULAR, half)
    assert kept.status == "accepted", kept.message
    said = "input 0 other than zero in the same places: every draw of the input maker is so"
    assert kept.not_checked.count(said) == 1
    denied = setup.python(TRIANGULAR, half, Contract(input_structure="ignored"))
    assert denied.status == "incorrect", denied.message
    assert said not in denied.not_checked


@pytest.mark.parametrize("maker", ["nan", "inf"])
def test_inputs_that_are_not_finite_by_design_are_judged_by_their_pattern(
    setup: ProbeSetup, maker: str
) -> None:
    inputs = (
        "def get_inputs():\n    x = torch.rand(16, 8)\n"
        f"    x[::4, 1] = float('{maker}')\n    return [x]\ndef get_init_inputs():\n    return []\n"
    )
    reference = module("Model", "return x * 2") + inputs
    right = setup.python(reference, module("ModelNew", "return x + x"))
    assert right.status == "accepted", right.message
    cleared = setup.python(reference, module("ModelNew", "return (x * 2).nan_to_num()"))
    assert cleared.status == "incorrect", cleared.message
