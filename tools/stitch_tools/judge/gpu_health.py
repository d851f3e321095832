"""A GPU that a program left unusable: seen before the next program is judged, and never held against that."""

from collections.abc import Generator
from contextlib import contextmanager

from stitch_tools.errors import EnvironmentMissingError, WorkerError
from stitch_tools.judge.correctness.check_record import End
from stitch_tools.machine.devices import resolve_target
from stitch_tools.models.verdict import Finding
from stitch_tools.run.gpu_canary import GpuCanary
from stitch_tools.run.session import TargetSession

_SUSPECTS = ("crashed", "timed_out")


def canary_for(session: TargetSession, target: str) -> GpuCanary | None:
    """Who tells whether the GPU works that programs for `target` run on; None where they run on none here."""
    return session.gpu if target.startswith("cuda") and resolve_target(target).available else None


@contextmanager
def sound_gpu(canary: GpuCanary | None) -> Generator[None]:
    """Run the body on a GPU that works; where a process of ours failed in it, the next use asks again.

    Raises:
        EnvironmentMissingError: the GPU does not answer, or did not after an earlier program.
    """
    if canary is None:
        yield
        return
    canary.require()
    try:
        yield
    except WorkerError:
        canary.doubt()
        raise


def wedged(canary: GpuCanary | None, end: End | None) -> tuple[Finding, ...]:
    """The finding that the GPU does not work any more after a program that crashed or hung on it."""
    if canary is None or end is None or end.status not in _SUSPECTS:
        return ()
    canary.doubt()
    try:
        canary.require()
    except EnvironmentMissingError as error:
        message = f"after this program {error.message}; {error.hint}"
        return (Finding(rule="gpu_wedged", severity="suspicious", message=message),)
    return ()
