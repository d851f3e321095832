"""The prompts of a training run: read from files of samples, or made for the row family."""

import itertools
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import ValidationError

from stitch_mcp.rl.backends.jobs import Backend, JobResult, JudgeJob
from stitch_mcp.rl.reward.facts import RewardPreset
from stitch_mcp.rl.reward.scoring import score
from stitch_mcp.rl.training.policies import PromptRow
from stitch_mcp.rl.training.variants.rows import (
    ACTIVATIONS,
    RowsTask,
    all_choices,
    choice_words,
    render_variant,
)
from stitch_tools.errors import UsageError

_SLOW, _FAST = 0.8, 1.25
_ANSWER, _ACCEPTED, _REFUSED, _LOST = "answer:", "measured:accepted", "measured:refused", "measured:lost"
_SPEEDS = {name: f"speed:{name}" for name in ("slower", "equal", "faster", "unknown")}


def read_rows(path: Path) -> list[PromptRow]:
    """The prompts of a JSON-lines file.

    Raises:
        UsageError: it cannot be read, is empty, or a row misses a field; the message names the line.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", hint="name a file of samples") from error
    rows: list[PromptRow] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = PromptRow.from_json_bytes(line)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "row"
            message = f"{path}, line {number}: {where}: {first['msg']}"
            raise UsageError(message, hint="write it with `stitch-mcp rl export`") from error
        if not (row.text or row.messages):
            raise UsageError(f"{path}, line {number}: text or messages: it has no prompt")
        if row.skill == "refine" and not row.parent_files:
            raise UsageError(f"{path}, line {number}: parent_files: a program to refine has files")
        rows.append(row)
    if not rows:
        raise UsageError(f"{path} holds no sample", hint="name a file of samples")
    return rows


def mixed(rows: Sequence[PromptRow], refine_share: float, count: int, seed: int) -> list[PromptRow]:
    """`count` prompts in the order of training: both skills by ratio, each skill's rows in shuffled rounds.

    A longer list begins with a shorter one, so that a run can be extended.

    Raises:
        UsageError: a skill that the ratio asks for has no row.
    """
    wanted = {"refine": refine_share, "generate": 1.0 - refine_share}
    streams: dict[str, Iterator[PromptRow]] = {}
    for skill, share in wanted.items():
        own = [row for row in rows if row.skill == skill]
        if share > 0 and not own:
            raise UsageError(f"no sample has the skill {skill}", hint="set data.refine_share to 0 or 1")
        streams[skill] = _rounds(own, random.Random(f"{seed} {skill}"))
    chosen: list[PromptRow] = []
    refined = 0
    for position in range(count):
        refine = refined < round((position + 1) * refine_share)
        refined += refine
        chosen.append(next(streams["refine" if refine else "generate"]))
    return chosen


def _rounds(rows: Sequence[PromptRow], rng: random.Random) -> Iterator[PromptRow]:
    while True:
        round_rows = list(rows)
        rng.shuffle(round_rows)
        yield from round_rows


def parse_task(text: str) -> RowsTask:
    """The task that `silu 256x512` names.

    Raises:
        UsageError: it names none.
    """
    words = [name.rpartition(".")[2] for name in ACTIVATIONS]
    name, _, size = text.strip().partition(" ")
    rows, _, columns = size.partition("x")
    if name not in words or not (rows.isdigit() and columns.isdigit()):
        raise UsageError(f"{text!r} is no task", hint="write it as `silu 256x512`")
    if int(rows) < 1 or int(columns) < 4 or int(columns) % 4:
        raise UsageError(f"{text!r}: columns have to be a multiple of 4", hint="write it as `silu 256x512`")
    return RowsTask(words.index(name), int(rows), int(columns))


def choice_rows(
    tasks: Sequence[RowsTask],
    folder: Path,
    target: str,
    backend: Backend,
    preset: RewardPreset,
    *,
    parents: int,
    seed: int,
) -> list[PromptRow]:
    """The prompts of both skills for tasks of the row family.

    Those of `refine` show a variant drawn at random with what the judge measured of it.

    Args:
        tasks: the tasks.
        folder: where their references are written.
        target: device of the programs.
        backend: judges the parents.
        preset: gives their speedup.
        parents: variants of each task that are to be improved.
        seed: draws them.
    """
    rows: list[PromptRow] = []
    drawn: list[tuple[RowsTask, str, tuple[str, ...], JudgeJob]] = []
    choices = list(all_choices(target))
    for task in tasks:
        reference = str(task.write_reference(folder))
        rows.append(_row(task, reference, ()))
        rng = random.Random(f"{seed} {task.name}")
        for choice in rng.sample(choices, min(parents, len(choices))):
            files = render_variant(task, choice, target)
            drawn.append((task, reference, choice, JudgeJob(reference=reference, files=files)))
    results = backend.judge([job for *_, job in drawn])
    for (task, reference, choice, job), result in zip(drawn, results, strict=True):
        feedback = _feedback(result, preset)
        # A program that is refused is no baseline: the answer is then timed beside eager alone.
        parent = job.files if feedback[0] == _ACCEPTED else {}
        rows.append(_row(task, reference, ("parent:", *choice, *feedback), parent))
    return rows


def vocabulary(tasks: Sequence[RowsTask], target: str) -> list[str]:
    """Every word that prompts and completions of these tasks may hold, each once."""
    measured = (_ACCEPTED, _REFUSED, _LOST, *_SPEEDS.values())
    fixed = ("skill:generate", "skill:refine", "parent:", _ANSWER, *measured)
    words = itertools.chain(fixed, *(task.words() for task in tasks), choice_words(target))
    return list(dict.fromkeys(words))


def _row(
    task: RowsTask, reference: str, about_parent: Sequence[str], parent: dict[str, str] | None = None
) -> PromptRow:
    skill = "refine" if about_parent else "generate"
    return PromptRow(
        skill=skill,
        task=task.name,
        reference=reference,
        text=" ".join([f"skill:{skill}", *task.words(), *about_parent, _ANSWER]) + " ",
        parent_files=parent or {},
        rows=(task.activation, task.rows, task.columns),
    )


def _feedback(result: JobResult, preset: RewardPreset) -> tuple[str, str]:
    reward = score(result.evidence, preset) if result.evidence else None
    if reward is None or not reward.valid:
        return _LOST, _SPEEDS["unknown"]
    if not reward.correct:
        return _REFUSED, _SPEEDS["unknown"]
    if reward.speedup is None:
        return _ACCEPTED, _SPEEDS["unknown"]
    slow, fast = reward.speedup < _SLOW, reward.speedup > _FAST
    return _ACCEPTED, _SPEEDS["slower" if slow else "faster" if fast else "equal"]
