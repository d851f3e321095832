"""Solves a folder of references, one run each; one that fails does not end the others."""

import contextlib
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, Unpack

from stitch_mcp.api import load_task, solve
from stitch_mcp.config import Settings, configure
from stitch_planner.runs.run import Workspace, read_state
from stitch_planner.runs.state import State
from stitch_planner.workbench import Emit
from stitch_tools.errors import InterruptedRunError, StitchError, StoreError, UsageError
from stitch_tools.models.base import Fact

HowEnded = Literal["solved", "known", "failed", "interrupted", "not_started"]


class FolderTask(Fact):
    """What became of one reference of the folder."""

    reference: str
    """Its file, as it lies in the folder."""
    ended: HowEnded
    """`known`: an earlier run is finished, and was not repeated; `failed`: no run came to its end."""
    run_id: str | None = None
    status: str | None = None
    """CheckStatus of the best program."""
    counts: bool = False
    outcome: str | None = None
    speedup: float | None = None
    message: str = ""


def solve_folder(
    folder: Path,
    *,
    again: bool = False,
    quick: bool = False,
    emit: Emit,
    stop: threading.Event,
    **settings: Unpack[Settings],
) -> tuple[FolderTask, ...]:
    """What became of every `*.py` of the folder, in the order of their names.

    Args:
        folder: where the references lie.
        again: also solve those that have a finished run in this workspace.
        quick: as in `solve`.
        emit: receives progress sentences.
        stop: when set, the run at work ends after its step, and no further one is begun.
        settings: see `stitch_mcp.config.Settings`.

    Raises:
        UsageError: the folder has no reference, or a setting is wrong.
    """
    references = sorted(folder.glob("*.py"))
    if not references:
        raise UsageError(f"{folder} holds no *.py file", hint="name a folder of references, or one reference")
    known = {} if again else _finished_runs(Workspace(configure(settings).workspace))
    rows: list[FolderTask] = []
    for number, reference in enumerate(references, 1):
        if stop.is_set() or any(row.ended == "interrupted" for row in rows):
            rows.append(FolderTask(reference=reference.name, ended="not_started"))
            continue
        emit(f"{number} of {len(references)}: {reference.name}")
        try:
            rows.append(_solved(reference, known, quick, emit, stop, settings))
        except InterruptedRunError as error:
            rows.append(FolderTask(reference=reference.name, ended="interrupted", message=error.message))
        except StitchError as error:
            emit(f"{reference.name} failed: {error.message}")
            rows.append(FolderTask(reference=reference.name, ended="failed", message=error.message))
    return tuple(rows)


def _solved(
    reference: Path,
    known: dict[str, tuple[str, State]],
    quick: bool,
    emit: Emit,
    stop: threading.Event,
    settings: Settings,
) -> FolderTask:
    if known and (earlier := known.get(load_task(reference, **settings).task_id)) is not None:
        emit(f"{reference.name} has a finished run already")
        return _known(reference, *earlier)
    result = solve(reference, quick=quick, emit=emit, stop=stop, **settings)
    return FolderTask(
        reference=reference.name,
        ended="solved",
        run_id=result.run_id,
        status=result.status,
        counts=result.verdict is not None and result.verdict.counts,
        outcome=result.outcome,
        speedup=result.speedup,
        message=result.message,
    )


def _known(reference: Path, run_id: str, state: State) -> FolderTask:
    assert state.finished is not None
    bench = state.result.bench if state.result else None
    return FolderTask(
        reference=reference.name,
        ended="known",
        run_id=run_id,
        status=state.finished.status,
        counts=bool(state.finished.counts),
        outcome=state.finished.outcome,
        speedup=bench.speedup if bench else None,
        message=state.finished.message,
    )


def _finished_runs(workspace: Workspace) -> dict[str, tuple[str, State]]:
    """The newest finished run of each task, by the task's id."""
    found: dict[str, tuple[str, State]] = {}
    for run_id in workspace.run_ids():
        # A run that cannot be read stands for no task.
        with contextlib.suppress(StoreError):
            state = read_state(workspace.runs_folder / run_id)
            if state.started is not None and state.finished is not None:
                found[state.started.task_id] = run_id, state
    return found


def all_count(rows: Iterable[FolderTask]) -> bool:
    """Whether every reference has a program that counts."""
    return all(row.counts for row in rows)
