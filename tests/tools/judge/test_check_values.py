"""What goes in and comes out: structures, shared memory, written inputs, random numbers, buffers."""

import pytest

from stitch_tools.judge.check_options import CheckOptions
from stitch_tools.judge.correctness.check_record import Record
from stitch_tools.judge.correctness.draw_schedule import DrawGroup
from stitch_tools.models.task import Contract
from stitch_tools.models.verdict import Check, DrawResult, Sensitivity
from stitch_tools.protocol.messages_reference import Agreement
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store
from tests.tools.check_support import checked, make_task, model_new, noted

HEAD = "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n"
TAIL = "def get_init_inputs():\n    return []\n"
QUICK = CheckOptions(trace=False, structured=False)


class ValueSetup:
    """A warm session."""

    def __init__(self, session: TargetSession, store: Store) -> None:
        self.session, self.store = session, store

    def check(
        self,
        reference: str,
        program: str,
        inputs: str = "[torch.rand(16, 8)]",
        contract: Contract | None = None,
        options: CheckOptions = QUICK,
    ) -> Check:
        """A program with this forward against a reference with that one; both may use `self.fc`."""
        init = "    def __init__(self):\n        super().__init__()\n        self.fc = nn.Linear(8, 8)\n"
        source = f"{HEAD}class Model(nn.Module):\n{init}{_forward(reference)}"
        source += f"def get_inputs():\n    {_returning(inputs)}\n{TAIL}"
        task = make_task(self.store, source, contract=contract or Contract())
        candidate = model_new(self.store, f"{HEAD}class ModelNew(nn.Module):\n{init}{_forward(program)}")
        return checked(self.session, self.store, task, candidate, options)


def _returning(inputs: str) -> str:
    return inputs if "return" in inputs else f"return {inputs}"


def _forward(body: str) -> str:
    lines = body.splitlines() if "return" in body else [f"return {body}"]
    return "    def forward(self, *xs):\n        x = xs[0]\n" + "".join(f"        {line}\n" for line in lines)


@pytest.fixture(scope="module")
def setup(one_thread: TargetSession, tmp_path_factory: pytest.TempPathFactory) -> ValueSetup:
    root = tmp_path_factory.mktemp("values")
    return ValueSetup(one_thread, Store(root / "store"))


@pytest.mark.parametrize(
    ("reference", "program"),
    [
        ("(self.fc(x), None, [x.argmax(1), len(x)])", "(self.fc(x), None, [x.argmax(1), len(x)])"),
        ("{'a': self.fc(x), 'b': (x > 0.5).any()}", "{'b': (x > 0.5).any(), 'a': self.fc(x)}"),
        ("{'a': {'c': x[0, 0] * 2, 'b': 7}, 'd': (x,)}", "{'d': (x,), 'a': {'b': 7, 'c': x[0, 0] * 2}}"),
        ("float(x.sum().double())", "float(x.double().sum())"),
        ("x[0] > 0.5, int(x.argmax()), x.to(torch.bfloat16)", "x[0] > 0.5, int(x.argmax()), x.bfloat16()"),
    ],
)
def test_outputs_of_every_kind_are_compared_by_name(setup: ValueSetup, reference: str, program: str) -> None:
    check = setup.check(reference, program)
    assert check.status == "accepted", check.message


@pytest.mark.parametrize(
    ("reference", "program", "words"),
    [
        ("(x, x * 2)", "[x * 2, x]", "output 0: largest relative error"),
        ("(x, x * 2)", "x", "returns tensor, expected (tensor, tensor)"),
        ("(x, x * 2)", "{'a': x, 'b': x * 2}", "returns {'a': tensor, 'b': tensor}"),
        ("(x, None)", "(x,)", "expected (tensor, None)"),
        ("{'a': x}", "{'b': x}", "returns {'b': tensor}, expected {'a': tensor}"),
        ("len(x)", "torch.tensor(len(x))", "returns tensor, expected int"),
        ("x.sum()", "float(x.sum())", "returns float, expected tensor"),
        ("True", "1", "returns int, expected bool"),
        ("(x, 3)", "(x, 4)", "output 1: 1 of 1 values differ"),
        ("x > 0.5", "x >= 0.9", "values differ"),
        ("x.sum()", "x.sum().view(1)", "gives float32[1], expected float32[]"),
    ],
)
def test_another_structure_or_type_is_incorrect(
    setup: ValueSetup, reference: str, program: str, words: str
) -> None:
    check = setup.check(reference, program)
    assert check.status == "incorrect", check.message
    assert words in check.message


@pytest.mark.parametrize(
    ("reference", "program", "words"),
    [
        ("(x, x * 2)", "[x + 0, x * 2]", "returns [tensor, tensor], the reference (tensor, tensor)"),
        ("(x * 2,)", "x * 2", "returns tensor, the reference (tensor,)"),
        ("x * 2", "[x * 2]", "returns [tensor], the reference tensor"),
        ("(x + 0, (x * 2,))", "[x + 0, x * 2]", "returns [tensor, tensor]"),
        ("{'a': x + 0, 'b': x * 2}", "{'b': x * 2, 'a': x + 0}", "returns {'b': tensor, 'a': tensor}"),
    ],
)
def test_other_containers_around_right_values_are_a_note(
    setup: ValueSetup, reference: str, program: str, words: str
) -> None:
    check = setup.check(reference, program)
    assert check.status == "accepted", check.message
    notes = [row for row in check.findings if row.rule == "other_container"]
    assert [row.severity for row in notes] == ["note"]
    assert words in notes[0].message
    wrong = program.replace("x * 2", "x * 3")
    assert setup.check(reference, wrong).status == "incorrect"


IN_PLACE = "x.mul_(2)\nreturn self.fc(x)"


def test_what_a_reference_writes_to_its_inputs_a_program_has_to_write_too(setup: ValueSetup) -> None:
    same = setup.check(IN_PLACE, "x += x\nreturn self.fc(x)")
    assert same.status == "accepted", same.message
    assert [row.output for row in same.draws[0].outputs] == ["0", "input:0"]
    silent = setup.check(IN_PLACE, "self.fc(x * 2)")
    assert silent.status == "incorrect", silent.message
    assert "output input:0: largest relative error" in silent.message
    released = setup.check(IN_PLACE, "self.fc(x * 2)", contract=Contract(input_writes="ignored"))
    assert released.status == "accepted", released.message


def test_the_same_tensor_given_twice_arrives_as_one(setup: ValueSetup) -> None:
    inputs = "x = torch.rand(16, 8)\n    return [x, x]"
    reference = "xs[1].add_(1)\nreturn x * 2"
    check = setup.check(reference, "xs[1].add_(1)\nreturn x * 2", inputs)
    assert check.status == "accepted", check.message
    apart = setup.check(reference, "y = xs[1].clone()\ny.add_(1)\nreturn x * 2", inputs)
    assert apart.status == "incorrect"
    told = "xs[1].add_(1)\nreturn x * 2 if x.data_ptr() == xs[1].data_ptr() else x"
    assert setup.check(reference, told, inputs).status == "accepted"


def test_a_view_beside_its_base_is_a_view_in_the_program(setup: ValueSetup) -> None:
    inputs = "x = torch.rand(16, 8)\n    return [x[2:4, ::2].t(), x]"
    reference = "xs[1].zero_()\nreturn x + 1"
    check = setup.check(reference, reference, inputs)
    assert check.status == "accepted", check.message
    assert setup.check(reference, "y = x.clone()\nxs[1].zero_()\nreturn y + 1", inputs).status == "incorrect"


@pytest.mark.parametrize("reference", ["x.view(8, 16)", "x[2:]", "(x, x.t())"])
def test_an_output_that_is_a_view_of_an_input_may_be_a_view_or_a_copy(
    setup: ValueSetup, reference: str
) -> None:
    for program in (reference, f"torch.utils._pytree.tree_map(torch.clone, {reference})"):
        check = setup.check(reference, program)
        assert check.status == "accepted", check.message
        assert noted(check) == []


def test_an_output_in_input_memory_where_the_reference_copies_is_a_note(setup: ValueSetup) -> None:
    check = setup.check("x.clone()", "x")
    assert check.status == "accepted", check.message
    assert noted(check) == ["output_in_input_memory"]


def test_random_numbers_have_to_be_consumed_as_the_reference_does(setup: ValueSetup) -> None:
    reference = "noise = torch.rand(4)\nreturn self.fc(x) + 0 * noise[0]"
    assert setup.check(reference, reference).status == "accepted"
    silent = setup.check(reference, "self.fc(x)")
    assert (silent.status, silent.flags) == ("unmeasured", ("unsupported_rng",))
    eager = setup.check("self.fc(x)", "torch.rand(3)\nreturn self.fc(x)")
    assert eager.status == "accepted"
    assert noted(eager) == ["draws_random_numbers"]


def test_updated_buffers_are_put_back_before_each_call(setup: ValueSetup) -> None:
    init = "    def __init__(self):\n        super().__init__()\n"
    init += "        self.register_buffer('calls', torch.zeros(1))\n"
    forward = "    def forward(self, x):\n        self.calls += x.sum()\n        return x + self.calls\n"
    source = f"{HEAD}class Model(nn.Module):\n{init}{forward}"
    source += f"def get_inputs():\n    return [torch.rand(9)]\n{TAIL}"
    task = make_task(setup.store, source, contract=Contract(buffers="updated"))
    for change, status in (("", "accepted"), (" * 1.001", "incorrect")):
        body = forward.replace("x.sum()", f"x.sum(){change}")
        program = model_new(setup.store, f"{HEAD}class ModelNew(nn.Module):\n{init}{body}")
        check = checked(setup.session, setup.store, task, program, QUICK)
        assert check.status == status, check.message


def test_kernelbench_s_rule_is_told_beside_ours(setup: ValueSetup) -> None:
    options = CheckOptions(trace=False, structured=False, reference_tolerance=True)
    # No output exceeds 9 / 8**0.5: the difference stays below 1e-4 whatever is drawn.
    rough = setup.check("self.fc(x)", "self.fc(x) * (1 + 2e-5)", options=options)
    assert rough.status == "incorrect"
    rule = rough.reference_tolerance
    assert rule is not None
    assert (rule.ok, rule.atol, rule.rtol) == (True, 1e-4, 1e-4)
    assert 0 < (rule.largest_difference or 0) < 1e-4
    exact = setup.check("self.fc(x)", "self.fc(x)", options=options).reference_tolerance
    assert exact is not None
    assert (exact.ok, exact.draws >= 5, exact.largest_difference) == (True, True, 0.0)
    wrong = setup.check("self.fc(x)", "self.fc(x) * 1.01", options=options).reference_tolerance
    assert wrong is not None
    assert not wrong.ok
    half = setup.check("self.fc(x).half()", "self.fc(x).half() * 1.004", options=options).reference_tolerance
    assert half is not None
    assert (half.ok, half.atol) == (True, 1e-2)


SHARED = """
class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.rand(8))

    def forward(self, x):
        return x * self.w

class {name}(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(8, 8, 3, padding=1)
        self.scale = Scale()
        self.norm = nn.BatchNorm1d(8)
        self.features = nn.Sequential(self.conv, nn.ReLU(), self.conv)
        self.rest = nn.Sequential(self.scale, self.norm, self.scale)

    def forward(self, x):
        return {value}
"""


@pytest.mark.parametrize(
    ("value", "status"),
    [
        ("self.rest(self.features(x).mean(-1))", "accepted"),
        ("self.scale(self.norm(self.scale(self.conv(self.conv(x).relu()).mean(2))))", "accepted"),
        ("self.scale(self.norm(self.scale(self.conv(x).mean(2))))", "incorrect"),
    ],
)
def test_modules_under_two_names_are_judged_as_others_are(setup: ValueSetup, value: str, status: str) -> None:
    source = HEAD + SHARED.format(name="Model", value="self.rest(self.features(x).mean(-1))")
    task = make_task(setup.store, f"{source}def get_inputs():\n    return [torch.rand(16, 8, 9)]\n{TAIL}")
    candidate = model_new(setup.store, HEAD + SHARED.format(name="ModelNew", value=value))
    check = checked(setup.session, setup.store, task, candidate, QUICK)
    assert check.status == status, check.message
    assert check.oracle == "fp64"


@pytest.mark.parametrize(
    ("reference", "flags"),
    [
        ("F.layer_norm(x, (8,)).sum()", ("partial", "weak")),
        ("self.fc(F.layer_norm(x, (8,))).sum()", ("partial",)),
    ],
)
def test_another_order_of_summing_what_cancels_is_right_and_a_pass_on_nothing_else_is_weak(
    setup: ValueSetup, reference: str, flags: tuple[str, ...]
) -> None:
    normed = "x = (x - x.flip(1).mean(1, True)) / (x.var(1, unbiased=False, keepdim=True) + 1e-5).sqrt()"
    body = (
        "x.cumsum(1)[:, -1].cumsum(0)[-1]"
        if "fc" not in reference
        else "self.fc(x).cumsum(1)[:, -1].cumsum(0)[-1]"
    )
    # Of more rows the sum may be off by more than the contract allows.
    check = setup.check(reference, f"{normed}\nreturn {body}", "[torch.rand(6, 8)]", options=CheckOptions())
    assert check.status == "accepted", check.message
    assert tuple(sorted(check.flags)) == flags


NORM = "x = (x - {mean}) / (x.var(1, unbiased=False, keepdim=True) + 1e-5).sqrt()\nreturn "
LATE_MEAN = NORM.format(mean="x.cumsum(1)[:, -1:] / 37")


def test_draws_that_rounding_alone_decides_are_named_and_a_right_program_is_accepted(
    setup: ValueSetup,
) -> None:
    options = CheckOptions(trace=False)
    check = setup.check(
        "F.layer_norm(x, (37,)).sum(1)",
        f"{LATE_MEAN}x.cumsum(1)[:, -1]",
        "[torch.rand(16, 37)]",
        options=options,
    )
    assert check.status == "accepted", check.message
    assert "undecided" in noted(check)
    left_open = [line for line in check.not_checked if "undecided: output 0: " in line]
    assert any(line.startswith("draw near-constant: ") for line in left_open), check.not_checked
    assert "undecided at least in part" in check.message


@pytest.mark.parametrize(
    ("reference", "program"),
    [
        ("F.layer_norm(x, (37,)).sum(1)", f"{LATE_MEAN}x[:, :-1].sum(1)"),
        ("F.layer_norm(x, (37,)).sum(1)", f"{LATE_MEAN}x.sum(1) + 1e-3"),
        ("F.layer_norm(x, (37,)).sum(1)", "x.sum(1) * 0 + (x.std(1) < 1e-3) * 1e9"),
        (
            "x = F.layer_norm(x, (37,))\nreturn torch.stack([x.sum(1), x[:, 0]], 1)",
            f"{LATE_MEAN.replace('1e-5', '1e-3')}torch.stack([x.sum(1), x[:, 0]], 1)",
        ),
    ],
)
def test_what_rounding_does_not_explain_is_refused_all_the_same(
    setup: ValueSetup, reference: str, program: str
) -> None:
    check = setup.check(reference, program, "[torch.rand(16, 37)]", options=CheckOptions(trace=False))
    assert check.status in ("incorrect", "rejected_cheat"), check.message


def test_a_pass_on_too_few_decided_draws_is_weak() -> None:
    record = Record(
        sensitivity=(Sensitivity(probe="own", subject="inputs", change=1, tolerance=0, reacts=True),)
    )
    record.passed.own_inputs = 3
    for decided in (True, True, False, False, False):
        record.count("values", decided=decided)
    record.leave_undecided("constants", "output 0: 1 of 1 values")
    assert record.is_weak(depends_on_inputs=True)
    record.note_undecided()
    assert "2 of 5 draws with values of the judge were decided" in record.findings[0].message
    record.count("values", decided=True)
    assert not record.is_weak(depends_on_inputs=True)


@pytest.mark.parametrize(
    ("group", "rows", "is_thin"),
    [
        ("values", (True, False), False),
        ("values", (True, False, False), True),
        ("values", (False,), True),
        ("values", (True, True, True, *(False,) * 9), False),
        ("sizes", (True, False, False), False),
        ("variants", (True, True, False), True),
    ],
)
def test_of_few_draws_that_a_task_allows_half_are_enough_and_of_its_variants_all_count(
    group: DrawGroup, rows: tuple[bool, ...], is_thin: bool
) -> None:
    record = Record()
    for decided in rows:
        record.count(group, decided=decided)
    assert bool(record.thin_groups()) is is_thin


@pytest.mark.parametrize(("variants", "share"), [(("7",), "0 of 1"), (("16", "7"), "1 of 2")])
def test_a_variant_of_the_contract_that_stays_undecided_makes_a_pass_weak_and_is_named(
    setup: ValueSetup, variants: tuple[str, ...], share: str
) -> None:
    forward = "k = 1.0 if len(x) == 16 else 1e5\n"
    forward += "return torch.stack([self.fc(x).sum(1), k * F.layer_norm(x, (8,)).sum(1)], 1)"
    options = CheckOptions(trace=False, structured=False, batch_probe=False)
    check = setup.check(forward, forward, contract=Contract(variants=variants), options=options)
    assert check.status == "accepted", check.message
    assert check.flags == ("weak",)
    (told,) = [row.message for row in check.findings if row.rule == "undecided"]
    assert "draws variant 7" in told
    assert f"{share} draws with variants of the contract were decided" in told
    assert setup.check(forward, forward, options=options).flags == ()


def test_what_was_counted_of_draws_goes_when_they_are_taken_back() -> None:
    record = Record()
    record.leave_undecided("own-1", "output 0: 1 of 1 values")
    record.count("values", decided=True)
    mark = record.mark()
    before = record.mark()
    record.draws.append(DrawResult(draw="own-2", ok=False))
    record.leave_undecided("own-2", "output 0: 1 of 1 values")
    record.count("values", decided=False)
    record.count("weights", decided=False)
    record.passed.weight_sets.add("weights-2")
    record.agreements.append(Agreement(ok=False, tolerance=1e-4, largest_difference=None))
    record.late += 1
    record.take_back(mark)
    assert record == before
    record.count("values", decided=False)
    assert mark == before, "a mark may be used again"


def test_kernelbench_s_rule_leaves_out_what_is_taken_back(setup: ValueSetup) -> None:
    packed = "w = self.__dict__.setdefault('packed', self.fc.weight.detach().clone())\n"
    check = setup.check(
        "self.fc(x)",
        f"{packed}return F.linear(x, w, self.fc.bias)",
        options=CheckOptions(trace=False, structured=False, reference_tolerance=True),
    )
    assert check.status == "accepted", check.message
    assert "weights_not_reloadable" in noted(check)
    assert check.reference_tolerance is not None
    assert check.reference_tolerance.ok
