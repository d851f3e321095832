"""Judges many cases of the zoo within a time limit: several judges side by side, one line of JSON a case.

Each judge is a process that `scripts/gpu-zoo --serve` runs; one that is stuck is killed and replaced, and a
run that was cut off goes on where its file ends. What may disturb others (long kernels, hogs, sticky errors,
and whatever is timed) is judged alone, the most dangerous last.
"""

import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from pydantic import TypeAdapter, ValidationError

from stitch_tools.compile.build import compile_program
from stitch_tools.confine import linux
from stitch_tools.models.program import Program
from stitch_tools.storage.store import Store
from tests.tools.judge.zoo_record import Recorder, ZooRow, digest
from tests.tools.judge.zoo_runner import Case

ROWS = TypeAdapter(ZooRow)
"""Rows as JSON."""
_DANGEROUS = ("resource_hog", "self_harm", "hang")
_SLOWER = 4
"""How many times the limit of other cases a slow one is given."""
_START_S = 90.0
"""A judge imports torch and starts its session before its first case."""
_ENDING_S = 10.0
"""What a case or a judge may take beyond the limit."""


def no_turn(alone: bool) -> AbstractContextManager[None]:
    """Where nobody else is on the device."""
    del alone
    return nullcontext()


def stage_of(case: Case) -> int:
    """When a case is judged: 0 beside others, then alone 1 timed, 2 dangerous."""
    # A kernel that stays, or a walk through foreign addresses, is dangerous whatever family it cheats in.
    ends_badly = {"timed_out", "crashed", "out_of_memory"} & set(case.expected)
    if case.family in _DANGEROUS or ends_badly:
        return 2
    return 1 if "timing" in case.caught_by else 0


def build_all(cases: Sequence[Case], target: str, root: Path, workers: int) -> dict[str, str]:
    """Fill the build cache side by side; names of programs that cannot be built, with the first reason."""
    store = Store(root / "store")

    def build(case: Case) -> tuple[str, str]:
        program = Program(format="native", target=target, files=store.put_files(case.files()), main=case.main)
        made = compile_program(program, store)
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

    def ask(self, name: str, limit_s: float, room_s: float = float("inf")) -> ZooRow | None:
        """The row of a case; None where none came in time or the process died. It is replaced then.

        `limit_s` is without, `room_s` with the time that a process needs to start.
        """
        line = self.answer(name, limit_s, room_s)
        return None if line is None else ROWS.validate_json(line)

    def answer(self, question: str, limit_s: float, room_s: float = float("inf")) -> bytes | None:
        """The line that the process answers with, as in `ask`."""
        if self._process is None:
            # A session of its own: what is stuck is killed with everything that it started.
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )
            limit_s += self._start_s
        line = self._exchange(f"{question}\n".encode(), time.monotonic() + min(limit_s, max(1.0, room_s)))
        if line is None:
            self._kill()
        return line

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
    revision: str = ""
    start_s: float = _START_S
    ending_s: float = _ENDING_S
    turn: Callable[[bool], AbstractContextManager[None]] = no_turn
    """Held while a case is judged: beside others on the device, or alone where it is given True."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, jobs: int) -> None:
        """Judge stage after stage; the first one by `jobs` judges side by side."""
        for stage in range(3):
            waiting = [case for case in self.cases if stage_of(case) == stage]
            # Those that build for a minute begin first: the others are judged beside them.
            waiting.sort(key=lambda case: not case.slow)
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
                last = case.reference
                with self.turn(stage_of(case) > 0):
                    began = time.monotonic()
                    room_s = self.until_s + self.ending_s - began
                    limit_s = self.case_limit_s * (_SLOWER if case.slow else 1)
                    found = judge.ask(f"{case.kind}/{case.name}", limit_s, room_s)
                    now = time.monotonic()
                # What the end of the run cut off says nothing about the case: the next run judges it.
                if found is not None or now < self.until_s:
                    self._keep(case, found or unanswered(case, self.revision, now - began))

    def _take(self, waiting: list[Case], last: str | None) -> Case | None:
        """The next case, of the last one's reference where possible: its server is warm."""
        with self._lock:
            if not waiting or time.monotonic() >= self.until_s:
                return None
            index = next((i for i, case in enumerate(waiting) if case.reference == last), 0)
            return waiting.pop(index)

    def _keep(self, case: Case, row: ZooRow) -> None:
        with self._lock, self.lines.open("a", encoding="utf-8") as file:
            file.write(ROWS.dump_json(row).decode() + "\n")
            file.flush()
            os.fsync(file.fileno())
        mark = "ok" if row.right else "known miss" if row.known_miss else "WRONG"
        self.say(f"{mark}: {case.kind}/{case.name}: {row.bench or row.status} ({row.seconds:.1f} s)")


def unanswered(case: Case, revision: str, seconds: float) -> ZooRow:
    """The row of a case on which the judge was stuck, or died."""
    return ZooRow(
        name=case.name,
        kind=case.kind,
        family=case.family,
        probes=case.caught_by,
        known_miss=case.missed,
        digest=digest(case),
        revision=revision,
        load=os.getloadavg()[0],
        message="the judge gave no answer in time",
        seconds=seconds,
    )


def read_rows(lines: Path) -> dict[str, ZooRow]:
    """The rows of a file by case, the last one of each; a torn last line is left out."""
    rows: dict[str, ZooRow] = {}
    with suppress(FileNotFoundError), lines.open(encoding="utf-8") as file:
        for line in file:
            with suppress(ValidationError):
                row = ROWS.validate_json(line)
                rows[f"{row.kind}/{row.name}"] = row
    return rows


def is_left(case: Case, rows: dict[str, ZooRow]) -> bool:
    """Whether this very case has no verdict yet; where the judge failed, there is none."""
    row = rows.get(f"{case.kind}/{case.name}")
    return row is None or row.status == "error" or row.digest != digest(case)


def serve(recorder_of: Callable[[ExitStack], Recorder], cases: Sequence[Case], ask: Any, answer: Any) -> None:
    """Judge every case that is named on a line of `ask`; a line of JSON for each. Ends with its parent."""
    linux.die_with_parent(signal.SIGKILL)
    by_name = {f"{case.kind}/{case.name}": case for case in cases}
    with ExitStack() as stack:
        recorder = recorder_of(stack)
        for line in ask:
            row = recorder.record(by_name[line.strip()])
            answer.write(ROWS.dump_json(row).decode() + "\n")
            answer.flush()
