"""Sentinels of a sweep: a few of its tasks timed once more at the end, to show the machine's drift."""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from stitch_mcp.suite.rows import EAGER, SuiteRow, parse_answer
from stitch_mcp.suite.tasks import SuiteTask
from stitch_tools.errors import StoreError
from stitch_tools.models.base import Fact
from stitch_tools.models.verdict import Bench

LARGEST_DRIFT = 0.03
"""Beyond it the rows of a sweep were not measured on one and the same machine."""
_LIMIT_S = 300.0
_FLAGS = ("--quick",)
_OPTIONS = ("--target", "--python", "--inputs", "--threads", "--set", "--require-sandbox")
"""Those of a `solve` that a `bench` takes, too."""


class SentinelTiming(Fact):
    """A task's program and eager PyTorch, in the sweep and timed again later."""

    task: str
    program_us: float
    """In the sweep."""
    program_again_us: float
    eager_us: float | None
    eager_again_us: float | None

    @property
    def drift(self) -> float:
        """How much longer the program took later, as a part of its time in the sweep; negative: shorter."""
        return self.program_again_us / self.program_us - 1.0


class Sentinels:
    """The sentinels of a sweep in its folder: the same ones at the end of each call of its command."""

    def __init__(
        self, folder: Path, workspace: Path, arguments: Sequence[str] = (), gpus: Sequence[str] = ()
    ) -> None:
        """The sentinels of the sweep in `folder`.

        Args:
            folder: the sweep's.
            workspace: that of its runs.
            arguments: options of each `stitch-mcp solve`.
            gpus: values of CUDA_VISIBLE_DEVICES that the sweep uses now; none leaves the choice to CUDA.
        """
        self._file = folder / "sentinels.jsonl"
        self._workspace = workspace
        self._arguments = bench_arguments(arguments)
        self._gpus = tuple(gpus)

    def read(self) -> list[SentinelTiming]:
        """All that were timed, oldest first; a torn line counts for nothing."""
        timings: list[SentinelTiming] = []
        for line in self._file.read_bytes().splitlines() if self._file.is_file() else ():
            with contextlib.suppress(ValidationError):
                timings.append(SentinelTiming.model_validate_json(line))
        return timings

    def run(
        self,
        rows: Sequence[SuiteRow],
        tasks: Mapping[str, SuiteTask],
        count: int,
        emit: Callable[[SentinelTiming], None],
        *,
        stop: threading.Event | None = None,
    ) -> None:
        """Times `count` tasks again; `emit` receives each. One that cannot be timed is left out.

        Args:
            rows: of the sweep, in the order of its tasks.
            tasks: those that `rows` are of, by name.
            count: how many; fewer where fewer have a program that counts.
            emit: called in this thread.
            stop: when set, no further one is begun.

        Raises:
            StoreError: what was measured cannot be written.
        """
        for row in choose_sentinels(rows, [timing.task for timing in self.read()], count):
            if stop is not None and stop.is_set():
                return
            timing = self._timed(row, tasks[row.task])
            if timing is None:
                continue
            try:
                with self._file.open("ab") as file:
                    file.write(timing.model_dump_json().encode("utf-8") + b"\n")
            except OSError as error:
                raise StoreError(
                    f"{self._file} cannot be written: {error.strerror}", hint="make room"
                ) from error
            emit(timing)

    def _timed(self, row: SuiteRow, task: SuiteTask) -> SentinelTiming | None:
        command = [sys.executable, "-m", "stitch_mcp", "bench", str(task.path.resolve()), row.run_id or ""]
        command += ["--workspace", str(self._workspace), "--json", *self._arguments]
        env = dict(os.environ)
        if self._gpus:
            # That on which it was timed, unless the sweep went on elsewhere.
            env["CUDA_VISIBLE_DEVICES"] = row.gpu if row.gpu in self._gpus else self._gpus[0]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_LIMIT_S, check=False, env=env
            )
        except subprocess.TimeoutExpired:
            return None
        return sentinel_timing(row, parse_answer(done.stdout))


def sentinel_timing(row: SuiteRow, answer: Mapping[str, object]) -> SentinelTiming | None:
    """A row beside what `stitch-mcp bench --json` printed later; None where one of them timed nothing."""
    facts = {name: answer[name] for name in Bench.model_fields if name in answer}
    try:
        bench = Bench.model_validate(facts)
    except ValidationError:
        return None
    times = {timing.name: timing.latency_us for timing in bench.timings}
    again = times.get("program")
    if row.program_us is None or again is None:
        return None
    return SentinelTiming(
        task=row.task,
        program_us=row.program_us,
        program_again_us=again,
        eager_us=row.eager_us,
        eager_again_us=times.get(EAGER),
    )


def choose_sentinels(rows: Sequence[SuiteRow], known: Sequence[str], count: int) -> list[SuiteRow]:
    """The rows of earlier sentinels, and others that count, spread over the sweep, up to `count`."""
    usable = {row.task: row for row in rows if row.counts and row.program_us is not None and row.run_id}
    fixed = [name for name in dict.fromkeys(known) if name in usable][:count]
    others = [name for name in usable if name not in fixed]
    more = min(count - len(fixed), len(others))
    return [usable[name] for name in (*fixed, *(others[at * len(others) // more] for at in range(more)))]


def bench_arguments(arguments: Sequence[str]) -> list[str]:
    """Those options of a `stitch-mcp solve` that say what is timed, for a `stitch-mcp bench`."""
    kept: list[str] = []
    for place, word in enumerate(arguments):
        name = word.partition("=")[0]
        if word in _FLAGS or (name in _OPTIONS and name != word):
            kept.append(word)
        elif word in _OPTIONS:
            kept += arguments[place : place + 2]
    return kept


def sentinel_lines(timings: Sequence[SentinelTiming]) -> list[str]:
    """What the sentinels say, for people; nothing without any."""
    if not timings:
        return []
    worst = max(timings, key=lambda timing: abs(timing.drift))
    said = (
        f"Sentinels timed again: {len({timing.task for timing in timings})}; the largest drift of a "
        f"program is {worst.drift:+.1%} ({worst.task}, {worst.program_us:.0f} us, then "
        f"{worst.program_again_us:.0f} us)."
    )
    drifted = [timing for timing in timings if abs(timing.drift) > LARGEST_DRIFT]
    if not drifted:
        return [said]
    names = ", ".join(f"{timing.task} {timing.drift:+.1%}" for timing in drifted)
    return [said, f"The machine drifted by more than {LARGEST_DRIFT:.0%} meanwhile: {names}."]
