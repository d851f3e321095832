"""Takes a reference the whole way that `solve` goes with it, up to its check."""

from dataclasses import dataclass
from pathlib import Path

from stitch_planner.plan import Plan
from stitch_planner.planning import make_plan
from stitch_planner.stitcher import Stitched, stitch
from stitch_tools.compile import compile_program
from stitch_tools.graph import capture_graph
from stitch_tools.judge.check import check_program
from stitch_tools.judge.check_options import CheckOptions
from stitch_tools.judge.trial import Trial
from stitch_tools.models.program import STITCHER, Build, Program
from stitch_tools.models.verdict import Check
from stitch_tools.run.reference_server import ReferenceServer
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store
from stitch_tools.task.references import load_task

SHORT = CheckOptions(own_draws=2, structured=False, batch_probe=False)


@dataclass(frozen=True)
class Judged:
    """One reference at the end of its way."""

    plan: Plan
    stitched: Stitched
    build: Build | None
    """None for a program in Python, which builds its native part itself."""
    check: Check


def judged(
    path: Path,
    session: TargetSession,
    store: Store,
    options: CheckOptions = SHORT,
    overrides: dict[str, object] | None = None,
) -> Judged:
    """The stitched program of a reference or task file, and its check.

    Args:
        path: the reference or its task file.
        session: where it is captured, and its program runs.
        store: of task and program.
        options: of the check.
        overrides: fields of the contract.

    Raises:
        StitchFailedError: no program can be written for it.
    """
    task = load_task(str(path), workspace=path.parent, store=store, overrides=overrides)
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
        build = None
        if stitched.format == "native":
            build = compile_program(program, store, prefixes=(session.interpreter.prefix,))
        check = check_program(
            Trial(
                task=task,
                program=program,
                build=build,
                session=session,
                store=store,
                facts=facts,
                reference=server,
            ),
            options,
        )
    return Judged(plan, stitched, build, check)
