"""Collects samples of both skills from runs and from made tasks.

A run's events hold each question before it is sent, the answer, and what build, check and bench found. The
pair of a question and the program that came of it is a sample; a question that names a parent is one of
refinement.
"""

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from stitch_mcp.rl.data.prompting import task_prompt
from stitch_mcp.rl.data.samples import SkillSample, family_of_source
from stitch_mcp.rl.data.task_filter import MadeTask
from stitch_mcp.rl.reward.facts import Skill
from stitch_planner.agents.model_coder import coder_system
from stitch_planner.llm.chat import ChatAnswer, ChatRequest
from stitch_planner.runs.attempts import Attempt, find_attempt
from stitch_planner.runs.run import Workspace, read_attempts
from stitch_planner.runs.run_events import KINDS, ModelAnswered, ModelAsked, ProgramWritten
from stitch_planner.runs.state import State
from stitch_tools.errors import StoreError, UsageError
from stitch_tools.models.base import sha256_hex
from stitch_tools.models.program import Program
from stitch_tools.models.task import Task
from stitch_tools.storage.events import read_events
from stitch_tools.storage.store import Store
from stitch_tools.task.task_file import stated_text


def collect_samples(workspace: Workspace) -> Iterator[SkillSample]:
    """The samples of all runs of a workspace.

    None come of a run or program that the store lost, of a contract that a caller loosened (a sample would
    pass it off as the task's), or of references with files that are no text.
    """
    for run_id in workspace.run_ids():
        with contextlib.suppress(StoreError, UsageError, UnicodeDecodeError):
            yield from _run_samples(workspace.runs_folder / run_id, workspace.store)


def samples_of_tasks(tasks: Iterable[MadeTask], target: str) -> Iterator[SkillSample]:
    """A question to generate a program for each made task, without an answer."""
    system = coder_system(target)
    for task in tasks:
        file = f"{task.name}.py"
        yield SkillSample(
            sample_id=sha256_hex(f"{target} {task.source}".encode())[:24],
            skill="generate",
            task=task.name,
            target=target,
            reference_files={file: task.source},
            reference=file,
            family=task.family,
            system=system,
            prompt=task_prompt(task.source, target),
            origin=task.origin,
        )


def read_tasks(path: Path) -> list[MadeTask]:
    """The tasks that `rl synthesize` wrote.

    Raises:
        UsageError: the file cannot be read, or a line is no task.
    """
    try:
        return [MadeTask.from_json_bytes(line) for line in path.read_bytes().splitlines() if line.strip()]
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", hint="name a tasks.jsonl") from error
    except ValueError as error:
        raise UsageError(f"{path} holds a line that is no task", hint="make it with rl synthesize") from error


def _run_samples(folder: Path, store: Store) -> Iterator[SkillSample]:
    state = read_attempts(folder, store)
    if state.started is None:
        return
    task = store.get_fact(state.started.task, Task)
    if task.contract.relaxed:
        return
    asked: ModelAsked | None = None
    answered: ModelAnswered | None = None
    for stored in read_events(folder / "events.jsonl"):
        kind = KINDS.get(stored.kind)
        if kind not in (ModelAsked, ModelAnswered, ProgramWritten):
            continue
        event = kind.model_validate(stored.payload)
        if isinstance(event, ModelAsked):
            asked, answered = event, None
        elif isinstance(event, ModelAnswered):
            answered = event
        else:
            assert isinstance(event, ProgramWritten)
            attempt = find_attempt(state.attempts, event.program_id)
            # The newest answer before a program is the one that it was read from.
            if asked and answered and attempt and asked.model == event.author and not attempt.lost:
                with contextlib.suppress(StoreError):
                    yield _sample(folder.name, store, task, state, attempt, asked, answered)
            asked = answered = None


def _sample(
    run_id: str,
    store: Store,
    task: Task,
    state: State,
    attempt: Attempt,
    asked: ModelAsked,
    answered: ModelAnswered,
) -> SkillSample:
    request = store.get_fact(asked.request, ChatRequest)
    answer = store.get_fact(answered.answer, ChatAnswer).text
    parent = find_attempt(state.attempts, attempt.program.parent_id or "")
    program = store.get_fact(parent.program.program, Program) if parent else None
    sources = {file.path: store.get(file.sha256).decode("utf-8") for file in task.files}
    if stated := stated_text(task):
        sources[task.main.removesuffix(".py") + ".task.toml"] = stated
    skill: Skill = "refine" if program else "generate"
    identity = "\n".join((skill, request.key, answer))
    return SkillSample(
        sample_id=sha256_hex(identity.encode())[:24],
        skill=skill,
        task=task.name,
        target=task.target,
        reference_files=sources,
        reference=task.main,
        family=family_of_source(sources[task.main], task.main),
        system=request.system,
        prompt=request.prompt,
        parent_files=_texts(program, store) if program else {},
        parent_main=program.main if program else "",
        answer=answer,
        author=attempt.author,
        status=attempt.status,
        counts=attempt.counts,
        speedup=attempt.safe_speedup,
        gain=attempt.gain_over(parent) if parent else None,
        origin=f"{run_id}/{attempt.program_id[:12]}",
    )


def _texts(program: Program, store: Store) -> dict[str, str]:
    return {file.path: store.get(file.sha256).decode("utf-8", "replace") for file in program.files}
