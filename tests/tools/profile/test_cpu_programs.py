"""A native CPU program of two phases with known costs, really built, run and sampled."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from stitch_tools.judge.trial import Trial
from stitch_tools.models.profile import KernelTime
from stitch_tools.models.task import Contract, Task
from stitch_tools.profile.cpu_programs import CpuReport, profile_cpu_program
from stitch_tools.run.interpreter import find_interpreter
from stitch_tools.run.reference_server import ReferenceServer
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store
from tests.tools.check_support import PROGRAMS, build, make_program, make_task

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="programs run on Linux only: not measured")
HERE = Path(__file__).parent


@dataclass
class CpuProfileSetup:
    session: TargetSession
    store: Store
    task: Task
    reference: ReferenceServer
    cache_dir: Path

    def profile(self, source: str, header: str, *, spend_ms: int = 1500) -> CpuReport:
        files = {"program.cpp": source.encode(), "variant.h": header.encode()}
        program = make_program(self.store, files, "program.cpp")
        trial = Trial(
            task=self.task,
            program=program,
            build=build(program, self.store),
            session=self.session,
            store=self.store,
            facts=self.reference.observe(),
            reference=self.reference,
        )
        return profile_cpu_program(trial, self.reference, cache_dir=self.cache_dir, spend_ms=spend_ms)


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CpuProfileSetup]:
    root = tmp_path_factory.mktemp("profile")
    store = Store(root / "store")
    task = make_task(store, (PROGRAMS / "doubled.py").read_bytes(), contract=Contract(shape_policy="fixed"))
    with (
        TargetSession(find_interpreter(None, root), scratch_root=root / "scratch") as session,
        ReferenceServer(session, task, store) as reference,
    ):
        yield CpuProfileSetup(session, store, task, reference, root / "cache")


def two_phases() -> str:
    return (HERE / "two_phases.cpp").read_text(encoding="utf-8")


def row_of(report: CpuReport, name: str) -> KernelTime:
    assert report.system is not None, report
    return next(row for row in report.system.kernels if name in row.name)


def test_functions_are_reported_with_their_shares_and_lines(setup: CpuProfileSetup) -> None:
    report = setup.profile(two_phases(), "")
    assert report.status == "profiled", report.message
    assert report.system is not None
    assert report.system.origin == "sampled"
    long_row, short_row = row_of(report, "long_phase"), row_of(report, "short_phase")
    assert long_row.total_us / short_row.total_us == pytest.approx(3.0, rel=0.10)
    assert (long_row.file, long_row.owner) == ("program.cpp", "own")
    assert report.kernels[0].kernel == "long_phase"
    # Optimised code lies on the line of the addition or of the loops around it.
    line = report.kernels[0].answers[0].line
    assert line is not None
    text = two_phases().splitlines()[line - 1]
    assert "nothing" in text or "worked" in text or "rounds" in text


def test_steps_between_borders_are_timed(setup: CpuProfileSetup) -> None:
    report = setup.profile(two_phases(), "#define SHOWS_STEPS\n")
    assert report.status == "profiled", report.message
    assert report.system is not None
    assert report.system.origin == "instrumented"
    first, second = row_of(report, "first"), row_of(report, "second")
    assert first.total_us / second.total_us == pytest.approx(3.0, rel=0.10)
    assert first.module == "first"
    assert sum(row.share for row in report.system.kernels) == pytest.approx(1.0)
    assert report.kernels[0].kernel == "first"
    assert report.kernels[0].answers[0].verdict in ("worked", "long_phase")


def test_a_program_that_fails_is_crashed_and_says_why(setup: CpuProfileSetup) -> None:
    begin = "const DLTensor& input = args"
    refusing = two_phases().replace(begin, f"return STITCH_UNSUPPORTED;\n  {begin}")
    report = setup.profile(refusing, "")
    assert report.status == "crashed"
    assert "forward" in report.message
    assert report.system is None
