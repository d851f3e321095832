"""Small programs with one defect each under the CPU's sanitizers, and their honest twin."""

import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from stitch_tools.compile.host_build import build_sanitizer_host
from stitch_tools.errors import EnvironmentMissingError
from stitch_tools.judge.memory import (
    SanitizeOptions,
    apply_sanitizers,
    sanitize_program,
)
from stitch_tools.judge.memory.archer import Archer, find_archer
from stitch_tools.judge.memory.case import not_checked
from stitch_tools.judge.memory.cpu import ADDRESS_AND_UNDEFINED
from stitch_tools.judge.trial import Trial
from stitch_tools.models.sanitizer import SanitizerRun, SanitizerTool
from stitch_tools.models.task import Contract, Task
from stitch_tools.models.verdict import Check
from stitch_tools.run.interpreter import find_interpreter
from stitch_tools.run.reference_server import ReferenceServer
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store
from tests.sampling import sampled
from tests.tools.check_support import PROGRAMS, build, make_program, make_task, model_new


def runtimes_are_here(cache_dir: Path) -> bool:
    """Whether the compiler brings the sanitizers' runtimes."""
    try:
        build_sanitizer_host(ADDRESS_AND_UNDEFINED, cache_dir)
    except EnvironmentMissingError:
        return False
    return True


def archer_is_here() -> bool:
    """Whether OpenMP's races can be told here."""
    try:
        find_archer([Path(sys.prefix)])
    except EnvironmentMissingError:
        return False
    return True


needs_archer = pytest.mark.skipif(not archer_is_here(), reason="libomp with libarcher is not here")


@dataclass
class CpuSanitizerSetup:
    """A warm session with the reference."""

    session: TargetSession
    store: Store
    task: Task
    reference: ReferenceServer
    cache_dir: Path

    def __post_init__(self) -> None:
        self.facts = self.reference.observe()

    def run(
        self, defect: str, *tools: SanitizerTool, extra: str = "", limit_s: float = 60.0
    ) -> dict[str, SanitizerRun]:
        files = {
            "doubled.cpp": (PROGRAMS / "doubled.cpp").read_bytes(),
            "defect.h": f"#define DEFECT {defect}\n{extra}\n".encode(),
        }
        program = make_program(self.store, files, "doubled.cpp")
        runs = sanitize_program(
            Trial(
                task=self.task,
                program=program,
                build=build(program, self.store),
                session=self.session,
                store=self.store,
                facts=self.facts,
                reference=self.reference,
            ),
            SanitizeOptions(tools=tools, limit_s=limit_s, cache_dir=self.cache_dir),
        )
        return {run.tool: run for run in runs}


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CpuSanitizerSetup]:
    root = tmp_path_factory.mktemp("sanitize")
    if not runtimes_are_here(root / "cache"):
        pytest.skip("the compiler here has no sanitizer runtimes: not measured")
    store = Store(root / "store")
    task = make_task(store, (PROGRAMS / "doubled.py").read_bytes(), contract=Contract(shape_policy="fixed"))
    with (
        TargetSession(find_interpreter(None, root), scratch_root=root / "scratch") as session,
        ReferenceServer(session, task, store) as reference,
    ):
        yield CpuSanitizerSetup(session, store, task, reference, root / "cache")


def test_an_honest_program_is_clean_under_every_tool(setup: CpuSanitizerSetup) -> None:
    runs = setup.run("NONE")
    assert set(runs) == {"asan", "ubsan", "init", "tsan"}
    assert {run.inputs for run in runs.values()} == {"own-1"}
    races = runs.pop("tsan")
    assert {run.status for run in runs.values()} == {"clean"}, runs
    if archer_is_here():
        assert races.status == "clean", races
    else:
        assert (races.status, "libarcher" in races.reason) == ("not_checked", True), races


@pytest.mark.parametrize(
    ("defect", "rule", "sentence"),
    sampled(
        [
            ("READS_ONE_BEYOND", "heap-buffer-overflow", "READ of size 4, 0 bytes"),
            ("WRITES_ONE_BEYOND", "heap-buffer-overflow", "WRITE of size 4, 0 bytes"),
            ("KEEPS_INPUT_POINTER", "heap-use-after-free", "inside of 4000-byte region"),
            ("KEEPS_FREED_MEMORY", "heap-use-after-free", "heap-use-after-free: READ of size 4"),
            ("OVERFLOWS_STACK", "stack-buffer-overflow", "stack-buffer-overflow: READ of size 4"),
            ("OVERFLOWS_HEAP", "heap-buffer-overflow", "32-byte region"),
            ("CRASHES", "segmentation-fault", "caused by a WRITE"),
        ],
        2,
    ),
)
def test_accesses_outside_of_memory_are_fatal_and_name_the_line(
    setup: CpuSanitizerSetup, defect: str, rule: str, sentence: str
) -> None:
    run = setup.run(defect, "asan")["asan"]
    assert run.status == "findings"
    (finding,) = run.findings
    assert (finding.rule, finding.severity, finding.file) == (rule, "fatal", "doubled.cpp")
    assert sentence in finding.message
    assert finding.kernel == "misbehave"
    source = (PROGRAMS / "doubled.cpp").read_text(encoding="utf-8").splitlines()
    # A statement may begin a line before the access.
    assert finding.line is not None
    assert any(word in "".join(source[finding.line - 2 : finding.line]) for word in ("sink", "= 1", "own["))


@needs_archer
@pytest.mark.parametrize("defect", ["RACES", "RACES_WITHOUT_BARRIER"])
def test_a_race_is_fatal_and_openmp_s_own_order_is_none(setup: CpuSanitizerSetup, defect: str) -> None:
    run = setup.run(defect, "tsan")["tsan"]
    assert run.status == "findings"
    assert {(row.rule, row.severity, row.file) for row in run.findings} == {
        ("data-race", "fatal", "doubled.cpp")
    }
    assert run.findings[0].kernel in ("sum_wrongly", "double_all")


@pytest.mark.parametrize(
    ("defect", "rule"),
    [("OVERFLOWS_INT", "signed-integer-overflow"), ("SHIFTS_TOO_FAR", "invalid-shift-exponent")],
)
def test_undefined_behavior_is_suspicious(setup: CpuSanitizerSetup, defect: str, rule: str) -> None:
    runs = setup.run(defect, "asan", "ubsan")
    (finding,) = runs["ubsan"].findings
    assert (finding.rule, finding.severity) == (rule, "suspicious")
    assert runs["asan"].status == "clean"


@pytest.mark.parametrize("defect", ["READS_UNWRITTEN", "READS_UNWRITTEN_HEAP"])
def test_an_output_that_depends_on_unwritten_memory_is_found_without_poisoned_values(
    setup: CpuSanitizerSetup, defect: str
) -> None:
    runs = setup.run(defect, "asan", "init")
    assert runs["asan"].status == "clean"
    (finding,) = runs["init"].findings
    assert (finding.rule, finding.severity) == ("uninitialised-output", "fatal")
    assert "output 0" in finding.message
    assert "byte 2000" in finding.message


def test_unwritten_memory_that_reaches_no_output_is_no_finding(setup: CpuSanitizerSetup) -> None:
    assert setup.run("READS_UNWRITTEN_UNUSED", "init")["init"].status == "clean"


def test_calls_that_differ_by_themselves_leave_unwritten_memory_unchecked(setup: CpuSanitizerSetup) -> None:
    run = setup.run("COUNTS_CALLS", "init")["init"]
    assert run.status == "not_checked"
    assert "two calls" in run.reason


def test_what_does_not_finish_is_not_checked_under_any_tool(setup: CpuSanitizerSetup) -> None:
    for run in setup.run("HANGS", limit_s=2.0).values():
        if "libarcher" in run.reason:
            continue  # without Archer nothing is run for races
        assert (run.status, run.reason) == ("not_checked", "did not finish within 2 s")


def test_a_program_that_refuses_the_inputs_is_not_checked_with_its_own_words(
    setup: CpuSanitizerSetup,
) -> None:
    for run in setup.run("REFUSES").values():
        assert run.status == "not_checked"
        assert "not today" in run.reason or "libarcher" in run.reason


@needs_archer
def test_openmp_s_tasks_are_ordered_for_the_race_check_too(setup: CpuSanitizerSetup) -> None:
    assert setup.run("NONE", "tsan", extra="#define USES_A_TASK 1")["tsan"].status == "clean"


def test_archer_is_taken_from_the_first_root_that_has_both_libraries(tmp_path: Path) -> None:
    for root, names in (("half", ["libomp.so.5"]), ("whole", ["libomp.so.5", "libarcher.so"])):
        (tmp_path / root / "lib").mkdir(parents=True)
        for name in names:
            (tmp_path / root / "lib" / name).touch()
    found = find_archer([tmp_path / "half", tmp_path / "whole"], system=())
    assert found == Archer(tmp_path / "whole/lib/libomp.so.5", tmp_path / "whole/lib/libarcher.so")
    with pytest.raises(EnvironmentMissingError, match="libomp with libarcher"):
        find_archer([tmp_path / "half"], system=())


def test_a_python_program_is_not_checked_on_a_cpu(setup: CpuSanitizerSetup) -> None:
    program = model_new(setup.store, "class ModelNew: pass\n")
    runs = sanitize_program(
        Trial(
            task=setup.task,
            program=program,
            build=None,
            session=setup.session,
            store=setup.store,
            facts=setup.facts,
        )
    )
    assert {run.status for run in runs} == {"not_checked"}
    assert "Python program" in runs[0].reason


def test_without_a_runtime_the_tools_are_not_checked(
    setup: CpuSanitizerSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = setup.cache_dir / "no-runtimes"
    real = shutil.which("g++")
    compiler.write_text(
        '#!/bin/sh\ncase "$*" in *-fsanitize*) echo "ld: cannot find -lasan" >&2; exit 1;; esac\n'
        f'exec {real} "$@"\n',
        encoding="utf-8",
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("STITCH_CXX", str(compiler))
    for run in setup.run("NONE").values():
        assert run.status == "not_checked"
        assert "-fsanitize" in run.reason


ACCEPTED = Check(program_id="p", task_id="t", status="accepted", message="12 draws agree")


def test_a_fatal_finding_makes_an_accepted_program_incorrect(setup: CpuSanitizerSetup) -> None:
    check = apply_sanitizers(ACCEPTED, tuple(setup.run("WRITES_ONE_BEYOND", "asan", "init").values()))
    assert check.status == "incorrect"
    assert check.message.startswith("asan: doubled.cpp:")
    (finding,) = check.findings
    assert (finding.rule, finding.severity) == ("asan.heap-buffer-overflow", "suspicious")
    assert "certified without init: memory errors come first" in check.not_checked
    assert [run.tool for run in check.sanitizers] == ["asan", "init"]


def test_a_suspicious_finding_stays_visible_on_what_is_accepted(setup: CpuSanitizerSetup) -> None:
    check = apply_sanitizers(ACCEPTED, tuple(setup.run("OVERFLOWS_INT", "ubsan").values()))
    assert check.status == "accepted"
    assert [row.rule for row in check.findings] == ["ubsan.signed-integer-overflow"]


def test_tools_that_were_left_out_are_named_in_the_certificate_s_words() -> None:
    check = apply_sanitizers(ACCEPTED, [not_checked(tool, "no time left") for tool in ("asan", "ubsan")])
    assert check.status == "accepted"
    assert check.not_checked == tuple(f"certified without {tool}: no time left" for tool in ("asan", "ubsan"))
