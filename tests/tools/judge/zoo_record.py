"""One row of the suite's table: everything that is said of one case, by the judge and by others beside it."""

import hashlib
import os
import time
from dataclasses import dataclass

from stitch_tools.errors import StitchError
from stitch_tools.models.sanitizer import SanitizerRun
from tests.tools.judge.zoo_clock import Stopwatch, wanted
from tests.tools.judge.zoo_harness import Harness
from tests.tools.judge.zoo_noticed import noticed
from tests.tools.judge.zoo_runner import ELSEWHERE, PROBES, SWITCHES, ZOO, Case, Court, Verdict, without


@dataclass
class Row:
    """One case and everything that was said of it."""

    name: str
    kind: str
    family: str
    probes: tuple[str, ...]
    """Those that are said to catch it."""
    known_miss: bool
    digest: str
    """Of its files and its reference."""
    revision: str
    load: float
    """Of the machine before it was judged, one minute's mean."""
    right: bool = False
    """Whether a cheat was caught, or an honest program accepted."""
    status: str = "error"
    flags: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    noticed: tuple[str, ...] = ()
    """Probes that spoke against it, the first one first."""
    message: str = ""
    seconds: float = 0.0
    bench: str | None = None
    """What the clock's side said; None: the case is not about the clock."""
    ablation: str | None = None
    """What became of it without its probes; None: not tried."""
    naive: str | None = None
    """What a naive harness says; None: not asked."""
    naive_speedup: float | None = None
    """What that harness' own clock says."""
    kernelbench_static: str | None = None
    kernelbench_trials: str | None = None


def digest(case: Case) -> str:
    """A hash of everything that makes the case."""
    found = hashlib.sha256((ZOO / "references" / f"{case.reference}.py").read_bytes())
    for path, data in (*case.files().items(), ("", (case.folder / "case.toml").read_bytes())):
        found.update(path.encode() + b"\0" + data)
    return found.hexdigest()[:16]


class Recorder:
    """Has each case judged, and asks the other harnesses."""

    def __init__(
        self,
        court: Court,
        revision: str,
        *,
        ablation: bool = False,
        naive: Harness | None = None,
        kernelbench: Harness | None = None,
    ) -> None:
        self.court, self.revision, self.ablation = court, revision, ablation
        self.naive, self.kernelbench = naive, kernelbench

    def record(self, case: Case) -> Row:
        """The case's row; a failure of the judge is a row, too."""
        row = Row(
            name=case.name,
            kind=case.kind,
            family=case.family,
            probes=case.caught_by,
            known_miss=case.missed,
            digest=digest(case),
            revision=self.revision,
            load=os.getloadavg()[0],
        )
        began = time.monotonic()
        try:
            self._judge(row, case)
        except StitchError as error:
            row.message = f"the judge failed: {error.message}"
        row.seconds = time.monotonic() - began
        if self.ablation and case.kind == "cheats":
            self._ask_naive(row, case)
            row.ablation = self._ablated(row, case)
        if self.kernelbench is not None:
            self._ask_kernelbench(row, case)
        return row

    def _judge(self, row: Row, case: Case) -> None:
        verdict = self.court.judge(case)
        row.right, row.status, row.flags = verdict.catches(case), verdict.status, verdict.flags
        row.rules = verdict.findings
        row.message = "; ".join((verdict.message, *map(_told, verdict.check.sanitizers)))
        row.noticed = noticed(verdict.check)
        if "timing" in case.caught_by and verdict.status == "accepted":
            bench = Stopwatch(self.court).time(case)
            row.bench = f"{bench.outcome}: {bench.message}" if bench.message else bench.outcome
            row.right = wanted(case).fits(bench)
            if row.right:
                row.noticed = (*row.noticed, "timing")

    def _ablated(self, row: Row, case: Case) -> str:
        """`passes` where nobody doubts it without its probes, else what still catches it."""
        if not row.right:
            return "not caught in the first place"
        if without(case) is None:
            # No part of the judge can stand in for walls and clocks that are not there.
            lacking = ", ".join(probe for probe in case.caught_by if is_elsewhere(probe))
            return f"{_in_words(row, case)}, without {lacking}"
        try:
            verdict, others = stripped(self.court, case)
        except StitchError as error:
            return f"the judge failed: {error.message}"
        said = "passes" if verdict.passes else _still_caught(verdict)
        return f"{said}, without {', '.join(others)}, too" if others else said

    def _ask_naive(self, row: Row, case: Case) -> None:
        if self.naive is None or case.harms:
            return
        said = self.naive.ask(self.court, case)
        row.naive = str(said["verdict"]) if said is not None else "ends the harness"
        if said is not None and said.get("speedup") is not None:
            row.naive_speedup = float(said["speedup"])

    def _ask_kernelbench(self, row: Row, case: Case) -> None:
        assert self.kernelbench is not None
        if case.harms:
            row.kernelbench_static = row.kernelbench_trials = f"not run: {case.harms}"
            return
        said = self.kernelbench.ask(self.court, case)
        row.kernelbench_static = str(said["static"]) if said is not None else "ends the harness"
        row.kernelbench_trials = str(said["trials"]) if said is not None else "ends the harness"


def stripped(court: Court, case: Case) -> tuple[Verdict, tuple[str, ...]]:
    """What is said of a case without its probes, and which others had to go before nothing caught it.

    A cheat may be caught for its one reason by several probes; those that follow the named ones are taken out
    one by one, as they are noticed. Ends with the verdict of what has no switch, too.
    """
    gone = list(case.caught_by)
    while True:
        rules = without(case, gone)
        assert rules is not None
        verdict = court.judge(case, rules)
        others = tuple(gone[len(case.caught_by) :])
        following = [probe for probe in noticed(verdict.check) if probe in PROBES and probe not in gone]
        if verdict.passes or not following or without(case, following) is None:
            return verdict, others
        gone += following


def is_elsewhere(probe: str) -> bool:
    """Whether only a harness without the probe shows what it catches."""
    return probe in ELSEWHERE and probe not in SWITCHES


def _told(run: SanitizerRun) -> str:
    """What became of one sanitizer."""
    return f"{run.tool} {run.status}{': ' if run.reason else ''}{run.reason}"


def _still_caught(verdict: Verdict) -> str:
    by = ", ".join(noticed(verdict.check)) or verdict.status
    return f"caught by {by}"


def _in_words(row: Row, case: Case) -> str:
    """What the naive harness' verdict means for an ablation."""
    if case.harms:
        return f"not run: {case.harms}"
    words = {None: "not run", "accepted": "passes", "incorrect": "caught by equality"}
    return f"{words.get(row.naive, str(row.naive))} (naive harness)"
