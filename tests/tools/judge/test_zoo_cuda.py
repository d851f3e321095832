"""The adversarial suite for a GPU: judged where there is one, read, built and imported everywhere."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stitch_tools.compile.build import compile_program
from stitch_tools.judge.source import scan_program
from stitch_tools.models.program import Program
from stitch_tools.run.interpreter import find_interpreter
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store
from tests.gpu_archs import each_arch
from tests.tools.judge.zoo_runner import ZOO, Case, Court, load_cases

CASES = load_cases("cuda")
NATIVE = [case for case in CASES if case.main.endswith(".cu")]
# What a CPU judges, too, is imported there; a slow one builds itself.
ONLY_HERE = [case for case in CASES if not case.native and "cpu" not in case.targets and not case.slow]
SAMPLE = ("sums_across_a_cluster", "tf32_product", "output_flood_on_gpu")
"""Clusters, tensor cores and device functions of the runtime: what an architecture may lack."""

IMPORT = """
import importlib.util, sys
sys.path.insert(0, sys.argv[1])
for path in sys.argv[2:]:
    spec = importlib.util.spec_from_file_location("candidate", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert isinstance(module.ModelNew, type), path
    print(path)
"""


def of_kind(cases: list[Case]) -> list[object]:
    """The cases by their folder."""
    return [pytest.param(case, id=f"{case.kind}-{case.name}") for case in cases]


@pytest.mark.parametrize("case", of_kind(list(CASES)))
def test_the_text_shows_what_the_case_says_and_convicts_no_honest_program(case: Case) -> None:
    found = scan_program(
        case.files(),
        format="native" if case.native else "kernelbench",
        main=case.main,
        reference_source=(ZOO / "references" / f"{case.reference}.py").read_bytes(),
    )
    assert set(case.static) <= {row.rule for row in found}
    fatal = [row.rule for row in found if row.severity == "fatal"]
    if case.kind == "honest":
        assert fatal == []
    if "static" in case.caught_by:
        assert fatal


def test_every_cheat_for_a_gpu_names_the_probe_that_catches_it() -> None:
    assert [case.name for case in CASES if case.kind == "cheats" and not case.caught_by] == []


@pytest.mark.nvcc
@each_arch
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case,
            id=f"{case.kind}-{case.name}",
            marks=() if case.name in SAMPLE else pytest.mark.exhaustive,
        )
        for case in NATIVE
    ],
)
def test_every_program_is_built(case: Case, archs: tuple[str, ...], tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    program = Program(
        format="native", target="cuda:sm_90", files=store.put_files(case.files()), main=case.main
    )
    build = compile_program(program, store, cache_dir=tmp_path / "cache", archs=archs)
    assert build.ok, build.diagnostics
    assert build.diagnostics == ()


def test_python_candidates_can_be_imported_without_a_gpu(tmp_path: Path) -> None:
    command = [sys.executable, "-c", IMPORT, str(ZOO / "native")]
    paths = [str(case.folder / case.main) for case in ONLY_HERE]
    done = subprocess.run([*command, *paths], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == paths


@pytest.fixture(scope="module")
def court(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Court]:
    root = tmp_path_factory.mktemp("zoo-cuda")
    with (
        TargetSession(find_interpreter(None, root), scratch_root=root / "scratch") as session,
        Court(session, root, "cuda:sm_90") as court,
    ):
        yield court


def judged() -> list[object]:
    """The cases with their marks."""
    rows: list[object] = []
    for case in CASES:
        marks = [pytest.mark.slow] if case.slow else []
        # What only the clock can catch is accepted by a check, which is all that runs here.
        if case.missed and "timing" not in case.caught_by:
            marks.append(pytest.mark.xfail(reason="the judge does not catch it yet", strict=True))
        rows.append(pytest.param(case, id=f"{case.kind}-{case.name}", marks=marks))
    return rows


@pytest.mark.gpu
@pytest.mark.skipif(not Path("/dev/nvidiactl").exists(), reason="no NVIDIA GPU here: not measured")
@pytest.mark.parametrize("case", judged())
def test_the_judge_says_what_the_case_expects_on_a_gpu(court: Court, case: Case) -> None:
    verdict = court.judge(case)
    assert verdict.catches(case), (verdict.status, verdict.flags, verdict.findings, verdict.message)
