"""The questions of a run whose coder is `manual`, for whoever answers them from another process.

The run's process waits for a file. What is known of its question comes from the run's records, so it works
for every run of the workspace, whichever way it was started.
"""

import contextlib
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from stitch_planner.agents.model_ledger import CALLS
from stitch_planner.llm.chat import ChatRequest
from stitch_planner.llm.file_models import ANSWER, LARGEST_ANSWER_BYTES, PROMPT
from stitch_planner.runs.run import Workspace, read_state, started
from stitch_planner.runs.state import State
from stitch_tools.errors import UsageError
from stitch_tools.models.remedy import Remedy
from stitch_tools.storage.events import lock_path
from stitch_tools.storage.locks import holder
from stitch_tools.storage.store import storing, write_atomically

MANUAL = "manual"


class NoManualRunError(UsageError):
    """The run's coder asks nobody."""

    code = "no_manual_run"


class QuestionNotOpenError(UsageError):
    """An answer to a question that the run does not have, or has no more."""

    code = "question_not_open"


class AlreadyAnsweredError(UsageError):
    """A second answer to the same question."""

    code = "already_answered"


class AnswerSizeError(UsageError):
    """An answer that is empty or far too long."""

    code = "answer_size"


@dataclass(frozen=True)
class ManualQuestion:
    """The last question of a run, as long as the run has not read an answer to it."""

    number: int
    request: ChatRequest
    prompt_file: Path
    """The same text for whoever can read files."""
    submitted: bool
    """Whether an answer lies there, which the run has not read yet."""


@dataclass(frozen=True)
class ManualRun:
    """A run with the coder `manual`, as it stands."""

    folder: Path
    state: State
    question: ManualQuestion | None
    worker: str
    """The process that works on it; "" where none does."""


def is_beginning(folder: Path) -> bool:
    """Whether a process has opened a run and not written its first event yet, so that its coder is not known.

    Raises:
        StoreError: its records are damaged.
    """
    # The holder comes first: whoever has written an event since then is no longer beginning.
    return bool(holder(lock_path(folder / "events.jsonl"))) and read_state(folder).started is None


def read_manual_run(workspace: Workspace, folder: Path) -> ManualRun:
    """A run and the question that it waits with.

    Raises:
        NoManualRunError: it has another coder.
        StoreError: its records are damaged.
    """
    # The holder comes first: one that ends meanwhile leaves a state that is newer, never one that is older.
    worker = holder(lock_path(folder / "events.jsonl"))
    state = read_state(folder)
    first = started(state)
    if first.coder != MANUAL:
        arguments = {"reference": first.task_id[:16], "coder": MANUAL}
        raise NoManualRunError(
            f"run {folder.name} has the coder {first.coder}, which asks nobody here",
            remedies=(Remedy(tool="solve", arguments=arguments, why="begin a run that asks you"),),
        )
    return ManualRun(folder, state, _question(workspace, folder, state), worker)


def _question(workspace: Workspace, folder: Path, state: State) -> ManualQuestion | None:
    last = state.calls[-1] if state.calls else None
    if last is None or last.answered is not None or state.finished is not None:
        return None
    place = folder / CALLS / f"{last.asked.call:03d}"
    return ManualQuestion(
        number=last.asked.call,
        request=workspace.store.get_fact(last.asked.request, ChatRequest),
        prompt_file=place / PROMPT,
        submitted=os.path.lexists(place / ANSWER),
    )


def submit_answer(run: ManualRun, number: int, text: str) -> None:
    """Leave the answer to a run's open question where the run reads it.

    Raises:
        AnswerSizeError: it is empty, or too long.
        AlreadyAnsweredError: the question has an answer.
        QuestionNotOpenError: the run has no such question, or has ended.
        StoreError: the folder cannot be written.
    """
    data = text.encode("utf-8")
    if not text.strip() or len(data) > LARGEST_ANSWER_BYTES:
        what = f"has {len(data):,} bytes" if text.strip() else "is empty"
        raise AnswerSizeError(
            f"the answer {what}; nothing was submitted",
            hint=f"send some sentences and whole files, {LARGEST_ANSWER_BYTES >> 20} MiB at most",
        )
    question = run.question
    answered = question.submitted if question and question.number == number else _is_answered(run, number)
    if answered:
        raise AlreadyAnsweredError(
            f"question {number} has an answer already; this one was not taken",
            remedies=(_look_again(run),),
        )
    if question is None or question.number != number:
        open_now = "none is open" if question is None else f"question {question.number} is open"
        raise QuestionNotOpenError(
            f"question {number} of run {run.folder.name} is not open: {open_now}",
            remedies=(_look_again(run),),
        )
    if not _place(question.prompt_file.with_name(ANSWER), data):
        raise AlreadyAnsweredError(
            f"question {number} was answered by somebody else at this moment; this answer was not taken",
            remedies=(_look_again(run),),
        )


def _is_answered(run: ManualRun, number: int) -> bool:
    return any(row.asked.call == number and row.answered is not None for row in run.state.calls)


def _look_again(run: ManualRun) -> Remedy:
    return Remedy(tool="next_prompt", arguments={"run_id": run.folder.name}, why="see what the run asks now")


def _place(path: Path, data: bytes) -> bool:
    """Whether the file was made with this content, whole at once; False where there is one."""
    draft = path.with_name(f".answer-{secrets.token_hex(8)}")
    write_atomically(draft, data)
    try:
        # Unlike a rename, a link never replaces what another one has put there.
        with storing(path), contextlib.suppress(FileExistsError):
            path.hardlink_to(draft)
            return True
        return False
    finally:
        draft.unlink(missing_ok=True)
