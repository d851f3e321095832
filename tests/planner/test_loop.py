"""What a resumed run refuses."""

import threading
from functools import partial
from pathlib import Path

import pytest

from stitch_planner.context import RunContext
from stitch_planner.loop import solve
from stitch_planner.opening import SolveRequest
from stitch_planner.runs.run import Run, Workspace, read_state, started
from stitch_planner.runs.run_events import (
    BenchFinished,
    BuildFinished,
    CertificateWritten,
    CheckFinished,
    DecisionMade,
    GraphCaptured,
    PlanMade,
    ProgramWritten,
    ReferenceObserved,
    RunEvent,
    RunFinished,
    RunResumed,
    RunStarted,
)
from stitch_tools.errors import InterruptedRunError, StoreError, UsageError
from stitch_tools.models.acceptance import AcceptPolicy
from stitch_tools.models.base import sha256_hex
from stitch_tools.models.environment import Environment
from stitch_tools.models.program import Program
from stitch_tools.models.task import Task
from stitch_tools.models.verdict import Bench, Check
from stitch_tools.run.interpreter import find_interpreter

MODEL = """
import torch


def model(x):
    return torch.relu(x)


def get_inputs():
    return [torch.randn(8, 4)]
"""


@pytest.fixture
def begun(tmp_path: Path) -> Workspace:
    """A workspace with a run that another machine began."""
    workspace = Workspace(tmp_path)
    task = Task(name="model", files=(), main="model.py")
    run = Run(workspace.runs_folder / "20260101-model", workspace.store)
    environment = Environment(stitch_version="0.0.1", platform="Plan 9", cpu="Z80")
    run.record(
        RunStarted(
            task=workspace.store.put_fact(task),
            task_id=task.task_id,
            coder="stitcher",
            quick=False,
            threads=1,
            require_sandbox="process",
            interpreter=find_interpreter(None, tmp_path).path,
            environment=workspace.store.put_fact(environment),
        )
    )
    run.close()
    return workspace


def test_a_run_of_another_machine_is_not_continued(begun: Workspace) -> None:
    with pytest.raises(UsageError, match="platform was Plan 9"):
        solve(SolveRequest(workspace=begun.root, resume="last"))


@pytest.mark.parametrize("change", [{"quick": True}, {"overrides": {"rtol": 1.0}}, {"inputs": "make"}])
def test_a_resumed_run_keeps_what_it_was_asked(begun: Workspace, change: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="keeps its contract"):
        solve(SolveRequest(workspace=begun.root, resume="last", **change))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target": "cuda:sm_90"}, "--target: it was started with cpu, and cuda:sm_90 is asked for"),
        ({"min_speedup": 2.0}, "--min-speedup: it was started without it, and 2.0 is asked for"),
        ({"threads": 2}, "--threads: it was started with 1, and 2 is asked for"),
        (
            {"require_sandbox": "full"},
            "--require-sandbox: it was started with process, and full is asked for",
        ),
        (
            {"policy": AcceptPolicy(flags=("weak",))},
            "--accept: it was started without it, and weak is asked for",
        ),
    ],
)
def test_a_resumed_run_keeps_its_options(begun: Workspace, change: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        solve(SolveRequest(workspace=begun.root, resume="last", **change))  # pyright: ignore[reportArgumentType]


def test_the_same_options_again_are_none_that_are_refused(begun: Workspace) -> None:
    same = SolveRequest(
        workspace=begun.root, resume="last", target="cpu", threads=1, require_sandbox="process"
    )
    with pytest.raises(UsageError, match="platform was Plan 9"):
        solve(same)


def test_a_log_from_before_these_options_is_read(begun: Workspace) -> None:
    first = started(read_state(begun.run_folder("last"))).model_dump(mode="json")
    del first["threads"], first["require_sandbox"]
    assert RunStarted.model_validate(first).threads is None


def test_a_resumed_run_s_steps_get_the_options_that_it_was_begun_with(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL, encoding="utf-8")
    stopped = threading.Event()
    stopped.set()
    reference = str(tmp_path / "model.py:model")
    first = SolveRequest(workspace=tmp_path, reference=reference, threads=1, require_sandbox="process")
    with pytest.raises(InterruptedRunError):
        solve(first, stop=stopped)
    seen: list[tuple[int | None, str | None]] = []

    def look(context: RunContext) -> None:
        seen.append((context.workbench.threads, context.workbench.require_sandbox))
        raise StoreError("seen", hint="")

    with pytest.raises(StoreError, match="seen") as caught:
        solve(SolveRequest(workspace=tmp_path, resume="last"), handlers={"reference": look})
    (remedy,) = caught.value.remedies
    assert (remedy.tool, list(remedy.arguments)) == ("solve", ["run_id"])
    assert seen == [(1, "process")]


def test_a_run_whose_beginning_is_damaged_goes_on_after_solving_the_reference_again(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL, encoding="utf-8")
    stopped = threading.Event()
    stopped.set()
    anew = SolveRequest(workspace=tmp_path, reference=str(tmp_path / "model.py:model"))
    with pytest.raises(InterruptedRunError):
        solve(anew, stop=stopped)
    workspace = Workspace(tmp_path)
    (run_id,) = workspace.run_ids()
    run = Run(workspace.run_folder(run_id), workspace.store)
    run.record(ReferenceObserved(facts=workspace.store.put(b"facts")))
    run.close()
    for blob in workspace.store.root.glob("??/*"):
        blob.write_bytes(b"#" + blob.read_bytes()[1:])
    with pytest.raises(StoreError, match="damaged") as caught:
        solve(SolveRequest(workspace=tmp_path, resume="last"))
    assert [row.arguments for row in caught.value.remedies] == [
        {"reference": "REFERENCE"},
        {"run_id": run_id},
    ]
    for request in (anew, SolveRequest(workspace=tmp_path, resume=run_id)):
        with pytest.raises(InterruptedRunError, match="before the step 'reference'"):
            solve(request, stop=stopped)


@pytest.mark.parametrize("step", ["check", "bench", "certificate"])
def test_a_finished_run_that_lost_a_result_does_that_step_and_what_follows_again(
    tmp_path: Path, step: str
) -> None:
    (tmp_path / "model.py").write_text(MODEL, encoding="utf-8")
    stopped = threading.Event()
    stopped.set()
    with pytest.raises(InterruptedRunError):
        solve(SolveRequest(workspace=tmp_path, reference=str(tmp_path / "model.py:model")), stop=stopped)
    workspace = Workspace(tmp_path)
    run, store, done = Run(workspace.run_folder("last"), workspace.store), workspace.store, list[str]()
    program = Program(format="native", target="cpu", files=(), main="program.cpp")
    known = program.program_id
    archive = run.folder / "x.stitch.zip"
    written = CertificateWritten(
        program_id=known, file=archive.name, sha256=sha256_hex(b"PK"), certificate_id="c"
    )
    judged = Check(program_id=known, task_id="t", status="accepted")
    timed = Bench(program_id=known, task_id="t", outcome="faster")
    found: dict[str, RunEvent] = {
        "reference": ReferenceObserved(facts=store.put(b"facts")),
        "graph": GraphCaptured(graph=store.put(b"graph"), ceilings=None, source="export"),
        "plan": PlanMade(plan=store.put(b"plan"), steps=1),
        "program": ProgramWritten(program=store.put_fact(program), program_id=known),
        "build": BuildFinished(program_id=known, build=None, ok=True),
        "check": CheckFinished(
            program_id=known, check=store.put_fact(judged), status="accepted", counts=True
        ),
        "bench": BenchFinished(program_id=known, bench=store.put_fact(timed), outcome="faster", counts=True),
        "decision": DecisionMade(program_id=known, decision="accept", reason=""),
        "certificate": written,
        "finished": RunFinished(status="accepted", outcome="faster", message="", program_id=known),
    }
    archive.write_bytes(b"PK")

    def do(name: str, context: RunContext) -> None:
        done.append(name)
        # What was lost is stored anew.
        archive.write_bytes(b"PK")
        store.put_fact(judged)
        store.put_fact(timed)
        context.run.record(found[name])

    for event in found.values():
        run.record(event)
    run.close()
    handlers = {name: partial(do, name) for name in found}
    again = SolveRequest(workspace=tmp_path, resume="last")
    solve(again, handlers=handlers)
    assert done == [], "what is whole is not repeated"
    facts = {"check": judged, "bench": timed}
    lost = archive if step == "certificate" else store.path(sha256_hex(facts[step].canonical_json()))
    lost.write_bytes(b"#")
    names = list(found)
    solve(again, handlers=handlers)
    assert done == names[names.index(step) :]
    state = read_state(run.folder)
    assert state.finished is not None
    program_id = "" if step == "certificate" else known
    assert state.resumed == RunResumed(step=step, program_id=program_id)


def test_a_refused_run_is_free_for_the_next_process(begun: Workspace) -> None:
    with pytest.raises(UsageError):
        solve(SolveRequest(workspace=begun.root, resume="last"))
    Run(begun.run_folder("last"), begun.store).close()


def test_nothing_and_both_are_no_request(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing to solve"):
        solve(SolveRequest(workspace=tmp_path))
    Run(Workspace(tmp_path).runs_folder / "r", Workspace(tmp_path).store).close()
    with pytest.raises(UsageError, match="has its reference already"):
        solve(SolveRequest(workspace=tmp_path, reference="x.py", resume="r"))
