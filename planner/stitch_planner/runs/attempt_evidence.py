"""The facts on one attempt, read from the store."""

from dataclasses import dataclass

from stitch_planner.runs.attempts import Attempt
from stitch_planner.runs.verdicts import verdict_on
from stitch_planner.sentences import explain
from stitch_tools.models.acceptance import AcceptPolicy, Verdict
from stitch_tools.models.program import Build
from stitch_tools.models.verdict import Bench, Check
from stitch_tools.storage.store import Store


@dataclass(frozen=True)
class AttemptEvidence:
    """What is known of a program. A fact is None where there is none yet."""

    attempt: Attempt
    build: Build | None
    """None also for a program in Python, which builds itself when it is loaded."""
    check: Check | None
    bench: Bench | None
    verdict: Verdict | None

    @property
    def sentence(self) -> str:
        """What the evidence amounts to."""
        if self.check is None or self.verdict is None:
            return "it was not checked"
        return explain(self.check, self.bench, self.verdict)


def evidence_of(store: Store, attempt: Attempt, policy: AcceptPolicy) -> AttemptEvidence:
    """The facts on an attempt, and what they amount to under `policy`.

    Raises:
        StoreError: one of them is missing or damaged.
    """
    build, check, bench = attempt.build, attempt.check, attempt.bench
    checked = store.get_fact(check.check, Check) if check else None
    timed = store.get_fact(bench.bench, Bench) if bench else None
    return AttemptEvidence(
        attempt=attempt,
        build=store.get_fact(build.build, Build) if build and build.build else None,
        check=checked,
        bench=timed,
        verdict=verdict_on(checked, timed, policy) if checked else None,
    )
