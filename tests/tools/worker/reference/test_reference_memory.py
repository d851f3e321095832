"""Where the reference in fp64 does not fit into memory a weaker oracle judges, and the check says so."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from stitch_tools.judge.check_options import CheckOptions
from stitch_tools.models.task import Task
from stitch_tools.models.verdict import Check
from stitch_tools.protocol.messages_session import ChildLimits
from stitch_tools.run.interpreter import find_interpreter
from stitch_tools.run.reference_server import Expectation, ReferenceServer
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store
from stitch_tools.worker.reference.oracle_memory import OraclePlace, places_for
from tests.tools.check_support import checked, make_task, model_new

MIB = 1 << 20
NO_MEMORY = ("not enough memory for the reference in fp64",)
HEAD = "import torch\nfrom torch import nn\n"
# One call takes about 8 bytes times the square of the number of rows: a product of all pairs, and its tanh.
PAIRS = "(x[:, None] * x[None, :]).tanh().sum(1)"
HEAVY = "        self.fc = nn.Linear(4096, 4096)\n"
"""64 MiB of weights."""


@dataclass(frozen=True)
class OracleMemorySetup:
    """A warm session."""

    session: TargetSession
    store: Store

    def task(self, forward: str, inputs: str, init: str = "") -> Task:
        source = f"{HEAD}{module('Model', forward, init)}def get_inputs():\n    return [{inputs}]\n"
        return make_task(self.store, source + "def get_init_inputs():\n    return []\n")

    def expectations(self, task: Task, memory_bytes: int, draws: int = 1) -> list[Expectation]:
        """What is expected of own draws, by a server with so much memory; it has looked at the task first."""
        with ReferenceServer(
            self.session, task, self.store, limits=ChildLimits(memory_bytes=memory_bytes)
        ) as server:
            server.observe()
            server.set_weights().close()
            found: list[Expectation] = []
            for number in range(1, draws + 1):
                server.make_draw(f"own-{number}").close()
                found.append(server.expect())
        return found

    def check(self, task: Task, forward: str, memory_bytes: int) -> Check:
        """Of a program with this forward, judged by a server with so much memory."""
        program = model_new(self.store, HEAD + module("ModelNew", forward))
        options = CheckOptions(trace=False, structured=False, batch_probe=False, sensitivity=False)
        limits = ChildLimits(memory_bytes=memory_bytes)
        return checked(self.session, self.store, task, program, options, limits=limits)


def module(name: str, forward: str, init: str = "") -> str:
    start = f"class {name}(nn.Module):\n    def __init__(self):\n        super().__init__()\n{init}"
    return f"{start}    def forward(self, x):\n        return {forward}\n"


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OracleMemorySetup]:
    root: Path = tmp_path_factory.mktemp("memory")
    with TargetSession(find_interpreter(None, root), threads=1, scratch_root=root / "scratch") as session:
        yield OracleMemorySetup(session, Store(root / "store"))


def test_weights_that_do_not_fit_twice_as_wide_are_seen_beforehand(setup: OracleMemorySetup) -> None:
    task = setup.task("self.fc(x)", "torch.rand(4, 4096)", HEAVY)
    (little,) = setup.expectations(task, 240 * MIB)
    assert (little.oracle, little.notes) == ("fp32-strict", NO_MEMORY)
    (enough,) = setup.expectations(task, 1024 * MIB)
    assert (enough.oracle, enough.notes) == ("fp64", ())


def test_what_a_call_takes_counts_although_the_task_was_looked_at_before(setup: OracleMemorySetup) -> None:
    task = setup.task(PAIRS, "torch.rand(5000)")  # 200 MB
    (little,) = setup.expectations(task, 320 * MIB)
    assert (little.oracle, little.notes) == ("fp32-strict", NO_MEMORY)


def test_the_oracle_s_own_memory_does_not_count_as_the_reference_s(setup: OracleMemorySetup) -> None:
    task = setup.task(PAIRS, "torch.rand(3000)")  # 72 MB; in fp64 about three times as much
    found = setup.expectations(task, 480 * MIB, draws=3)
    assert [(row.oracle, row.notes) for row in found] == [("fp64", ())] * 3


def test_memory_of_draws_before_is_used_again_and_no_lack_of_it_for_the_next(
    setup: OracleMemorySetup,
) -> None:
    # Freed memory is kept from the first oracle on; a larger draw may need it, and the limit counts it.
    task = setup.task("x * 2.0 + 1.0", "torch.rand(1 << 22)")  # 16 MiB, 32 in fp64
    found = setup.expectations(task, 4096 * MIB, draws=8)
    assert [(row.oracle, row.notes) for row in found] == [("fp64", ())] * 8


def test_large_tensors_take_no_new_pages_once_freed_memory_is_kept() -> None:
    code = (
        "import resource, torch\n"
        "from stitch_tools.worker.reference.oracle_memory import keep_freed_memory\n"
        "assert keep_freed_memory(1 << 33)\n"
        "torch.set_num_threads(1)\n"
        "def use(): return [torch.ones(1 << 24) for _ in range(3)] and None\n"
        "for _ in range(8): use()\n"  # until the heap has its size
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "use()\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 10_000  # 49,152 pages


def test_memory_that_nobody_could_foresee_is_no_fault_of_the_reference_s(setup: OracleMemorySetup) -> None:
    more = "x + (torch.ones(1 << 30).sum() if x.dtype == torch.float64 else 0)"
    (found,) = setup.expectations(setup.task(more, "torch.rand(8)"), 480 * MIB)
    assert (found.oracle, found.notes) == ("fp32-strict", NO_MEMORY)


def test_a_reference_that_refuses_fp64_is_named_with_its_words(setup: OracleMemorySetup) -> None:
    picky = "x * {torch.float32: 2.0}[x.dtype]"
    (found,) = setup.expectations(setup.task(picky, "torch.rand(8)"), 480 * MIB)
    assert found.oracle == "fp32-strict"
    assert found.notes == ("the reference does not run in fp64: KeyError: torch.float64",)


def test_without_a_wide_oracle_right_is_accepted_wrong_is_not_and_the_check_says_so(
    setup: OracleMemorySetup,
) -> None:
    task = setup.task(PAIRS, "torch.rand(5000)")
    right = setup.check(task, "(x.outer(x)).tanh().sum(1)", 320 * MIB)
    assert (right.status, right.oracle) == ("accepted", "fp32-strict"), right.message
    assert NO_MEMORY[0] in right.not_checked
    wrong = setup.check(task, "(x.outer(x)).tanh().sum(1) * 1.01", 320 * MIB)
    assert (wrong.status, wrong.oracle) == ("incorrect", "fp32-strict"), wrong.message


@pytest.mark.parametrize(
    ("host_free", "gpu_free", "places"),
    [
        (2000, None, ("fp64",)),
        (1000, None, ()),
        (2000, 2000, ("fp64", "fp64-cpu")),
        (2000, 1000, ("fp64-cpu",)),
        (1000, 2000, ("fp64",)),
        (1000, 1000, ()),
    ],
)
def test_the_gpu_comes_first_then_the_host(
    host_free: int, gpu_free: int | None, places: tuple[str, ...]
) -> None:
    found = places_for(1000, host_free_bytes=host_free, gpu_free_bytes=gpu_free)
    assert tuple(place.kind for place in found) == places
    assert all(place == OraclePlace("fp64-cpu", "cpu") for place in found if place.kind == "fp64-cpu")
