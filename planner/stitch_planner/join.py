"""What an outside agent does in a run.

Its programs are recorded by the same recorder as those of `solve`, so that either continues the other's run.
"""

import contextlib
import time
from collections.abc import Generator
from pathlib import Path

from stitch_planner.budget import resume_remedy
from stitch_planner.certify import certify_attempt, refuse_uncounted
from stitch_planner.plan import Plan
from stitch_planner.runs.attempt_evidence import AttemptEvidence, evidence_of
from stitch_planner.runs.recorder import (
    record_end,
    record_program,
)
from stitch_planner.runs.run import OUTSIDE, Run, Workspace, lost_step, started
from stitch_planner.runs.run_events import DecisionMade
from stitch_tools.errors import LockedError, StoreError, UsageError
from stitch_tools.models.program import STITCHER, Program
from stitch_tools.models.remedy import Remedy
from stitch_tools.models.task import Task


@contextlib.contextmanager
def joined(workspace: Workspace, run_id: str, *, wait_s: float = 10.0) -> Generator[Run]:
    """The run opened for writing, after up to `wait_s` seconds in which another process holds it.

    Raises:
        LockedError: that process still holds it; the message names it.
        UsageError: there is no such run.
    """
    folder = workspace.run_folder(run_id)
    # Polled: a file lock wakes nobody when it becomes free.
    deadline = time.monotonic() + wait_s
    while True:
        try:
            run = Run(folder, workspace.store)
            break
        except LockedError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.1)
    try:
        yield run
    finally:
        run.close()


def known_of(run: Run, program_id: str) -> AttemptEvidence | None:
    """The evidence on a program of this run; None where the run does not know it.

    Raises:
        StoreError: some of it is missing or damaged.
    """
    attempt = run.state.attempt(program_id)
    return evidence_of(run.store, attempt, started(run.state).policy) if attempt else None


def require_correct(run: Run, program: Program) -> None:
    """Refuse to time a program that was not found correct in this run.

    Raises:
        UsageError: it was not; the remedies name what helps.
    """
    attempt = run.state.attempt(program.program_id)
    if attempt is None or attempt.check is None:
        raise _unchecked(run, program)
    if not attempt.accepted:
        raise UsageError(
            f"program {program.program_id[:16]} is not accepted: its check says {attempt.status}",
            remedies=_instead(run, program, "benchmark_program"),
        )


def certify_program(run: Run, task: Task, program: Program, plan: Plan) -> Path:
    """The certificate of a program of the run that counts; the run is finished with it.

    Raises:
        UsageError: it does not count, or was not checked in this run; the remedies name what helps.
        StoreError: the archive cannot be written, or something that belongs into it is missing or damaged.
    """
    lost = lost_step(run)
    if lost is not None and lost.name != "certificate":
        raise StoreError(
            f"what the run's step '{lost.name}' had found is missing or damaged",
            remedies=(resume_remedy(run.run_id),),
        )
    evidence = known_of(run, program.program_id)
    if evidence is None or evidence.verdict is None:
        raise _unchecked(run, program)
    # A program that is refused is not taken up: a finished run stays as it ended.
    refuse_uncounted(evidence.verdict, evidence.attempt, _instead(run, program, "certify_program"))
    attempt = record_program(run, program)
    written = run.state.certificate
    # A retried call gets the archive that is there: a second one would have another time stamp and hash.
    if written and run.state.finished and lost is None and written.program_id == program.program_id:
        return run.folder / written.file
    # Decision, certificate, end: the same order as in the loop, so that a kill in between is resumed by
    # either.
    made = DecisionMade(program_id=program.program_id, decision="accept", reason=evidence.sentence)
    run.record(made)
    certified = certify_attempt(run, task, plan, attempt)
    run.record(certified)
    record_end(run, evidence)
    return run.folder / certified.file


def reopen(run: Run) -> bool:
    """Whether a finished run of an outside agent was reopened for a program of the stitcher.

    It wrote none in it yet; a second one would equal the first. What is known of other
    programs stays, and the best of all is certified at its new end.
    """
    state = run.state
    stitched = started(state).coder != OUTSIDE or any(row.author == STITCHER for row in state.attempts)
    if stitched or state.finished is None or state.result is None:
        return False
    reason = "the run was finished without a program of the stitcher, and solve asked for one"
    made = DecisionMade(program_id=state.result.program_id, decision="optimize", reason=reason)
    run.record(made)
    return True


def _unchecked(run: Run, program: Program) -> UsageError:
    arguments = {"run_id": run.run_id, "program": program.program_id}
    check = Remedy(tool="check_program", arguments={**arguments}, why="have the program accepted first")
    return UsageError(
        f"program {program.program_id[:16]} is not accepted: it was not checked in this run",
        remedies=(check,),
    )


def _instead(run: Run, program: Program, tool: str) -> tuple[Remedy, ...]:
    """What helps where a program was refused: the run's best one, and a fix of this one."""
    repair = Remedy(
        tool="compile_program",
        arguments={"run_id": run.run_id, "files": {program.main: "FIXED SOURCE"}},
        why="fix the program, build it, and check it again",
    )
    # A program that counts already is offered first: it needs no further work.
    best = run.state.best
    if best is None:
        return (repair,)
    other = {"run_id": run.run_id, "program": best.program_id[:16]}
    return (Remedy(tool=tool, arguments={**other}, why="it counts, and is the best of this run"), repair)
