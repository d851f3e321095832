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
from tests.tools.judge.zoo_runner import ZOO, Case, Court


@dataclass
class ZooRow:
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
    kernelbench_static: str | None = None
    kernelbench_trials: str | None = None


def digest(case: Case) -> str:
    """A hash of everything that makes the case."""
    found = hashlib.sha256((ZOO / "references" / f"{case.reference}.py").read_bytes())
    for path, data in (*case.files().items(), ("", (case.folder / "case.toml").read_bytes())):
        found.update(path.encode() + b"\0" + data)
    return found.hexdigest()[:16]


class Recorder:
    """Has each case judged, and asks the other harness."""

    def __init__(self, court: Court, revision: str, *, kernelbench: Harness | None = None) -> None:
        self.court, self.revision, self.kernelbench = court, revision, kernelbench

    def record(self, case: Case) -> ZooRow:
        """The case's row; a failure of the judge is a row, too."""
        row = ZooRow(
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
        if self.kernelbench is not None:
            self._ask_kernelbench(row, case)
        return row

    def _judge(self, row: ZooRow, case: Case) -> None:
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

    def _ask_kernelbench(self, row: ZooRow, case: Case) -> None:
        assert self.kernelbench is not None
        if case.harms:
            row.kernelbench_static = row.kernelbench_trials = f"not run: {case.harms}"
            return
        said = self.kernelbench.ask(self.court, case)
        row.kernelbench_static = str(said["static"]) if said is not None else "ends the harness"
        row.kernelbench_trials = str(said["trials"]) if said is not None else "ends the harness"


def _told(run: SanitizerRun) -> str:
    """What became of one sanitizer."""
    return f"{run.tool} {run.status}{': ' if run.reason else ''}{run.reason}"
