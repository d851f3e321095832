"""Runs one reference or program a few times under a profiler, in a fresh interpreter.

Usage: bootstrap.py profile_host JOB [DESCRIPTOR...]. Writes `report.json`, and prints `done`, or
`failed STEP STATUS MESSAGE` as the hosts of the sanitizers do. The job's `method` says who records: `nsys`
(which started this process and waits for cudaProfilerStart), `ncu` (the same, for one iteration), `torch`
(PyTorch's own profiler, into a file of the same tables), or `none`: then the calls are timed, and nothing is
recorded.
"""

import contextlib
import json
import statistics
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stitch_tools.worker.profiled.marks import Marker
    from stitch_tools.worker.profiled.subjects import ProfiledSubject

_WARM_S, _WARM_CALLS = 1.0, 3
_MOST_ITERATIONS = 10
_RECORDED_S = 0.5
_TIMED_S, _MOST_TIMED = 1.5, 200
_CALIBRATION_ROUNDS = 6


def main(job_file: str, *fds: str) -> int:
    """Exit code: 0 when all iterations ran through."""
    # Not at the top: the zygote imports every worker module's name, and must not wait for this one's.
    import torch

    from stitch_tools.protocol.memory_faults import is_out_of_memory
    from stitch_tools.worker.profiled.subjects import load_subject
    from stitch_tools.worker.reference.load_reference import ReferenceFault
    from stitch_tools.worker.runtime.native import ProgramError

    job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    try:
        subject = load_subject(job, [int(fd) for fd in fds])
        with torch.inference_mode():
            report = _record(job, subject)
    except (ProgramError, ReferenceFault) as error:
        status = getattr(error, "status", None) or getattr(error, "kind", "error")
        return _failed(getattr(error, "step", "reference"), status, str(error))
    except (MemoryError, RuntimeError) as error:
        status = "out_of_memory" if is_out_of_memory(error) else "error"
        return _failed("forward", status, f"{type(error).__name__}: {error}")
    Path("report.json").write_text(json.dumps(report), encoding="utf-8")
    print("done", flush=True)
    return 0


def _failed(step: str, status: str, message: str) -> int:
    print("failed", step, status, " ".join(message.split())[-400:], flush=True)
    return 3


def _record(job: dict[str, Any], subject: "ProfiledSubject") -> dict[str, object]:
    import torch

    cuda = job["device"] == "cuda"
    wait = torch.cuda.synchronize if cuda else _nothing
    report: dict[str, object] = {
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if cuda else "",
        "call_us": _warm(subject.call, wait) * 1e6,
    }
    if job["method"] == "none":
        return {**report, **_timed(subject.call, wait)}
    if job["method"] == "ncu":
        # Each kernel is run again for every group of counters: one iteration, and no range of ours.
        torch.cuda.profiler.start()
        subject.call()
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()
        return {**report, "iterations": 1}
    seconds = max(1e-6, float(str(report["call_us"])) * 1e-6)
    iterations = max(2, min(_MOST_ITERATIONS, int(_RECORDED_S / seconds)))
    with _recorder(job) as marker:
        _iterate(marker, subject, wait, iterations, cuda=cuda)
    return {**report, "iterations": iterations}


def _nothing() -> None:
    pass


def _warm(call: Callable[[], object], wait: Callable[[], object]) -> float:
    """Seconds of the fastest of a few calls: what is compiled or chosen at the first is no part of it."""
    best, end, calls = float("inf"), time.perf_counter() + _WARM_S, 0
    while calls < _WARM_CALLS or (time.perf_counter() < end and calls < 10 * _WARM_CALLS):
        best = min(best, _one(call, wait))
        calls += 1
    return best


def _one(call: Callable[[], object], wait: Callable[[], object]) -> float:
    wait()
    start = time.perf_counter()
    call()
    wait()
    return time.perf_counter() - start


def _timed(call: Callable[[], object], wait: Callable[[], object]) -> dict[str, object]:
    """Latencies with nothing recorded: device idle, one call, synchronised."""
    seconds: list[float] = []
    end = time.perf_counter() + _TIMED_S
    while len(seconds) < 5 or (time.perf_counter() < end and len(seconds) < _MOST_TIMED):
        seconds.append(_one(call, wait))
    ordered = sorted(seconds)
    return {
        "latency_us": statistics.median(seconds) * 1e6,
        "low_us": ordered[len(ordered) // 10] * 1e6,
        "high_us": ordered[-1 - len(ordered) // 10] * 1e6,
        "samples": len(seconds),
    }


@contextlib.contextmanager
def _recorder(job: dict[str, Any]) -> "Generator[Marker]":
    """Records while the block runs; yields what marks ranges in the record."""
    import torch

    from stitch_tools.worker.profiled.kineto_tables import write_tables
    from stitch_tools.worker.profiled.marks import KinetoMarker, NvtxMarker

    cuda = job["device"] == "cuda"
    if job["method"] == "nsys":
        torch.cuda.profiler.start()
        try:
            yield NvtxMarker()
        finally:
            torch.cuda.synchronize()
            torch.cuda.profiler.stop()
        return
    # torch.profiler.profile, which wraps it, imports Inductor at its start: three seconds.
    profile = torch.autograd.profiler.profile(use_device="cuda" if cuda else None, use_kineto=True)
    with profile:
        yield KinetoMarker()
        if cuda:
            torch.cuda.synchronize()
    results = profile.kineto_results
    write_tables(results.events() if results is not None else (), job["tables"])


def _iterate(
    marker: "Marker",
    subject: "ProfiledSubject",
    wait: Callable[[], object],
    iterations: int,
    *,
    cuda: bool,
) -> None:
    """The iterations whose times count, then one whose ranges say what belongs to which module."""
    import torch

    from stitch_tools.worker.profiled.marks import (
        CALIBRATION,
        CALL,
        ITERATION,
        NAMED,
        NvtxMarker,
        marked,
        marked_modules,
    )
    from stitch_tools.worker.timed.short_kernels import launch_short_kernels, short_kernel_values

    if cuda:
        values = short_kernel_values("cuda")
        launch_short_kernels(values, 1)
        wait()
        with marked(marker, CALIBRATION):
            launch_short_kernels(values, _CALIBRATION_ROUNDS)
            wait()
    for _ in range(iterations):
        with marked(marker, ITERATION):
            with marked(marker, CALL):
                subject.call()
            wait()
    # Operators have ranges of their own in PyTorch's profiler; for nsys they are switched on here alone,
    # since they slow the host down.
    operators = (
        torch.autograd.profiler.emit_nvtx() if isinstance(marker, NvtxMarker) else contextlib.nullcontext()
    )
    with operators, marked_modules(marker, subject.module), marked(marker, NAMED):
        subject.call()
        wait()
