"""PyTorch's own profiler (kineto) in place of nsys: it needs only torch, and writes the same tables."""

from stitch_tools.profile.nsys import Recording, failure_of
from stitch_tools.profile.profile_host import TABLES, HostSetup, run_host
from stitch_tools.profile.recorded_trace import MOST_BYTES


def record_with_torch(setup: HostSetup, *, limit_s: float) -> Recording:
    """Record the subject once; whatever goes wrong is a status.

    Raises:
        SandboxError: the isolation could not be applied.
    """
    run = run_host(setup, "torch", limit_s=limit_s)
    failed = failure_of(run, limit_s)
    if failed is not None:
        return failed
    tables = setup.folder / TABLES
    if not tables.exists():
        return Recording("region_not_entered", "PyTorch's profiler wrote no record", run=run)
    if tables.stat().st_size > MOST_BYTES:
        tables.unlink()
        return Recording("too_large", f"the recording has more than {MOST_BYTES >> 20} MiB", run=run)
    return Recording("profiled", tables=tables, run=run)
