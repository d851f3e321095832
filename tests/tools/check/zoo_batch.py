"""Judges many cases of the zoo within a time limit: several judges side by side, one line of JSON a case.

Each judge is a process that `scripts/gpu-zoo --serve` runs; one that is stuck is killed and replaced, and a
run that was cut off goes on where its file ends. What may disturb others (long kernels, hogs, sticky errors,
and whatever is timed) is judged alone, the most dangerous last.
"""

import json
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from stitch_tools.check import ReferenceServer
from stitch_tools.compile.build import compile_program
from stitch_tools.errors import StitchError
from stitch_tools.models import Bench, Program
from stitch_tools.store import Store
from stitch_tools.timing import BenchOptions, benchmark_program
from stitch_tools.timing.blocks import Rules
from stitch_tools.worker import linux
from tests.tools.check.zoo_runner import Case, Court

_DANGEROUS = ("resource_hog", "self_harm", "hang")
_START_S = 90.0
"""A judge imports torch and starts its session before its first case."""
_ENDING_S = 10.0
"""What a case or a judge may take beyond the limit."""
_BENCH = BenchOptions(
    quick=True,
    baselines=("eager",),
    budget_s=20.0,
    rules=Rules(min_rounds=6, max_rounds=6, blocks_per_visit=1),
)


@dataclass
class Row:
    """One case and what was said of it."""

    name: str
    kind: str
    family: str
    probes: tuple[str, ...]
    known_miss: bool
    right: bool
    """Whether a cheat was caught and gained nothing under the clock, or an honest program was accepted."""
    status: str
    flags: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    message: str = ""
    seconds: float = 0.0
    outcome: str | None = None
    """The bench's word on a cheat that only the clock can catch; None: not timed."""
    ratios: dict[str, float] = field(default_factory=dict[str, float])
    """Speed-ups by contestant and baseline."""


def stage_of(case: Case) -> int:
    """When a case is judged: 0 beside others, then alone 1 timed, 2 slow, 3 dangerous."""
    # A kernel that stays, or a walk through foreign addresses, is dangerous whatever family it cheats in.
    ends_badly = {"timed_out", "crashed", "out_of_memory"} & set(case.expected)
    if case.family in _DANGEROUS or ends_badly:
        return 3
    if "timing" in case.caught_by:
        return 1
    return 2 if case.slow else 0


def judge_row(court: Court, case: Case) -> Row:
    """The row of one case; where only the clock can catch it, an accepted program is timed, too."""
    began = time.monotonic()
    row = Row(case.name, case.kind, case.family, case.caught_by, case.missed, right=False, status="error")
    try:
        verdict = court.judge(case)
        row.status, row.flags, row.rules = verdict.status, verdict.flags, verdict.findings
        row.message, row.right = verdict.message[:500], verdict.catches(case)
        if "timing" in case.caught_by and verdict.status == "accepted":
            bench = timed(court, case)
            row.outcome, row.message = bench.outcome, bench.message[:500]
            row.ratios = {f"{one.contestant}/{one.baseline}": one.speedup for one in bench.ratios}
            row.right = row.right and not any(one.outcome == "faster" for one in bench.ratios)
    except StitchError as error:
        row.message = f"the judge failed: {error.message}"[:500]
    row.seconds = round(time.monotonic() - began, 2)
    return row


def timed(court: Court, case: Case) -> Bench:
    """A short bench against eager alone: whether a cheat gains anything, not a figure to report."""
    task, (program, build) = court.task(case), court.program(case)
    with ReferenceServer(court.session, task, court.store) as reference:
        facts = reference.observe()
    return benchmark_program(
        task, program, build, session=court.session, store=court.store, facts=facts, options=_BENCH
    )


def build_all(cases: Sequence[Case], target: str, root: Path, workers: int) -> dict[str, str]:
    """Fill the build cache side by side; names of programs that cannot be built, with the first reason."""
    store = Store(root / "store")

    def build(case: Case) -> tuple[str, str]:
        program = Program(format="native", target=target, files=store.put_files(case.files()), main=case.main)
        made = compile_program(program, store, cache_dir=root / "cache")
        return case.name, "" if made.ok else made.diagnostics[0].message if made.diagnostics else "no reason"

    with ThreadPoolExecutor(workers) as pool:
        found = dict(pool.map(build, [case for case in cases if case.native]))
    return {name: reason for name, reason in found.items() if reason}


class Judge:
    """A process that judges one case after the other; use as a context manager."""

    def __init__(self, command: Sequence[str], start_s: float = _START_S) -> None:
        self._command, self._start_s = tuple(command), start_s
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._end()

    def ask(self, name: str, limit_s: float, room_s: float = float("inf")) -> dict[str, Any] | None:
        """The row of a case; None where none came in time or the process died. It is replaced then.

        `limit_s` is without, `room_s` with the time that a process needs to start.
        """
        if self._process is None:
            # A session of its own: what is stuck is killed with everything that it started.
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )
            limit_s += self._start_s
        line = self._exchange(f"{name}\n".encode(), time.monotonic() + min(limit_s, max(1.0, room_s)))
        if line is None:
            self._kill()
            return None
        return json.loads(line)

    def _exchange(self, question: bytes, until_s: float) -> bytes | None:
        process, answer = self._process, b""
        if process is None or process.stdin is None or process.stdout is None:
            return None
        with suppress(OSError):  # a judge that has died gives no answer either
            process.stdin.write(question)
            process.stdin.flush()
        while not answer.endswith(b"\n"):
            if not select.select([process.stdout], [], [], max(0.0, until_s - time.monotonic()))[0]:
                return None
            part = os.read(process.stdout.fileno(), 1 << 16)
            if not part:
                return None
            answer += part
        return answer

    def _end(self) -> None:
        """Let it close its session; children that hold a device need a moment."""
        process = self._process
        if process is None or process.stdin is None:
            return
        with suppress(OSError):
            process.stdin.close()
        try:
            process.wait(_ENDING_S)
        except subprocess.TimeoutExpired:
            self._kill()
        self._close()

    def _kill(self) -> None:
        process = self._process
        if process is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            self._close()

    def _close(self) -> None:
        if self._process is not None:
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    with suppress(OSError):
                        stream.close()
        self._process = None


@dataclass
class Batch:
    """The cases that are left, and the file that their rows go to."""

    cases: list[Case]
    lines: Path
    command: tuple[str, ...]
    until_s: float
    """Monotonic time after which no case is begun."""
    case_limit_s: float
    say: Callable[[str], None]
    start_s: float = _START_S
    ending_s: float = _ENDING_S
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, jobs: int) -> None:
        """Judge stage after stage; the first one by `jobs` judges side by side."""
        for stage in range(4):
            waiting = [case for case in self.cases if stage_of(case) == stage]
            hands = min(jobs if stage == 0 else 1, len(waiting))
            threads = [threading.Thread(target=self._work, args=(waiting,)) for _ in range(hands)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    def _work(self, waiting: list[Case]) -> None:
        last: str | None = None
        with Judge(self.command, self.start_s) as judge:
            while (case := self._take(waiting, last)) is not None:
                began, last = time.monotonic(), case.reference
                room_s = self.until_s + self.ending_s - began
                found = judge.ask(f"{case.kind}/{case.name}", self.case_limit_s, room_s)
                # What the end of the run cut off says nothing about the case: the next run judges it.
                if found is not None or time.monotonic() < self.until_s:
                    self._keep(case, found, time.monotonic() - began)

    def _take(self, waiting: list[Case], last: str | None) -> Case | None:
        """The next case, of the last one's reference where possible: its server is warm."""
        with self._lock:
            if not waiting or time.monotonic() >= self.until_s:
                return None
            index = next((i for i, case in enumerate(waiting) if case.reference == last), 0)
            return waiting.pop(index)

    def _keep(self, case: Case, found: dict[str, Any] | None, seconds: float) -> None:
        row = found or asdict(
            Row(
                *(case.name, case.kind, case.family, case.caught_by, case.missed),
                right=False,
                status="error",
                message="the judge gave no answer in time",
                seconds=round(seconds, 2),
            )
        )
        with self._lock, self.lines.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())
        mark = "ok" if row["right"] else "known miss" if row["known_miss"] else "WRONG"
        outcome = f", {row['outcome']}" if row["outcome"] else ""
        self.say(f"{mark}: {case.kind}/{case.name}: {row['status']}{outcome} ({row['seconds']:.1f} s)")


def read_rows(lines: Path) -> list[dict[str, Any]]:
    """The rows of a file, the last one of each case; a torn last line is left out."""
    rows: dict[str, dict[str, Any]] = {}
    with suppress(FileNotFoundError), lines.open(encoding="utf-8") as file:
        for line in file:
            with suppress(json.JSONDecodeError):
                row = json.loads(line)
                rows[f"{row['kind']}/{row['name']}"] = row
    return list(rows.values())


def serve(court_of: Callable[[ExitStack], Court], cases: Sequence[Case], ask: Any, answer: Any) -> None:
    """Judge every case that is named on a line of `ask`; a line of JSON for each. Ends with its parent."""
    linux.die_with_parent(signal.SIGKILL)
    by_name = {f"{case.kind}/{case.name}": case for case in cases}
    with ExitStack() as stack:
        court = court_of(stack)
        for line in ask:
            row = judge_row(court, by_name[line.strip()])
            answer.write(json.dumps(asdict(row)) + "\n")
            answer.flush()


def table(rows: Sequence[dict[str, Any]], target: str) -> str:
    """Counts and one line a case, as Markdown."""
    cheats, honest = ([row for row in rows if row["kind"] == kind] for kind in ("cheats", "honest"))
    caught = [row for row in cheats if row["right"]]
    reasons = {(row["family"], tuple(row["probes"])) for row in caught}
    missed = sum(row["known_miss"] and not row["right"] for row in rows)
    accepted = sum(row["right"] for row in honest)
    lines = [
        f"{target}: cheats caught: {len(caught)} of {len(cheats)}, for {len(reasons)} different reasons;"
        f" honest programs accepted: {accepted} of {len(honest)}; known misses: {missed}.",
        "",
        "| case | family | as expected | status | bench | flags and rules | s |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in sorted(rows, key=lambda row: (row["kind"], row["name"])):
        mark = "yes" if row["right"] else "no (known)" if row["known_miss"] else "NO"
        said = ", ".join((*row["flags"], *row["rules"]))[:160]
        cells = [f"{row['kind']}/{row['name']}", row["family"], mark, row["status"], row["outcome"] or "-"]
        lines.append(f"| {' | '.join((*cells, said, format(row['seconds'], '.1f')))} |")
    return "\n".join(lines) + "\n"
