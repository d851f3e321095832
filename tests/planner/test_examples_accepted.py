"""Every packaged example goes the whole way and is accepted, under a shorter check than `solve` makes."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from stitch_planner.plan import Plan, make_plan
from stitch_planner.stitcher import stitch
from stitch_tools.check import CheckOptions, ReferenceServer, check_program
from stitch_tools.compile import compile_program
from stitch_tools.graph import capture_graph
from stitch_tools.models import STITCHER, Build, Check, Program, Task
from stitch_tools.processes.interpreter import find_interpreter
from stitch_tools.processes.session import TargetSession
from stitch_tools.references import load_task
from stitch_tools.store import Store

EXAMPLES = Path(__file__).parents[2] / "examples"
TASKS = sorted(EXAMPLES.glob("*.task.toml"))
SHORT = CheckOptions(own_draws=2, structured=False, second_weights=False, trace=False)


@dataclass(frozen=True)
class Judged:
    """One example at the end of its way."""

    task: Task
    plan: Plan
    program: Program
    build: Build
    check: Check


@pytest.fixture(scope="module")
def session() -> Iterator[TargetSession]:
    with TargetSession(find_interpreter(None, Path.cwd()), threads=2) as session:
        yield session


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(tmp_path_factory.mktemp("examples") / "store")


def judge(path: Path, session: TargetSession, store: Store) -> Judged:
    """What `solve` does up to its check, with fewer draws."""
    task = load_task(str(path), workspace=path.parent, store=store)
    with ReferenceServer(session, task, store) as server:
        facts = server.observe()
        graph = capture_graph(server.child, task, facts, None)
        plan = make_plan(graph, facts, task, None)
        sources = {file.path: store.get(file.sha256) for file in task.files}
        stitched = stitch(task, facts, graph, plan, sources)
        files = store.put_files(stitched.files)
        program = Program(
            format=stitched.format, target="cpu", files=files, main=stitched.main, author=STITCHER
        )
        build = compile_program(
            program, store, cache_dir=store.root.parent / "cache", prefixes=(session.interpreter.prefix,)
        )
        check = check_program(
            task, program, build, session=session, store=store, facts=facts, options=SHORT, reference=server
        )
    return Judged(task, plan, program, build, check)


def test_every_example_has_its_task_file() -> None:
    assert [path.name.partition(".")[0] for path in TASKS] == sorted(p.stem for p in EXAMPLES.glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("path", TASKS, ids=lambda path: path.name.partition(".")[0])
def test_an_example_becomes_a_native_program_that_is_accepted(
    path: Path, session: TargetSession, store: Store
) -> None:
    seen = judge(path, session, store)
    assert seen.program.format == "native", seen.plan.notes
    assert not [step for step in seen.plan.steps if step.kind == "eager"], seen.plan.notes
    assert seen.check.status == "accepted", seen.check.message
    assert not set(seen.check.flags) - {"specialized"}
    assert [draw.draw for draw in seen.check.draws][:2] == ["own-1", "own-2"]
    assert seen.check.oracle == "fp64"
