"""The program of every skill compiles; the judge accepts those for CPUs, and on a GPU all."""

from pathlib import Path

import pytest

from stitch_planner.skills.library import Skill, packaged_skills
from stitch_tools.compile.build import compile_program
from stitch_tools.judge.check import check_program
from stitch_tools.judge.check_options import CheckOptions
from stitch_tools.judge.trial import Trial
from stitch_tools.models.program import Build, Program
from stitch_tools.models.verdict import Check
from stitch_tools.run.reference_server import ReferenceServer
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store
from stitch_tools.task.references import load_task

SKILLS = Path(__file__).parents[3] / "planner" / "stitch_planner" / "skills"
CPU = [skill for skill in packaged_skills() if skill.head.metadata.target == "cpu"]
CUDA = [skill for skill in packaged_skills() if skill.head.metadata.target == "cuda"]
QUICK = ("cpu-packed-gemm", "cpu-horizontal-fusion")
"""Judged in each run of the suite; others in the exhaustive one."""
SHORT = CheckOptions(own_draws=2, structured=False, second_weights=False, trace=False)
EACH_CPU = [
    pytest.param(skill, id=skill.name, marks=() if skill.name in QUICK else (pytest.mark.exhaustive,))
    for skill in CPU
]


def built(skill: Skill, store: Store, target: str, cache: Path) -> tuple[Program, Build]:
    file = skill.program
    files = store.put_files({file.path: file.content})
    program = Program(format="native", target=target, files=files, main=file.path)
    return program, compile_program(program, store, cache_dir=cache)


def judged(skill: Skill, session: TargetSession, folder: Path, target: str, options: CheckOptions) -> Check:
    store = Store(folder / "store")
    reference = SKILLS / skill.name / "reference.py"
    task = load_task(str(reference), workspace=reference.parent, store=store, target=target)
    program, build = built(skill, store, target, folder / "cache")
    assert build.ok, build.diagnostics
    with ReferenceServer(session, task, store) as server:
        facts = server.observe()
        trial = Trial(
            task=task,
            program=program,
            build=build,
            session=session,
            store=store,
            facts=facts,
            reference=server,
        )
        return check_program(trial, options)


@pytest.mark.parametrize("skill", EACH_CPU)
def test_the_program_of_a_cpu_skill_is_accepted(skill: Skill, session: TargetSession, tmp_path: Path) -> None:
    check = judged(skill, session, tmp_path, "cpu", SHORT)
    assert check.status == "accepted", check.message
    assert check.flags == ()


@pytest.mark.exhaustive
@pytest.mark.parametrize("skill", CPU, ids=lambda skill: skill.name)
def test_a_cpu_skill_passes_the_whole_check(skill: Skill, session: TargetSession, tmp_path: Path) -> None:
    check = judged(skill, session, tmp_path, "cpu", CheckOptions())
    assert check.status == "accepted", check.message
    assert check.flags == ()


@pytest.mark.slow
@pytest.mark.nvcc
@pytest.mark.parametrize("skill", CUDA, ids=lambda skill: skill.name)
def test_the_program_of_a_cuda_skill_compiles_without_warnings_and_spills(
    skill: Skill, tmp_path: Path
) -> None:
    _, build = built(skill, Store(tmp_path / "store"), "cuda:sm_90", tmp_path / "cache")
    assert build.ok, build.diagnostics
    assert not build.diagnostics
    assert sum(row.spill_store_bytes + row.spill_load_bytes for row in build.resources) == 0


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/nvidiactl").exists(), reason="no NVIDIA GPU here: not measured")
@pytest.mark.parametrize("skill", CUDA, ids=lambda skill: skill.name)
def test_the_program_of_a_cuda_skill_is_accepted(
    skill: Skill, session: TargetSession, tmp_path: Path
) -> None:
    check = judged(skill, session, tmp_path, "cuda", CheckOptions())
    assert check.status == "accepted", check.message
