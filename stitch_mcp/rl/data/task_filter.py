"""Keeps the tasks that can be trained on: each is compared, run, and observed by the judge.

The filters in their order: no near duplicate of a benchmark's file, nor of a kept task; it runs within the
time window; its outputs are finite; it draws no numbers, and two calls agree bitwise; the output reacts to
inputs, and to weights where there are some.
"""

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from stitch_mcp.config import Config
from stitch_mcp.rl.data.near_duplicates import Fingerprint, Known, fingerprint
from stitch_mcp.workbench import find_task, open_workbench
from stitch_planner.workbench import Workbench
from stitch_tools.errors import TaskError, UsageError
from stitch_tools.models.base import Fact
from stitch_tools.models.verdict import Sensitivity
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import write_atomically

TASKS = "tasks.jsonl"
LONGEST_S = 3.0
"""Of a look at a reference: it is made, called three times and compared."""
_NAMED = 20
Rejection = Literal[
    "near_duplicate",
    "near_benchmark",
    "does_not_run",
    "too_slow",
    "not_finite",
    "not_deterministic",
    "ignores_inputs",
    "ignores_weights",
]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class TaskCandidate:
    """A task before it was looked at."""

    name: str
    """Of its file."""
    source: str
    operations: tuple[str, ...]
    family: str
    level: int
    origin: str
    shapes: tuple[Shape, ...] | None = None
    """Of its inputs; None: as they are observed."""


class MadeTask(Fact):
    """A task that passed the filters."""

    name: str
    operations: tuple[str, ...]
    family: str
    level: int
    observed_s: float
    """Seconds of the look at it."""
    source: str
    origin: str = "synthesized"
    """Where it comes from."""


class FilterReport(Fact):
    """What was kept, and why the others were not."""

    sampled: int
    """Candidates that were looked at."""
    accepted: int
    rejected: dict[str, int]
    """By the first filter that they failed."""
    by_level: dict[str, int]
    by_count: dict[str, int]
    """By number of operations."""
    by_operation: dict[str, int]
    families: int
    benchmark_files: int
    near_benchmark: tuple[str, ...] = ()
    """Pairs `task ~ benchmark file` of the first that were refused for it."""
    seed: int | None = None
    """Of the sampler; None for tasks that were imported."""
    wall_s: float = 0.0


class TaskFilter:
    """Looks at one candidate after the other. A context manager: its interpreter stays warm."""

    def __init__(
        self,
        config: Config,
        folder: Path,
        benchmarks: Sequence[Fingerprint] = (),
        *,
        longest_s: float = LONGEST_S,
    ) -> None:
        """A filter that starts nothing before `with`.

        Args:
            config: settings; tasks are looked at on their target.
            folder: receives tasks.jsonl and the sources.
            benchmarks: tasks that none may be close to.
            longest_s: seconds that a look may take.
        """
        self._config = config
        self._folder = folder
        self._longest_s = longest_s
        self._workbench: Workbench = open_workbench(config)
        self._session: TargetSession = self._workbench.cold_session()
        self._benchmarks = Known(benchmarks)
        self._benchmark_files = len(benchmarks)
        self._known = Known()
        self._near: list[str] = []
        self._rejected: Counter[str] = Counter()
        self._begun_s = time.monotonic()
        self.accepted: list[MadeTask] = []

    def __enter__(self) -> Self:
        self._session.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._session.__exit__(*exc)

    @property
    def sampled(self) -> int:
        """Candidates that were looked at."""
        return len(self.accepted) + sum(self._rejected.values())

    def take(self, candidate: TaskCandidate) -> bool:
        """Whether the candidate passed every filter; it is then among `accepted`."""
        found = self._looked_at(candidate)
        if isinstance(found, MadeTask):
            self.accepted.append(found)
            return True
        self._rejected[found] += 1
        return False

    def write(self, seed: int | None = None) -> FilterReport:
        """Writes what was accepted, and says why the rest was not."""
        rows = self.accepted
        write_atomically(self._folder / TASKS, b"".join(task.canonical_json() + b"\n" for task in rows))
        return FilterReport(
            seed=seed,
            sampled=self.sampled,
            accepted=len(rows),
            rejected=dict(self._rejected),
            by_level=_counts(str(task.level) for task in rows),
            by_count=_counts(str(len(task.operations)) for task in rows),
            by_operation=_counts(name for task in rows for name in task.operations),
            families=len({task.family for task in rows}),
            benchmark_files=self._benchmark_files,
            near_benchmark=tuple(self._near[:_NAMED]),
            wall_s=time.monotonic() - self._begun_s,
        )

    def _looked_at(self, candidate: TaskCandidate) -> MadeTask | Rejection:
        try:
            own = fingerprint(candidate.source, candidate.name)
        except UsageError:
            return "does_not_run"
        if (benchmark := self._benchmarks.near(own)) is not None:
            self._near.append(f"{candidate.name} ~ {benchmark}")
            return "near_benchmark"
        # Where the shapes are known, nothing has to run for it.
        if candidate.shapes is not None and self._known.near(_with_shapes(own, candidate.shapes)):
            return "near_duplicate"
        path = self._folder / "sources" / f"{candidate.name}.py"
        write_atomically(path, candidate.source.encode("utf-8"))
        begun_s = time.monotonic()
        found = self._observed(path)
        observed_s = time.monotonic() - begun_s
        # One that was ended for it, too.
        if observed_s > self._longest_s and (found == "does_not_run" or not isinstance(found, str)):
            found = "too_slow"
        if not isinstance(found, str):
            shaped = _with_shapes(own, candidate.shapes or found)
            if self._known.near(shaped) is None:
                self._known.add(shaped)
                return _made(candidate, observed_s)
            found = "near_duplicate"
        path.unlink()
        return found

    def _observed(self, path: Path) -> tuple[Shape, ...] | Rejection:
        """Shapes of the task's inputs, or why it cannot be trained on."""
        try:
            task = find_task(self._config, self._workbench.workspace, path)
            with self._workbench.observed(self._session, task, call_limit_s=self._longest_s) as seen:
                server, facts = seen
                # A program would have to draw as the reference does.
                is_fixed = facts.deterministic and not facts.uses_rng
                doubt = _doubt(facts.warnings, is_fixed, facts.depends_on_inputs)
                doubt = doubt or _insensitive(server.sensitivity(), bool(facts.parameters))
                return doubt or tuple(row.shape for row in facts.inputs)
        except TaskError:
            return "does_not_run"


def _made(candidate: TaskCandidate, observed_s: float) -> MadeTask:
    return MadeTask(
        name=candidate.name,
        operations=candidate.operations,
        family=candidate.family,
        level=candidate.level,
        observed_s=round(observed_s, 3),
        source=candidate.source,
        origin=candidate.origin,
    )


def _doubt(warnings: Sequence[str], deterministic: bool, depends_on_inputs: bool) -> Rejection | None:
    if any("not finite" in warning for warning in warnings):
        return "not_finite"
    if not deterministic:
        return "not_deterministic"
    return None if depends_on_inputs else "ignores_inputs"


def _insensitive(rows: Sequence[Sensitivity], has_weights: bool) -> Rejection | None:
    """Whether inputs do not move the output at the task's own scale, or weights at none.

    A layer that begins with ones and zeros reacts to other weights only where the judge draws them.
    """
    if not any(row.reacts for row in rows if row.subject == "inputs" and row.probe == "own"):
        return "ignores_inputs"
    reacts = any(row.reacts for row in rows if row.subject == "weights")
    return "ignores_weights" if has_weights and not reacts else None


def _with_shapes(own: Fingerprint, shapes: Sequence[Shape]) -> Fingerprint:
    """How kept tasks are compared: the same operations on other magnitudes are another task."""
    largest = max(shapes, key=lambda shape: (len(shape), shape), default=())
    size = 1
    for side in largest:
        size *= side
    bucket = f"rank{len(largest)}:2^{size.bit_length() // 2}"
    return Fingerprint(own.name, (bucket, *own.calls))


def _counts(values: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(values).items()))
