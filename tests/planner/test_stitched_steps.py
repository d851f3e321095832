"""The profiling build of what the stitcher writes: every step is marked, and is timed under its own name."""

import re
import sys
from pathlib import Path

import pytest

from stitch_planner.planning import make_plan
from stitch_planner.stitcher import Stitched, stitch
from stitch_tools.compile import compile_program
from stitch_tools.graph import build_graph
from stitch_tools.judge.trial import Trial
from stitch_tools.models.program import Program
from stitch_tools.models.task import Contract, Task
from stitch_tools.profile.cpu_programs import profile_cpu_program
from stitch_tools.profile.cpu_steps import mark_steps, module_of
from stitch_tools.run.interpreter import find_interpreter
from stitch_tools.run.reference_server import ReferenceServer
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store
from stitch_tools.worker.capture.graph_capture import capture
from tests.planner.stitch_support import NO_FACTS
from tests.planner.test_stitch_programs import EXAMPLES, load
from tests.tools.check_support import make_task

_STATEMENT = re.compile(r"^    (?:cpu::\w+<\w+>::run\(|STITCH_TRY\(\w+\.run\()", re.MULTILINE)


def stitched(name: str) -> Stitched:
    namespace = load(EXAMPLES / f"{name}.py")
    module = namespace.Model(*getattr(namespace, "get_init_inputs", list)()).eval()
    contract = Contract(mode="eval")
    graph = build_graph(capture(module, namespace.get_inputs()), contract, None)
    task = Task(name="case", files=(), main="case.py", contract=contract)
    return stitch(task, NO_FACTS, graph, make_plan(graph, NO_FACTS, task, None))


@pytest.mark.parametrize("name", ["mlp", "transformer_block", "unet_block"])
def test_each_statement_of_a_stitched_program_has_a_mark_of_its_own(name: str) -> None:
    made = stitched(name)
    source = made.files[made.main].decode("utf-8")
    marked = mark_steps(source)
    assert marked is not None
    names = re.findall(r'^    stitch_step\("(.+)"\);$', marked, re.MULTILINE)
    assert len(names) == len(set(names)) == len(_STATEMENT.findall(source))
    assert len(marked.splitlines()) == len(source.splitlines())
    assert any(module_of(step) for step in names)


@pytest.mark.skipif(sys.platform != "linux", reason="programs run on Linux only: not measured")
def test_a_stitched_program_s_time_is_told_by_step(tmp_path: Path) -> None:
    made = stitched("mlp")
    store = Store(tmp_path / "store")
    task = make_task(
        store, (EXAMPLES / "mlp.py").read_bytes(), contract=Contract(mode="eval", shape_policy="fixed")
    )
    program = Program(format=made.format, target="cpu", files=store.put_files(made.files), main=made.main)
    with (
        TargetSession(find_interpreter(None, tmp_path), scratch_root=tmp_path / "scratch") as session,
        ReferenceServer(session, task, store) as reference,
    ):
        build = compile_program(program, store, prefixes=(session.interpreter.prefix,))
        trial = Trial(
            task=task,
            program=program,
            build=build,
            session=session,
            store=store,
            facts=reference.observe(),
            reference=reference,
        )
        report = profile_cpu_program(trial, reference, cache_dir=tmp_path / "cache", spend_ms=500)
    assert (report.status, report.message) == ("profiled", "")
    assert report.system is not None
    assert report.system.origin == "instrumented"
    source = made.files[made.main].decode("utf-8")
    assert len(report.system.kernels) == len(_STATEMENT.findall(source))
    assert sum(row.share for row in report.system.kernels) == pytest.approx(1.0)
    assert all(row.count == pytest.approx(1.0) for row in report.system.kernels)
