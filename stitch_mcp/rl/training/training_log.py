"""The log of a training run: figures of each step, and each completion, as JSON lines."""

import contextlib
import json
import math
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

from pydantic import Field

from stitch_mcp.rl.reward.facts import Skill
from stitch_mcp.rl.reward.watching import RewardEntry, find_alarms, read_log
from stitch_tools.models.base import Fact

METRICS, ROLLOUTS, ENTRIES = "metrics.jsonl", "rollouts.jsonl", "rewards.jsonl"
Dashboard = Callable[[str, float, int], object]
"""Takes name, value and step of a figure, as TensorBoard's `add_scalar` does."""


class Rollout(Fact):
    """One completion and what it earned."""

    step: int
    group: int
    """Completions of one prompt in a step share it."""
    skill: Skill
    task: str
    completion: str
    tokens: int
    problem: str = ""
    """Why it gave no program."""
    key: str = ""
    """Of the judged job; "" where nothing was judged."""
    status: str = ""
    """CheckStatus of its program, or `lost`."""
    reward: float
    """What the trainer received: where the judge was lost, the mean of its group."""
    correct: bool = False
    hacking: bool = False
    speedup: float | None = None
    parts: dict[str, float] = Field(default_factory=dict[str, float])
    floor: float = 0.0
    ceiling: float = 0.0
    findings: tuple[str, ...] = ()
    """Rules of what was found, fatal or suspicious, and of doubts about its times."""

    def entry(self) -> RewardEntry:
        """As the reward's alarms read it (`stitch-mcp rl reward watch`)."""
        lost = self.status == "lost"
        return RewardEntry(
            step=self.step,
            reward=self.floor if lost else self.reward,
            floor=self.floor,
            ceiling=self.ceiling,
            correct=self.correct,
            valid=not lost,
            hacking=self.hacking,
            speedup=self.speedup,
            program_id=self.key or None,
            findings=self.findings,
        )


class StepMetrics(Fact):
    """Figures over the completions of a step, of one skill or of `all`."""

    step: int
    skill: str
    completions: int
    reward: float
    """Mean."""
    parts: dict[str, float]
    """Mean of each part over the completions that have it."""
    usable_share: float
    correct_share: float
    hack_share: float
    lost: int
    speedup_geomean: float | None
    """Over eager, of the correct ones that were timed."""
    zero_variance_groups: int
    """Groups whose rewards are all equal: they teach nothing."""
    groups: int
    mean_tokens: float
    truncated_share: float
    problems: dict[str, int]


def step_metrics(rollouts: Sequence[Rollout]) -> list[StepMetrics]:
    """The figures of a step: over all its completions, and over each skill; [] without completions."""
    if not rollouts:
        return []
    skills = sorted({row.skill for row in rollouts})
    subsets = [("all", rollouts), *((name, [r for r in rollouts if r.skill == name]) for name in skills)]
    return [_metrics(name, rows) for name, rows in subsets]


def _metrics(skill: str, rows: Sequence[Rollout]) -> StepMetrics:
    groups: dict[int, set[float]] = {}
    parts: dict[str, list[float]] = {}
    for row in rows:
        groups.setdefault(row.group, set()).add(row.reward)
        for name, value in row.parts.items():
            parts.setdefault(name, []).append(value)
    gains = [row.speedup for row in rows if row.correct and row.speedup]
    count = len(rows)
    return StepMetrics(
        step=rows[0].step,
        skill=skill,
        completions=count,
        reward=statistics.fmean(row.reward for row in rows),
        parts={name: statistics.fmean(values) for name, values in parts.items()},
        usable_share=sum(not row.problem for row in rows) / count,
        correct_share=sum(row.correct for row in rows) / count,
        hack_share=sum(row.hacking for row in rows) / count,
        lost=sum(row.status == "lost" for row in rows),
        speedup_geomean=math.exp(statistics.fmean(map(math.log, gains))) if gains else None,
        zero_variance_groups=sum(len(values) == 1 for values in groups.values()),
        groups=len(groups),
        mean_tokens=statistics.fmean(row.tokens for row in rows),
        truncated_share=sum(row.problem == "truncated" for row in rows) / count,
        problems=dict(Counter(row.problem for row in rows if row.problem)),
    )


class TrainingLog:
    """The log in a run's folder."""

    def __init__(self, folder: Path, dashboard: Dashboard | None = None) -> None:
        """A log that goes on where the folder's ends.

        Args:
            folder: where the files lie; made where it is not there.
            dashboard: receives each figure, too.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._dashboard = dashboard

    def add(self, rollouts: Sequence[Rollout]) -> None:
        """Appends the completions of a step and its figures."""
        rows = step_metrics(rollouts)
        _append(self._folder / ROLLOUTS, rollouts)
        _append(self._folder / METRICS, rows)
        _append(self._folder / ENTRIES, [row.entry() for row in rollouts])
        if self._dashboard is None:
            return
        for row in rows:
            for name, value in numbers(row).items():
                self._dashboard(f"{row.skill}/{name}", value, row.step)

    def cut(self, step: int) -> None:
        """Drops what was logged at `step` and later, which a resumed run does again, and torn lines."""
        for name in (METRICS, ROLLOUTS, ENTRIES):
            path = self._folder / name
            if not path.is_file():
                continue
            kept: list[bytes] = []
            for line in path.read_bytes().splitlines():
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    if json.loads(line)["step"] < step:
                        kept.append(line + b"\n")
            path.write_bytes(b"".join(kept))


def numbers(row: StepMetrics) -> dict[str, float]:
    """The figures of a step by name, parts of the reward as `parts/NAME`; without what was not measured."""
    fields = row.model_dump(exclude={"step", "skill", "parts", "problems"})
    plain = {name: float(value) for name, value in fields.items() if value is not None}
    return plain | {f"parts/{name}": value for name, value in row.parts.items()}


def alarms_of(folder: Path) -> list[str]:
    """What a person should look at in a run's log, in words; [] where nothing stands out."""
    path = folder / ENTRIES
    entries = read_log(path) if path.is_file() else []
    return [f"step {alarm.step}: {alarm.message}" for alarm in find_alarms(entries)]


def read_metrics(folder: Path) -> list[StepMetrics]:
    """The figures that a run logged; [] where there are none."""
    return cast("list[StepMetrics]", _read(folder / METRICS, StepMetrics))


def read_rollouts(folder: Path) -> list[Rollout]:
    """The completions that a run logged; [] where there are none."""
    return cast("list[Rollout]", _read(folder / ROLLOUTS, Rollout))


def _read(path: Path, model: type[Fact]) -> Sequence[Fact]:
    if not path.is_file():
        return []
    return [model.from_json_bytes(line) for line in path.read_bytes().splitlines() if line.strip()]


def _append(path: Path, rows: Sequence[Fact]) -> None:
    with path.open("ab") as file:
        file.writelines(row.canonical_json() + b"\n" for row in rows)
