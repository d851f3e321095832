"""Many checks at once neither block nor disturb each other, and one program has one verdict."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stitch_tools.judge.check import check_program
from stitch_tools.judge.check_options import CheckOptions
from stitch_tools.judge.trial import Trial
from stitch_tools.machine.device_lock import device_lock
from stitch_tools.models.program import Program
from stitch_tools.models.task import ReferenceFacts
from stitch_tools.models.verdict import Check
from stitch_tools.run.interpreter import find_interpreter
from stitch_tools.run.reference_server import ReferenceServer
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store
from tests.tools.check_support import build, faulty_program, linear_relu_task

WORKERS = 8
SHORT = CheckOptions(structured=False, sensitivity=False, trace=False, call_timeout_s=5.0)


class LoadSetup:
    """A warm session, used by many threads at once."""

    def __init__(self, session: TargetSession, store: Store) -> None:
        self.session, self.store = session, store
        self.task = linear_relu_task(store)
        with ReferenceServer(session, self.task, store) as reference:
            self.facts: ReferenceFacts = reference.observe()

    def program(self, fault: str) -> Program:
        return faulty_program(self.store, fault)

    def check(self, program: Program, options: CheckOptions = SHORT) -> Check:
        """A check with a reference server of its own."""
        return check_program(
            Trial(
                task=self.task,
                program=program,
                build=build(program, self.store),
                session=self.session,
                store=self.store,
                facts=self.facts,
            ),
            options,
        )


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadSetup]:
    root = tmp_path_factory.mktemp("load")
    with TargetSession(find_interpreter(None, root), threads=1, scratch_root=root / "scratch") as session:
        yield LoadSetup(session, Store(root / "store"))


EXPECTED = {
    "NONE": "accepted",
    "TAIL": "incorrect",
    "CRASH": "crashed",
    "FAILS": "crashed",
    "CACHED_FIRST": "rejected_cheat",
    "FLOODS": "crashed",
    "WRONG_SHAPE": "incorrect",
    "EXIT": "crashed",
}


@pytest.mark.exhaustive
def test_eight_workers_at_once_each_get_their_own_verdict(setup: LoadSetup) -> None:
    assert len(EXPECTED) == WORKERS
    programs = {fault: setup.program(fault) for fault in EXPECTED}
    for program in programs.values():
        build(program, setup.store)
    with ThreadPoolExecutor(WORKERS) as pool:
        futures = {fault: pool.submit(setup.check, program) for fault, program in programs.items()}
        found = {fault: future.result(timeout=300) for fault, future in futures.items()}
    assert {fault: check.status for fault, check in found.items()} == EXPECTED
    (own,) = (setup.store.root.parent / "scratch").iterdir()
    assert list(own.iterdir()) == []
    assert setup.check(programs["NONE"]).status == "accepted"


def test_eight_that_time_never_share_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STITCH_LOCK_DIR", str(tmp_path))
    counted = threading.Lock()
    inside, most, served = 0, 0, 0

    def use() -> None:
        nonlocal inside, most, served
        with device_lock("cpu", wait_s=120.0, purpose="timing"):
            with counted:
                inside += 1
                most = max(most, inside)
            deadline = time.monotonic() + 0.01
            while time.monotonic() < deadline:
                pass
            with counted:
                inside, served = inside - 1, served + 1

    threads = [threading.Thread(target=use) for _ in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=150)
    assert (most, served) == (1, WORKERS)


@pytest.mark.exhaustive
@pytest.mark.parametrize("fault", ["NONE", "TOLERANCE", "CACHED_BY_ADDRESS"])
def test_the_same_program_judged_twenty_times_has_one_verdict(setup: LoadSetup, fault: str) -> None:
    program = setup.program(fault)
    with ReferenceServer(setup.session, setup.task, setup.store) as reference:
        verdicts = {
            (check.status, check.flags, tuple(row.rule for row in check.findings))
            for check in (
                check_program(
                    Trial(
                        task=setup.task,
                        program=program,
                        build=build(program, setup.store),
                        session=setup.session,
                        store=setup.store,
                        facts=setup.facts,
                        reference=reference,
                    ),
                    CheckOptions(trace=False),
                )
                for _ in range(20)
            )
        }
    assert len(verdicts) == 1, verdicts
