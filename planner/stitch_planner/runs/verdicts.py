"""Verdicts on a run's programs, as its events keep them."""

import contextlib

from stitch_planner.runs.attempts import Attempt
from stitch_planner.runs.run_events import BenchFinished
from stitch_planner.runs.state import State
from stitch_tools.errors import StoreError
from stitch_tools.models.acceptance import AcceptPolicy, Verdict
from stitch_tools.models.verdict import Bench, Check
from stitch_tools.storage.store import Store


def verdict_on(check: Check, bench: Bench | None, policy: AcceptPolicy) -> Verdict:
    """The verdict under a run's policy."""
    # The judge's package is heavy to import, and most readers of a run need no new verdict.
    from stitch_tools.judge.verdict import verdict_of

    return verdict_of(check, bench, policy)


def timed_event(bench: Bench, stored: str, decided: Verdict) -> BenchFinished:
    """The event of a timing that is stored under the hash `stored`."""
    eager = bench.ratio("eager")
    return BenchFinished(
        program_id=bench.program_id,
        bench=stored,
        outcome=bench.outcome,
        status=decided.status,
        counts=decided.counts,
        speedup=eager.speedup if eager else None,
        # A figure that is in doubt is no reason to prefer the program to another one.
        safe_speedup=eager.low if eager and not bench.doubt else None,
        cpu_speedup=next(
            (row.low for row in bench.cpu_ratios if (row.baseline, row.contestant) == ("eager", "program")),
            None,
        ),
    )


def with_verdicts(state: State, store: Store) -> State:
    """The state with what older versions did not record: whether a program counts, and its speedup."""
    policy = state.started.policy if state.started else AcceptPolicy()
    rows = tuple(_with_verdict(row, store, policy) for row in state.attempts)
    return state if rows == state.attempts else state.model_copy(update={"attempts": rows})


def _with_verdict(attempt: Attempt, store: Store, policy: AcceptPolicy) -> Attempt:
    seen = [event for event in (attempt.check, attempt.bench) if event is not None]
    if attempt.check is None or any(event.counts is not None for event in seen):
        return attempt
    with contextlib.suppress(StoreError):
        check = store.get_fact(attempt.check.check, Check)
        bench = store.get_fact(attempt.bench.bench, Bench) if attempt.bench else None
        decided = verdict_on(check, bench, policy)
        update: dict[str, object] = {"status": decided.status, "counts": decided.counts}
        if bench is not None and attempt.bench is not None:
            update["bench"] = timed_event(bench, attempt.bench.bench, decided)
        return attempt.model_copy(update=update)
    # Where the evidence is lost, the rule of the versions without verdicts: every correct program counts. So
    # the run goes on with the program, and looks at it again.
    return attempt.model_copy(update={"counts": attempt.accepted})
