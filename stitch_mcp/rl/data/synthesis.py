"""Makes tasks and keeps those that can be trained on: each is run, observed by the judge, and compared.

The filters in their order: not a near duplicate; it runs within the time window; its outputs are finite;
two calls agree bitwise; the output reacts to inputs, and to weights where there are some.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal

from stitch_mcp.config import Config
from stitch_mcp.rl.data.near_duplicates import Fingerprint, Known, fingerprint
from stitch_mcp.rl.data.sampling import SampledTask, sample_task
from stitch_mcp.workbench import find_task, open_workbench
from stitch_planner.workbench import Workbench
from stitch_tools.errors import TaskError
from stitch_tools.models.base import Fact
from stitch_tools.models.verdict import Sensitivity
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import write_atomically

TASKS = "tasks.jsonl"
LONGEST_S = 3.0
"""Of a look at a reference: it is made, called three times and compared."""
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


class MadeTask(Fact):
    """A task that passed the filters."""

    name: str
    operations: tuple[str, ...]
    family: str
    level: int
    observed_s: float
    """Seconds of the look at it."""
    source: str


class SynthesisReport(Fact):
    """What was made, and why the others were not kept."""

    seed: int
    sampled: int
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
    wall_s: float = 0.0


class Synthesizer:
    """Makes tasks one after the other. A context manager: its interpreter stays warm."""

    def __init__(self, config: Config, folder: Path, benchmarks: Sequence[Fingerprint] = ()) -> None:
        """A synthesizer that starts nothing before `with`.

        Args:
            config: settings; tasks are looked at on their target.
            folder: receives tasks.jsonl and the sources.
            benchmarks: tasks that none may be close to.
        """
        self._config = config
        self._folder = folder
        self._workbench: Workbench = open_workbench(config)
        self._session: TargetSession = self._workbench.cold_session()
        self._benchmarks = Known(benchmarks)
        self._benchmark_files = len(benchmarks)
        self._known = Known()
        self._near: list[str] = []

    def __enter__(self) -> "Synthesizer":
        self._session.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._session.__exit__(*exc)

    def make(
        self, count: int, seed: int, *, most_tries: int, emit: Callable[[int, int], None]
    ) -> SynthesisReport:
        """Samples until `count` tasks are accepted.

        Args:
            count: how many are wanted.
            seed: equal seeds give equal samples.
            most_tries: samples after which it ends in any case.
            emit: receives accepted and sampled, each time that one is accepted.
        """
        begun_s, rng = time.monotonic(), random.Random(seed)
        accepted: list[MadeTask] = []
        rejected: Counter[str] = Counter()
        sampled = 0
        while len(accepted) < count and sampled < most_tries:
            sampled += 1
            found = self._tried(sample_task(rng))
            if isinstance(found, MadeTask):
                accepted.append(found)
                emit(len(accepted), sampled)
            else:
                rejected[found] += 1
        lines = b"".join(task.canonical_json() + b"\n" for task in accepted)
        write_atomically(self._folder / TASKS, lines)
        return SynthesisReport(
            seed=seed,
            sampled=sampled,
            accepted=len(accepted),
            rejected=dict(rejected),
            by_level=_counts(str(task.level) for task in accepted),
            by_count=_counts(str(len(task.operations)) for task in accepted),
            by_operation=_counts(name for task in accepted for name in task.operations),
            families=len({task.family for task in accepted}),
            benchmark_files=self._benchmark_files,
            near_benchmark=tuple(self._near[:20]),
            wall_s=time.monotonic() - begun_s,
        )

    def _tried(self, sampled: SampledTask) -> MadeTask | Rejection:
        source = sampled.source
        own = fingerprint(source, sampled.name)
        if (benchmark := self._benchmarks.near(own)) is not None:
            self._near.append(f"{sampled.name} ~ {benchmark}")
            return "near_benchmark"
        shaped = _with_shapes(own, sampled)
        if self._known.near(shaped) is not None:
            return "near_duplicate"
        path = self._folder / "sources" / f"{sampled.name}.py"
        write_atomically(path, source.encode("utf-8"))
        begun_s = time.monotonic()
        rejection = self._observed(path)
        observed_s = time.monotonic() - begun_s
        if rejection is None and observed_s > LONGEST_S:
            rejection = "too_slow"
        if rejection is not None:
            path.unlink()
            return rejection
        self._known.add(shaped)
        return MadeTask(
            name=sampled.name,
            operations=sampled.operations,
            family=sampled.family,
            level=sampled.level,
            observed_s=round(observed_s, 3),
            source=source,
        )

    def _observed(self, path: Path) -> Rejection | None:
        task = find_task(self._config, self._workbench.workspace, path)
        try:
            with self._workbench.observed(self._session, task) as (server, facts):
                rejection = _doubt(facts.warnings, facts.deterministic, facts.depends_on_inputs)
                return rejection or _insensitive(server.sensitivity(), bool(facts.parameters))
        except TaskError:
            return "does_not_run"


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


def _with_shapes(own: Fingerprint, sampled: SampledTask) -> Fingerprint:
    """How made tasks are compared: the same operations on other magnitudes are another task."""
    largest = max(sampled.inputs, key=lambda shape: (len(shape), shape))
    size = 1
    for side in largest:
        size *= side
    bucket = f"rank{len(largest)}:2^{size.bit_length() // 2}"
    return Fingerprint(own.name, (bucket, *own.calls))


def _counts(values: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(values).items()))
