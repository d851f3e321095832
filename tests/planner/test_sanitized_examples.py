"""What the stitcher writes is clean under every sanitizer: three examples of different kinds."""

from pathlib import Path

import pytest

from stitch_planner.planning import make_plan
from stitch_planner.stitcher import stitch
from stitch_tools.compile import compile_program
from stitch_tools.compile.headers import find_onednn
from stitch_tools.graph import capture_graph
from stitch_tools.judge.memory import SanitizeOptions, sanitize_program
from stitch_tools.judge.trial import Trial
from stitch_tools.models.program import STITCHER, Program
from stitch_tools.run.reference_server import ReferenceServer
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store
from stitch_tools.task.references import load_task
from tests.tools.judge.memory.test_sanitize_cpu import runtimes_are_here

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def session(two_threads: TargetSession, tmp_path_factory: pytest.TempPathFactory) -> TargetSession:
    if not runtimes_are_here(tmp_path_factory.mktemp("runtimes")):
        pytest.skip("not measured: the compiler here has no sanitizer runtimes")
    session = two_threads
    if not find_onednn((session.interpreter.prefix,)).found:
        pytest.skip("not measured: oneDNN is not here")
    return session


@pytest.mark.parametrize(
    "name", ["mlp", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("gru", "conv_bn_relu"))]
)
def test_a_stitched_program_has_no_memory_error_race_or_undefined_behavior(
    name: str, session: TargetSession, tmp_path: Path
) -> None:
    store = Store(tmp_path / "store")
    task = load_task(str(EXAMPLES / f"{name}.task.toml"), workspace=EXAMPLES, store=store)
    with ReferenceServer(session, task, store) as server:
        facts = server.observe()
        graph = capture_graph(server.child, task, facts, None)
        sources = {file.path: store.get(file.sha256) for file in task.files}
        stitched = stitch(task, facts, graph, make_plan(graph, facts, task, None), sources)
        program = Program(
            format=stitched.format,
            target="cpu",
            files=store.put_files(stitched.files),
            main=stitched.main,
            author=STITCHER,
        )
        assert program.format == "native"
        runs = sanitize_program(
            Trial(
                task=task,
                program=program,
                build=compile_program(program, store, prefixes=(session.interpreter.prefix,)),
                session=session,
                store=store,
                facts=facts,
                reference=server,
            ),
            SanitizeOptions(),
        )
    assert [(run.tool, run.findings) for run in runs] == [
        (tool, ()) for tool in ("asan", "ubsan", "init", "tsan")
    ]
    statuses = {run.tool: run.status for run in runs}
    # Races of OpenMP's threads are told where libomp has Archer.
    races = "clean" if "libarcher" not in runs[-1].reason else "not_checked"
    assert statuses == {"asan": "clean", "ubsan": "clean", "init": "clean", "tsan": races}
