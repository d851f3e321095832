"""Who did the work on a CPU, for real programs: own code, a library, PyTorch, and mixtures."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from stitch_tools.compile.headers import find_onednn
from stitch_tools.judge.check import check_program
from stitch_tools.judge.check_options import CheckOptions
from stitch_tools.judge.trial import Trial
from stitch_tools.models.evidence import WorkEvidence
from stitch_tools.models.program import Program
from stitch_tools.models.task import Contract
from stitch_tools.models.verdict import Check
from stitch_tools.run.reference_server import ReferenceServer
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store
from tests.tools.check_support import PROGRAMS, build, make_program, make_task, model_new

REFERENCE = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.tanh(torch.mm(x, x) / 16)
def get_inputs():
    return [torch.randn(256, 256)]
def get_init_inputs():
    return []
"""
# A C++ library that the Python file builds and calls itself; BODY is what forward does with it.
WITH_CTYPES = """
import ctypes, subprocess, torch
SOURCE = r'''
#include <cmath>
extern "C" void product(const float* x, float* y, long n) {
#pragma omp parallel for
  for (long i = 0; i < n; ++i) {
    for (long j = 0; j < n; ++j) y[i * n + j] = 0;
    for (long k = 0; k < n; ++k)
      for (long j = 0; j < n; ++j) y[i * n + j] += x[i * n + k] * x[k * n + j];
  }
}
extern "C" void bend(float* y, long n) { for (long i = 0; i < n * n; ++i) y[i] = std::tanh(y[i] / 16); }
'''
subprocess.run(["g++", "-O2", "-fopenmp", "-shared", "-fPIC", "-x", "c++", "-", "-o", "./own.so"],
               input=SOURCE, text=True, check=True)
LIBRARY = ctypes.CDLL("./own.so")
def pointer(tensor):
    return ctypes.c_void_p(tensor.data_ptr())
class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        n = ctypes.c_long(len(x))
BODY
        LIBRARY.bend(pointer(y), n)
        return y
"""
OWN_PRODUCT = "        LIBRARY.product(pointer(x), pointer(y), n)"
TORCH_PRODUCT = "        torch.mm(x, x, out=y)"
# What the text shows has tests of its own (tests/tools/judge/source).
FEW = CheckOptions(static=False, own_draws=1, structured=False, batch_probe=False, second_weights=False)


class WorkSetup:
    """A warm session and the task."""

    def __init__(self, session: TargetSession, store: Store) -> None:
        self.session, self.store = session, store
        self.task = make_task(store, REFERENCE)
        self.reference = ReferenceServer(session, self.task, store)
        self.facts = self.reference.observe()

    def check(
        self, program: Program, contract: Contract | None = None, cpus: int | None = None
    ) -> tuple[Check, WorkEvidence]:
        """The check of a right and honest program, and its evidence."""
        check = self.raw(program, contract, cpus)
        assert check.status == "accepted", check.message
        assert check.work is not None, [row.message for row in check.findings]
        assert check.work.outputs_right
        assert [row.rule for row in check.findings if row.severity == "suspicious"] == []
        return check, check.work

    def raw(self, program: Program, contract: Contract | None = None, cpus: int | None = None) -> Check:
        """The check, whatever it says."""
        task = self.task if contract is None else self.task.model_copy(update={"contract": contract})
        return check_program(
            Trial(
                task=task,
                program=program,
                build=build(program, self.store) if program.format == "native" else None,
                session=self.session,
                store=self.store,
                facts=self.facts,
                reference=self.reference,
            ),
            replace(FEW, cpus=cpus),
        )

    def native(self, how: str) -> Program:
        """`tanh_square.cpp`, computed by one of its ways."""
        source = (PROGRAMS / "tanh_square.cpp").read_bytes()
        files = {"tanh_square.cpp": source, "how.h": f"#define HOW {how}\n".encode()}
        return make_program(self.store, files, "tanh_square.cpp")


@pytest.fixture(scope="module")
def setup(two_threads: TargetSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkSetup]:
    root = tmp_path_factory.mktemp("work")
    setup = WorkSetup(two_threads, Store(root / "store"))
    with setup.reference:
        yield setup


def names(work: WorkEvidence, owner: str) -> str:
    return " ".join(item.name for item in work.items if item.owner == owner)


def test_a_model_new_of_torch_operators_is_all_pytorch_and_partial(setup: WorkSetup) -> None:
    source = REFERENCE.replace("class Model(", "class ModelNew(")
    check, work = setup.check(model_new(setup.store, source))
    assert work.pytorch_of_work > 0.99
    assert check.flags == ("partial",)
    assert "aten::mm" in names(work, "pytorch")
    finding = next(row for row in check.findings if row.rule == "pytorch_share")
    assert "aten::mm" in finding.message


def test_the_contract_s_allowance_decides_what_is_partial(setup: WorkSetup) -> None:
    source = REFERENCE.replace("class Model(", "class ModelNew(")
    check, _ = setup.check(model_new(setup.store, source), Contract(pytorch_share=1.0))
    assert check.flags == ()


def test_a_model_new_whose_own_library_computes_everything_is_its_own_work(setup: WorkSetup) -> None:
    check, work = setup.check(model_new(setup.store, WITH_CTYPES.replace("BODY", OWN_PRODUCT)))
    assert check.flags == ()
    assert work.own / work.work > 0.95
    assert not any("own.so" in reason for reason in check.not_checked)


def test_a_model_new_of_own_code_and_torch_operators_shows_both(setup: WorkSetup) -> None:
    check, work = setup.check(model_new(setup.store, WITH_CTYPES.replace("BODY", TORCH_PRODUCT)))
    assert check.flags == ("partial",)
    assert 0.1 < work.own / work.work < 0.95
    assert "aten::mm" in names(work, "pytorch")


def test_operators_in_threads_that_are_made_anew_are_seen(setup: WorkSetup) -> None:
    in_threads = """
        for _ in range(40):  # far more than what is computed in the thread that forward runs on
            thread = threading.Thread(target=torch.mm, args=(x, x), kwargs={"out": y})
            thread.start()
            thread.join()
"""
    source = "import threading\n" + WITH_CTYPES.replace("BODY", in_threads)
    check, work = setup.check(model_new(setup.store, source))
    assert check.flags == ("partial",)
    assert "aten::mm" in names(work, "pytorch")


def test_a_model_new_that_brings_no_code_and_calls_a_library_is_flagged(setup: WorkSetup) -> None:
    source = """
import numpy, torch
class ModelNew(torch.nn.Module):
    def forward(self, x):
        return torch.from_numpy(numpy.tanh(x.numpy() @ x.numpy() / 16))
"""
    check, work = setup.check(model_new(setup.store, source))
    assert check.flags == ("library_only",)
    assert work.library / work.work > 0.95
    assert work.own == 0.0


def test_a_native_program_of_own_loops_is_its_own_work(setup: WorkSetup) -> None:
    check, work = setup.check(setup.native("OWN"))
    assert check.flags == ()
    assert work.own / work.work > 0.95
    assert (work.method, work.counts_match, work.launches) == ("operators", None, None)


@pytest.mark.skipif(not find_onednn().found, reason="oneDNN is not installed here: not measured")
def test_what_a_library_did_for_a_native_program_is_not_told_apart_and_said_to_be_so(
    setup: WorkSetup,
) -> None:
    check, work = setup.check(setup.native("ONEDNN"))
    assert check.flags == ()
    assert work.own / work.work > 0.95
    reason = next(reason for reason in check.not_checked if reason.startswith("who did the work"))
    assert "libdnnl" in reason


def test_a_native_program_that_calls_operators_past_the_dispatcher_is_partial(setup: WorkSetup) -> None:
    check, work = setup.check(setup.native("LIBTORCH"))
    assert check.flags == ("partial",)
    assert work.pytorch_of_work > 0.95
    reason = next(reason for reason in check.not_checked if reason.startswith("who did the work"))
    assert "mm_out can be called past PyTorch's dispatcher" in reason


def test_a_program_that_looks_for_dispatch_modes_is_seen_all_the_same(setup: WorkSetup) -> None:
    shy = REFERENCE.replace("class Model(", "class ModelNew(").replace(
        "        return",
        "        from torch.utils._python_dispatch import _get_current_dispatch_mode\n"
        "        if _get_current_dispatch_mode(): raise RuntimeError('watched')\n"
        "        return",
    )
    check, _ = setup.check(model_new(setup.store, shy))
    assert check.flags == ("partial",)


# What a program that wants to behave under the profiler asks.
WATCHED = """
import os, torch
def watched():
    return int(torch.autograd.profiler._is_profiler_enabled)
"""


def test_a_program_that_is_wrong_under_the_profiler_is_suspicious(setup: WorkSetup) -> None:
    aware = REFERENCE.replace("class Model(", "class ModelNew(").replace("/ 16)", "/ 16) + watched()")
    check = setup.raw(model_new(setup.store, WATCHED + aware))
    assert check.status == "accepted", check.message
    assert [row.rule for row in check.findings if row.severity == "suspicious"] == ["traced_outputs_differ"]


def test_a_program_that_dies_under_the_profiler_is_suspicious(setup: WorkSetup) -> None:
    dying = REFERENCE.replace("class Model(", "class ModelNew(").replace(
        "        return", "        if watched(): os._exit(3)\n        return"
    )
    check = setup.raw(model_new(setup.store, WATCHED + dying))
    assert check.work is None
    assert [row.rule for row in check.findings] == ["untraceable"], check.not_checked
    assert "who did the work: the program fails under the profiler" in check.not_checked


def test_shares_sum_to_one(setup: WorkSetup) -> None:
    _, work = setup.check(setup.native("OWN"))
    assert work.work + work.other == pytest.approx(1.0)
    assert sum(item.share for item in work.items) == pytest.approx(1.0)


def with_pause(store: Store, body: str = OWN_PRODUCT, after: str = "") -> Program:
    """A program that takes three seconds to be loaded, as one does that compiles an extension."""
    return model_new(store, f"import time\ntime.sleep(3)\n{WITH_CTYPES.replace('BODY', body)}\n{after}")


def test_a_program_that_compiles_itself_is_loaded_for_the_profiler_meanwhile(setup: WorkSetup) -> None:
    walls: dict[int, float] = {}
    shares: dict[int, float] = {}
    for cpus in (2, 8):
        check, work = setup.check(with_pause(setup.store, after=f"# {cpus}"), cpus=cpus)
        assert check.wall_s is not None
        walls[cpus], shares[cpus] = check.wall_s, work.own
    assert walls[8] < walls[2] - 1.5
    assert abs(shares[8] - shares[2]) < 0.3


@pytest.mark.parametrize(
    ("body", "after", "status"),
    [
        ("        y.fill_(0)", "", "incorrect"),
        (OWN_PRODUCT, "import os; os._exit(3)", "crashed"),
        (OWN_PRODUCT, "raise ValueError('no')", "build_failed"),
    ],
    ids=["wrong", "dies", "raises"],
)
def test_a_program_that_fails_meanwhile_ends_as_ever(
    setup: WorkSetup, body: str, after: str, status: str
) -> None:
    # One folder a child, beside that of the reference.
    folders = Path(setup.reference.child.scratch).parent
    before = len(list(folders.iterdir()))
    check = setup.raw(with_pause(setup.store, body, after), cpus=8)
    assert check.status == status, check.message
    assert len(list(folders.iterdir())) == before
