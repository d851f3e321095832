"""Checks over many kinds of references: ModelNew files, random numbers, buffers, odd inputs, faults."""

from pathlib import Path

import pytest

from stitch_tools.errors import TaskError
from stitch_tools.judge.check import check_program
from stitch_tools.judge.check_options import CheckOptions
from stitch_tools.judge.trial import Trial
from stitch_tools.models.program import STITCHER
from stitch_tools.models.task import Contract, ReferenceFacts, Task
from stitch_tools.models.verdict import Check
from stitch_tools.run.reference_server import ReferenceServer
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store
from tests.tools.check_support import build, checked, make_program, make_task, model_new, noted

HEAD = "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n"
NORM = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
    def forward(self, x):
        return self.norm(x)
def get_inputs():
    return [torch.randn(16, 6)]
def get_init_inputs():
    return []
"""
DROPOUT = """
class Model(nn.Module):
    def forward(self, x):
        return F.dropout(x, 0.4) * 2
def get_inputs():
    return [torch.randn(16, 6)]
def get_init_inputs():
    return []
"""


class ProgramSetup:
    """A warm session."""

    def __init__(self, session: TargetSession, store: Store) -> None:
        self.session, self.store = session, store

    def task(self, source: str, **fields: object) -> Task:
        return make_task(self.store, HEAD + source, **fields)

    def observe(self, task: Task) -> ReferenceFacts:
        with ReferenceServer(self.session, task, self.store) as reference:
            return reference.observe()

    def check(self, task: Task, program_source: str, options: CheckOptions | None = None) -> Check:
        return checked(self.session, self.store, task, model_new(self.store, HEAD + program_source), options)


@pytest.fixture(scope="module")
def setup(one_thread: TargetSession, tmp_path_factory: pytest.TempPathFactory) -> ProgramSetup:
    root = tmp_path_factory.mktemp("programs")
    return ProgramSetup(one_thread, Store(root / "store"))


def renamed(source: str) -> str:
    return source.replace("class Model(", "class ModelNew(")


def test_a_model_new_of_torch_operators_is_right_and_partial(setup: ProgramSetup) -> None:
    check = setup.check(setup.task(NORM), renamed(NORM))
    assert check.status == "accepted", check.message
    assert check.flags == ("partial",)
    assert any("batch_norm" in finding.message for finding in check.findings), check.findings
    assert any(draw.draw == "weights-3/own-5" for draw in check.draws)


def test_batch_norm_that_uses_running_statistics_is_incorrect_in_train_mode(setup: ProgramSetup) -> None:
    folded = renamed(NORM).replace("return self.norm(x)", "self.norm.eval(); return self.norm(x)")
    assert setup.check(setup.task(NORM), folded).status == "incorrect"
    assert setup.check(setup.task(NORM, contract=Contract(mode="eval")), folded).status == "accepted"


def test_updated_buffers_are_compared_when_the_contract_says_so(setup: ProgramSetup) -> None:
    silent = renamed(NORM).replace(
        "return self.norm(x)",
        "return F.batch_norm(x, None, None, self.norm.weight, self.norm.bias, training=True)",
    )
    assert setup.check(setup.task(NORM), silent).status == "accepted"
    updated = setup.task(NORM, contract=Contract(buffers="updated"))
    check = setup.check(updated, silent)
    assert check.status == "incorrect"
    assert "output buffer:norm." in check.message


def test_a_program_that_draws_like_the_reference_is_accepted(setup: ProgramSetup) -> None:
    check = setup.check(setup.task(DROPOUT), renamed(DROPOUT))
    assert check.status == "accepted", check.message


def test_a_program_that_draws_otherwise_is_unmeasured_and_not_wrong(setup: ProgramSetup) -> None:
    other = renamed(DROPOUT).replace(
        "F.dropout(x, 0.4) * 2", "x * (torch.rand(96).view(16, 6) > 0.4) * 2 / 0.6"
    )
    check = setup.check(setup.task(DROPOUT), other.replace("torch.rand(96)", "torch.rand(97)[:96]"))
    assert (check.status, check.flags) == ("unmeasured", ("unsupported_rng",))


def test_a_program_that_draws_alike_and_computes_otherwise_is_incorrect(setup: ProgramSetup) -> None:
    check = setup.check(setup.task(DROPOUT), renamed(DROPOUT).replace("* 2", "* 3"))
    assert check.status == "incorrect", check.message


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ("def oops(:", "build_failed", "SyntaxError"),
        ("import no_such_module", "build_failed", "no_such_module"),
        ("class Other: ...", "build_failed", "defines no ModelNew"),
        ("class Model: ...", "build_failed", "it defines Model; rename to ModelNew"),
        ("class ModelNew(nn.Module):\n    def __init__(self, a): ...", "crashed", "constructor"),
        ("class ModelNew(nn.Module):\n    def forward(self, x):\n        return x.nope", "crashed", "nope"),
        (
            "class ModelNew(nn.Module):\n    def forward(self, x):\n        return x[:, :2]",
            "incorrect",
            "[16, 2]",
        ),
        (
            "class ModelNew(nn.Module):\n    def forward(self, x):\n        return x.double()",
            "incorrect",
            "float64",
        ),
        (
            "class ModelNew(nn.Module):\n    def forward(self, x):\n        return nn.Parameter(x), 1",
            "incorrect",
            "",
        ),
        (
            "import os\nclass ModelNew(nn.Module):\n    def forward(self, x):\n        os._exit(0)",
            "crashed",
            "code 0",
        ),
        (
            "class T(torch.Tensor): ...\nclass ModelNew(nn.Module):\n    def forward(self, x):\n"
            "        return x.as_subclass(T)",
            "crashed",
            "is a T, not a tensor",
        ),
    ],
)
def test_each_way_to_fail_in_python_has_its_status(
    setup: ProgramSetup, body: str, status: str, words: str
) -> None:
    check = setup.check(setup.task(NORM), body)
    assert check.status == status, check.message
    assert words in check.message


def test_a_program_that_forges_its_worker_s_answers_gains_nothing(setup: ProgramSetup) -> None:
    forged = """
import stitch_tools.worker.candidate.candidate_state as state
from stitch_tools.worker.candidate import candidate_server as serve

class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        state.CandidateState.run_python = lambda *rest: b""
"""
    # Its text gives it away; here the boundary alone must do.
    unread = CheckOptions(static=False)
    assert setup.check(setup.task(NORM), forged).status == "rejected_cheat"
    check = setup.check(setup.task(NORM), forged, unread)
    assert check.status == "incorrect"
    assert "was never written" in check.message
    lying = forged.replace('lambda *rest: b""', "lambda *rest: os.write(CHANNEL, b'x' * 100)").replace(
        "class ModelNew",
        "import os\nCHANNEL = max(int(fd) for fd in os.listdir('/proc/self/fd') if os.path.exists("
        "f'/proc/self/fd/{fd}') is False)\nclass ModelNew",
    )
    assert setup.check(setup.task(NORM), lying, unread).status == "crashed"


def test_strided_integer_bool_scalar_and_empty_inputs_reach_the_program(setup: ProgramSetup) -> None:
    source = """
class Model(nn.Module):
    def __init__(self, table):
        super().__init__()
        self.table = nn.Parameter(table * torch.rand(9, 4))
    def forward(self, x, ids, mask, scale, empty, named):
        y = F.embedding(ids, self.table) * scale + x
        return {"guard": torch.where(mask, y, named["fill"]), "best": y.argmax(-1), "n": len(ids)}, empty * 2
def get_inputs():
    return [torch.rand(4, 12).t(), torch.randint(0, 9, (12,)), torch.rand(12, 4) > 0.3, 0.5,
            torch.rand(0, 3), {"fill": torch.zeros(1).expand(4)}]
def get_init_inputs():
    return [torch.full((9, 4), 2.0)]
"""
    check = setup.check(setup.task(source), renamed(source))
    assert check.status == "accepted", check.message
    assert [row.output for row in check.draws[0].outputs] == ["0.guard", "0.best", "0.n", "1"]
    assert "permuted" in [draw.draw for draw in check.draws]


def test_a_batch_of_one_and_of_none_is_checked(setup: ProgramSetup) -> None:
    for size in (0, 1):
        source = NORM.replace("nn.BatchNorm1d", "nn.Linear(6, 6) if s else nn.LayerNorm").replace(
            "if s", "if 0"
        )
        source = source.replace("torch.randn(16, 6)", f"torch.randn({size}, 6)")
        check = setup.check(setup.task(source), renamed(source))
        assert check.status == "accepted", check.message


def test_a_task_that_ignores_its_inputs_makes_a_pass_weak(setup: ProgramSetup) -> None:
    source = DROPOUT.replace("F.dropout(x, 0.4) * 2", "x * 0 + 1")
    assert "weak" in setup.check(setup.task(source), renamed(source)).flags


def test_draws_that_the_reference_refuses_are_named_and_cost_nothing(setup: ProgramSetup) -> None:
    source = DROPOUT.replace("return F.dropout(x, 0.4) * 2", "assert (x > 0).any(); return x.sqrt()").replace(
        "randn(16, 6)", "rand(16, 6)"
    )
    check = setup.check(setup.task(source), renamed(source))
    assert check.status == "accepted", check.message
    text = " ".join(check.not_checked)
    assert "draw zeros: the reference refuses it: AssertionError" in text
    assert "draw signed: the reference's output is not finite on it" in text


def test_a_draw_that_the_reference_does_not_survive_is_skipped_and_the_rest_goes_on(
    setup: ProgramSetup,
) -> None:
    source = DROPOUT.replace(
        "return F.dropout(x, 0.4) * 2",
        "import ctypes\n        if not x.any(): ctypes.string_at(0)\n        return x + 1",
    )
    check = setup.check(setup.task(source), renamed(DROPOUT).replace("F.dropout(x, 0.4) * 2", "x + 1"))
    assert check.status == "accepted", check.message
    assert any("draw zeros: the reference did not survive" in reason for reason in check.not_checked)
    assert [draw.draw for draw in check.draws[-8:]] == [
        "near-constant",
        "batch-probe",
        "batch-larger",
        "batch-1",
        "own-1 again",
        "weights-2/own-4",
        "weights-2/scaled",
        "weights-3/own-5",
    ]


def test_weights_that_are_prepacked_in_the_constructor_are_a_note(setup: ProgramSetup) -> None:
    source = NORM.replace("nn.BatchNorm1d(6)", "nn.Linear(6, 6)")
    packed = renamed(source).replace(
        "return self.norm(x)",
        "self.packed = getattr(self, 'packed', None)\n        if self.packed is None:"
        " self.packed = self.norm.weight.detach().clone()\n"
        "        return F.linear(x, self.packed, self.norm.bias)",
    )
    check = setup.check(setup.task(source), packed)
    assert check.status == "accepted", check.message
    assert "weights_not_reloadable" in [finding.rule for finding in check.findings]
    other = renamed(source).replace("self.norm", "self.layer")
    check = setup.check(setup.task(source), other)
    assert check.status == "accepted", check.message
    assert any("other names" in finding.message for finding in check.findings)


def test_the_reference_s_own_faults_are_errors_with_the_line(setup: ProgramSetup) -> None:
    with pytest.raises(TaskError, match=r"reference\.py:7: AttributeError") as caught:
        setup.observe(setup.task(DROPOUT.replace("F.dropout", "F.dropuot")))
    assert all(name in caught.value.hint for name in ("reference.py", "Model", "get_inputs()"))
    with pytest.raises(TaskError, match="did not survive: the process crashed with SIGSEGV"):
        setup.observe(setup.task("import ctypes\nctypes.string_at(0)\n" + DROPOUT))
    with pytest.raises(TaskError, match=r"needed more memory|allocate"):
        setup.observe(setup.task(DROPOUT.replace("torch.randn(16, 6)", "torch.zeros(1 << 44)")))


def test_a_reference_that_prints_and_forks_is_harmless(setup: ProgramSetup) -> None:
    noisy = DROPOUT.replace(
        "return F.dropout(x, 0.4) * 2",
        "print('{\"ok\": true}'); import os\n        if os.fork() == 0: os._exit(0)\n        return x + 1",
    )
    check = setup.check(setup.task(noisy), renamed(DROPOUT).replace("F.dropout(x, 0.4) * 2", "x + 1"))
    assert check.status == "accepted", check.message


def test_a_native_program_returns_updated_buffers_through_the_state(setup: ProgramSetup) -> None:
    source = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))
    def forward(self, x):
        self.calls += 1
        return x * 2
def get_inputs():
    return [torch.randn(16)]
def get_init_inputs():
    return []
"""
    task = setup.task(source, contract=Contract(buffers="updated"))
    program = make_program(
        setup.store,
        {"twice.cpp": (Path(__file__).parents[1] / "programs" / "twice.cpp").read_bytes()},
        "twice.cpp",
    )
    with ReferenceServer(setup.session, task, setup.store) as reference:
        facts = reference.observe()
        assert facts.mutated_buffers == ("calls",)
        check = check_program(
            Trial(
                task=task,
                program=program,
                build=build(program, setup.store),
                session=setup.session,
                store=setup.store,
                facts=facts,
                reference=reference,
            )
        )
    assert check.status == "accepted", check.message
    assert [row.output for row in check.draws[0].outputs] == ["0", "buffer:calls"]


REFUSALS = {
    "python": "raise NotImplementedError('16 rows only')",
    "segment": "raise Refusal()",
    "assertion": "raise AssertionError('16 rows only')",
    "shape": "x = x.view(16, 6)",
}


@pytest.mark.parametrize("how", sorted(REFUSALS))
def test_a_model_new_that_refuses_another_leading_size_is_specialized(setup: ProgramSetup, how: str) -> None:
    source = "class Model(nn.Module):\n    def forward(self, x):\n        return x * 2\n"
    makers = "def get_inputs():\n    return [torch.randn(16, 6)]\ndef get_init_inputs():\n    return []\n"
    refusal = "class Refusal(Exception):\n    status = 'unsupported'\n"
    refusing = source.replace("return", f"if len(x) != 16:\n            {REFUSALS[how]}\n        return")
    check = setup.check(setup.task(source + makers), refusal + renamed(refusing))
    assert check.status == "accepted", check.message
    assert "specialized" in check.flags


def test_a_python_program_of_the_stitcher_is_partial_whatever_its_share(setup: ProgramSetup) -> None:
    task = setup.task(NORM, contract=Contract(pytorch_share=1.0))
    program = model_new(setup.store, HEAD + renamed(NORM))
    for author, flags in (("user", ()), (STITCHER, ("partial",))):
        written = program.model_copy(update={"author": author})
        check = check_program(
            Trial(
                task=task,
                program=written,
                build=None,
                session=setup.session,
                store=setup.store,
                facts=setup.observe(task),
            )
        )
        assert check.status == "accepted", check.message
        assert check.flags == flags


def test_that_layers_of_the_reference_are_in_training_mode_is_a_note_of_the_check(
    setup: ProgramSetup,
) -> None:
    program = NORM.replace("class Model", "class ModelNew")
    options = CheckOptions(own_draws=1, structured=False, static=False)
    check = setup.check(setup.task(NORM), program, options)
    assert check.status == "accepted", check.message
    note = next(row for row in check.findings if row.rule == "train_mode")
    assert "BatchNorm1d uses the statistics of the batch" in note.message
    chosen = setup.task(NORM, contract=Contract(mode="eval"))
    assert "train_mode" not in noted(setup.check(chosen, program, options))


SETTLED = """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
    def forward(self, x):
        return F.dropout(self.norm(x), 0.5, self.training) * 3
block = Block().eval()
def get_inputs():
    return [torch.randn(16, 6)]
"""
SAME = SETTLED.replace("Block", "ModelNew").partition("block =")[0]


@pytest.mark.slow
@pytest.mark.parametrize(("contract", "training"), [(Contract(), False), (None, True)])
def test_the_reference_s_mode_is_the_program_s(
    setup: ProgramSetup, contract: Contract | None, training: bool
) -> None:
    """The file's own mode where nobody names one; the contract's where somebody does."""
    contract = contract or Contract(mode="train", sources={"mode": "task.toml"})
    task = setup.task(SETTLED, entry="block", style="object", init_inputs=None, contract=contract)
    assert setup.observe(task).training is training
    check = setup.check(task, SAME, CheckOptions(own_draws=1, structured=False, static=False))
    assert check.status == "accepted", check.message
