"""An agent that is a script: it makes a slow program faster by what `profile_program` advises.

Which change belongs to which finding is prepared (`edits.*.toml` beside the program); which finding comes
first, its predicted gain and what came true are the server's.
"""

import re
import sys
import time
import tomllib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Answer = Mapping[str, Any]
Send = Callable[[str, dict[str, Any]], Awaitable[Answer]]
"""Calls a tool, waits for its job, and gives the structured answer."""
MOST_ROUNDS = 4
_MOST_RETRIES = 3

_FINDING = re.compile(r"^\d+\. (?P<rule>\w+).* Gain (?P<gain>[\d.]+)x \((?P<low>[\d.]+) to (?P<high>[\d.]+)")
_PROGRAM_TIME = re.compile(r"^program: (?P<us>[\d.]+) us")


@dataclass(frozen=True)
class PreparedChange:
    """A change of the source that a finding asks for."""

    rules: tuple[str, ...]
    why: str
    replace: tuple[tuple[str, str], ...]
    mentions: str = ""
    """A word that the finding's line must have: a kernel's or function's name."""

    def applied(self, source: str) -> str | None:
        """The source with the change; None where it was made already, or does not fit."""
        for old, new in self.replace:
            if source.count(old) != 1:
                return None
            source = source.replace(old, new)
        return source


@dataclass(frozen=True)
class AdvisedFinding:
    """A line of `findings` with its predicted gain: the speed-up of the whole."""

    line: str
    rule: str
    gain: float
    low: float
    high: float


@dataclass
class ProfiledRound:
    """One version of the program, how fast it is, and what its profile led to."""

    program_id: str
    latency_us: float
    answers: dict[str, Answer] = field(default_factory=dict[str, Answer])
    """The answers of check, bench and profile."""
    finding: AdvisedFinding | None = None
    edit: PreparedChange | None = None


def read_edits(path: Path) -> tuple[PreparedChange, ...]:
    """The prepared changes of a file, in order."""
    rows = tomllib.loads(path.read_text(encoding="utf-8"))["edit"]
    return tuple(
        PreparedChange(
            tuple(row["rules"]),
            row["why"],
            tuple((old, new) for old, new in row["replace"]),
            row.get("mentions", ""),
        )
        for row in rows
    )


def parse_finding(line: str) -> AdvisedFinding:
    """Rule and gain of one finding.

    Raises:
        ValueError: the line is no finding.
    """
    match = _FINDING.match(line)
    if match is None:
        raise ValueError(f"no finding: {line[:200]}")
    return AdvisedFinding(
        line, match["rule"], float(match["gain"]), float(match["low"]), float(match["high"])
    )


def choose(
    findings: Sequence[str], edits: Sequence[PreparedChange], source: str
) -> tuple[AdvisedFinding, PreparedChange, str] | None:
    """The best finding that a prepared change answers, the change, and the new source."""
    for finding in map(parse_finding, findings):
        for edit in edits:
            if finding.rule in edit.rules and edit.mentions in finding.line:
                changed = edit.applied(source)
                if changed is not None:
                    return finding, edit, changed
    return None


def latency_us(bench: Answer) -> float:
    """The program's median in a bench's answer.

    Raises:
        ValueError: it was not timed.
    """
    for line in bench.get("times_us", ()):
        match = _PROGRAM_TIME.match(line)
        if match is not None:
            return float(match["us"])
    raise ValueError(f"the program was not timed: {bench.get('message')}")


async def rounds(
    send: Send,
    source: str,
    main: str,
    edits: Sequence[PreparedChange],
    target: str,
    *,
    limit_s: float = 900.0,
    made: list[ProfiledRound] | None = None,
) -> list[ProfiledRound]:
    """Check, time and profile the program, make the change that pays most, and so on.

    The first entry is the slow program, each further one a round: at most `MOST_ROUNDS`, and none is begun
    after `limit_s`. On a GPU the host comes first; once its worst habit is gone, kernels are looked at, too,
    since which of both pays more only shows side by side. `made` gets each entry as soon as it is timed.
    """
    end = time.monotonic() + limit_s
    opened = await send("analyze_reference", {"reference": "model.py", "target": target})
    place = {"run_id": opened["run_id"]}
    result = made if made is not None else []
    while True:
        checked = await send("check_program", {**place, "files": {main: source}})
        if checked.get("verdict") != "accepted":
            raise ValueError(f"the program is not accepted: {checked.get('message')}")
        program = {**place, "program": checked["program_id"]}
        timed = await send("benchmark_program", program)
        row = ProfiledRound(checked["program_id"], latency_us(timed), {"check": checked, "bench": timed})
        result.append(row)
        if len(result) > MOST_ROUNDS or time.monotonic() > end:
            return result
        chosen = None
        for level in _levels(target, len(result)):
            row.answers["profile"] = await profiled(send, {**program, "level": level})
            chosen = choose(row.answers["profile"].get("findings", ()), edits, source)
            if chosen is not None:
                break
        if chosen is None:
            return result
        row.finding, row.edit, source = chosen


def _levels(target: str, number: int) -> tuple[str, ...]:
    if not target.startswith("cuda"):
        return ("system",)
    return ("system", "both") if number == 1 else ("both",)


async def profiled(send: Send, arguments: dict[str, Any]) -> Answer:
    """The profile, asked for again where something else had the device."""
    answer = await send("profile_program", arguments)
    for _ in range(_MOST_RETRIES):
        if answer.get("outcome") != "profiler_busy":
            break
        answer = await send("profile_program", {**arguments, "rerun": True})
    return answer


def waiting(call: Callable[[str, dict[str, Any]], Awaitable[Answer]]) -> Send:
    """`call`, followed by `get_job` for as long as the job works.

    Raises (when called):
        ValueError: the job failed.
    """

    async def send(tool: str, arguments: dict[str, Any]) -> Answer:
        start = time.perf_counter()
        answer = await call(tool, arguments)
        while answer["status"] == "working":
            waited = await call("get_job", {"job_id": answer["job_id"], "wait_s": 45})
            answer = {**waited, **(waited.get("result") or {})}
        print(
            f"  {tool}: {answer.get('message', '')[:160]} ({time.perf_counter() - start:.1f} s)",
            file=sys.stderr,
        )
        if answer["status"] != "completed":
            raise ValueError(f"{tool}: {answer['status']}: {answer.get('message')}")
        return answer

    return send
