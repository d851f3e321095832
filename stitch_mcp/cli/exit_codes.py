"""Exit codes of the command line."""

from enum import IntEnum
from typing import TYPE_CHECKING

from stitch_tools.errors import StitchError
from stitch_tools.models.acceptance import Verdict
from stitch_tools.models.profile import Profile, ProfileStatus
from stitch_tools.models.program import Build
from stitch_tools.models.verdict import Bench

if TYPE_CHECKING:
    from stitch_mcp.rerun_certificate import Rerun


class ExitCode(IntEnum):
    """Exit code of one call. Correct but slower is `DONE`, with the outcome `slower`."""

    DONE = 0
    INTERNAL = 1
    USAGE = 2
    NONE_COUNTS = 3
    BELOW_GOAL = 4
    ENVIRONMENT = 5
    MODEL = 6
    BUDGET = 7
    CHEAT = 8
    UNMEASURED = 9
    INTERRUPTED = 130


MEANINGS = {
    ExitCode.DONE: "done; correct but slower counts, with outcome `slower`",
    ExitCode.INTERNAL: "internal error of stitch-mcp",
    ExitCode.USAGE: "wrong arguments, settings or reference",
    ExitCode.NONE_COUNTS: "no program that counts (or none possible), failed build, timing or verification",
    ExitCode.BELOW_GOAL: "correct, but below --min-speedup or, run again, below its certificate",
    ExitCode.ENVIRONMENT: "missing on this machine: compiler, torch, a library, disk space, a lock",
    ExitCode.MODEL: "model, authentication or quota",
    ExitCode.BUDGET: "stopped by the budget; the best so far is kept",
    ExitCode.CHEAT: "a program was rejected as a cheat",
    ExitCode.UNMEASURED: "built, but not measured: no such device here, or others hold its memory",
    ExitCode.INTERRUPTED: "interrupted; the message says how to resume",
}
"""One line each, for documentation and `--help`."""

_BY_ERROR = {
    "internal": ExitCode.INTERNAL,
    "worker": ExitCode.INTERNAL,
    "usage": ExitCode.USAGE,
    "task": ExitCode.USAGE,
    "certificate": ExitCode.NONE_COUNTS,
    "environment": ExitCode.ENVIRONMENT,
    "sandbox": ExitCode.ENVIRONMENT,
    "store": ExitCode.ENVIRONMENT,
    "locked": ExitCode.ENVIRONMENT,
    "stitch": ExitCode.NONE_COUNTS,
    "model": ExitCode.MODEL,
    "model_busy": ExitCode.MODEL,
    "budget": ExitCode.BUDGET,
    "interrupted": ExitCode.INTERRUPTED,
}


def for_error(error: StitchError) -> ExitCode:
    """The code of an exception; an unknown class has the code of its nearest known base class."""
    # New classes of errors may be added below: a script then still gets its base class's code.
    for kind in type(error).__mro__:
        code = _BY_ERROR.get(getattr(kind, "code", ""))
        if code is not None:
            return code
    return ExitCode.INTERNAL


def for_verdict(verdict: Verdict) -> ExitCode:
    """The code of what check and timing amount to."""
    if verdict.counts:
        return ExitCode.DONE
    if verdict.status == "rejected_cheat":
        return ExitCode.CHEAT
    return ExitCode.UNMEASURED if verdict.status == "unmeasured" else ExitCode.NONE_COUNTS


def for_build(build: Build) -> ExitCode:
    """The code of a compiler run."""
    return ExitCode.DONE if build.ok else ExitCode.NONE_COUNTS


def for_bench(bench: Bench, min_speedup: float | None) -> ExitCode:
    """The code of a timing, measured against the goal over eager where there is one.

    A goal above 1 is reached by what counts as faster only: neither by a median of mere noise, nor in doubt.
    """
    if bench.rejected:
        return ExitCode.CHEAT
    if bench.outcome == "unmeasured":
        return ExitCode.NONE_COUNTS if bench.program_failed else ExitCode.UNMEASURED
    eager = bench.ratio("eager")
    if min_speedup is None:
        return ExitCode.DONE
    if eager is None or eager.speedup < min_speedup or bench.is_doubtful:
        return ExitCode.BELOW_GOAL
    # A goal of 1 or below asks only not to be slower, which needs no proven gain.
    is_gain = eager.outcome == "faster" or min_speedup <= 1.0
    return ExitCode.DONE if is_gain else ExitCode.BELOW_GOAL


def for_result(verdict: Verdict | None, bench: Bench | None, min_speedup: float | None) -> ExitCode:
    """The code of a check followed by a timing, as `solve` and `demo` do it; None: nothing was checked."""
    if verdict is None:
        return ExitCode.NONE_COUNTS
    code = for_verdict(verdict)
    if code is not ExitCode.DONE or bench is None:
        return code
    return for_bench(bench, min_speedup)


_PROFILE_CODES: dict[ProfileStatus, ExitCode] = {
    "profiled": ExitCode.DONE,
    "partial": ExitCode.DONE,
    "unmeasured": ExitCode.UNMEASURED,
    "profiler_missing": ExitCode.ENVIRONMENT,
    "permission_denied": ExitCode.ENVIRONMENT,
    "profiler_busy": ExitCode.ENVIRONMENT,
    "not_converted": ExitCode.ENVIRONMENT,
}


def for_profile(profile: Profile) -> ExitCode:
    """The code of a profile: what the subject itself did not survive is no failure of this machine."""
    return _PROFILE_CODES.get(profile.status, ExitCode.NONE_COUNTS)


def for_rerun(rerun: "Rerun") -> ExitCode:
    """The code of a certificate's program that was run again."""
    code = for_verdict(rerun.verdict)
    if code is not ExitCode.DONE:
        return code
    return ExitCode.BELOW_GOAL if rerun.speedup == "not_confirmed" else ExitCode.DONE
