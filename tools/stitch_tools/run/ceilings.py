"""What this device can do at best: measured once, cached by device and driver.

Interference only ever makes a rate lower, so every figure is the best of many short repetitions. A CPU is
probed by a small C++ program of ours (native/src/probe.cpp); matrix products, and everything on a GPU, are
measured by torch in a confined child.
"""

import contextlib
import json
import os
import platform
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from stitch_tools.compile.host_build import build_probe
from stitch_tools.errors import EnvironmentMissingError, LockedError, StitchError, WorkerError
from stitch_tools.machine.device_lock import DEVICE_WAIT_S, device_lock
from stitch_tools.machine.devices import Gpu, cpu_info, find_gpus, resolve_target, usable_cpus
from stitch_tools.machine.interference import snapshot, waited_share
from stitch_tools.models import Ceilings, sha256_hex
from stitch_tools.protocol.messages import OperationFailedError
from stitch_tools.protocol.timing_messages import CeilingsMeasured, MeasureCeilings
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import write_atomically
from stitch_tools.storage.user_cache import user_cache_dir

_PROBE_TIMEOUT_S = 60.0
_CHILD_TIMEOUT_S = 180.0
_PROBE_REPETITIONS = 3
_DEFAULT_CACHE_BYTES = 32 << 20
_BUSY_SHARE = 0.25
"""Above this share of waiting for a CPU the figures are low."""
_DISTURBED_FOR_S = 600.0
"""So long such figures stand in for better ones."""
_SCHEMA = 2
_BANDWIDTHS = ("copy_bytes_per_s", "cache_bytes_per_s", "write_bytes_per_s", "read_bytes_per_s")


def measure_ceilings(
    target: str,
    *,
    cache_dir: Path | None = None,
    session: TargetSession | None = None,
    refresh: bool = False,
    emit: Callable[[str], None] | None = None,
    wait_s: float = DEVICE_WAIT_S,
    stop: threading.Event | None = None,
) -> Ceilings:
    """The ceilings of `cpu` or `cuda:sm_90`, from the cache where they were measured before.

    Figures of a CPU that others kept busy meanwhile are marked `disturbed`, and measured again by the first
    call after ten minutes that finds the device free; what is known stays where it is the better one.

    Args:
        target: the device; a GPU must be in this machine.
        cache_dir: root of our caches; default: the user's cache folder.
        session: where torch can be run. Without one a CPU's matrix-product rate is its multiply-add rate,
            which no product can beat; such a result is not cached over a better one.
        refresh: measure again.
        emit: progress for people.
        wait_s: how long to wait for another process that times on the device, where nothing is known or
            `refresh` asks for it.
        stop: when set, the wait ends.

    Raises:
        EnvironmentMissingError: no such device here, no C++ compiler, or (GPU) no session was given.
        WorkerError: the measuring child failed.
        LockedError: another process times on the device for longer than `wait_s`.
        InterruptedRunError: `stop` was set.
    """
    place = _place(target, session.threads if session is not None else None, cache_dir)
    known = _read(place.file, need_products=session is not None)
    with contextlib.ExitStack() as held:
        hold = partial(device_lock, place.gpu.uuid if place.gpu else "cpu", purpose="ceilings", stop=stop)
        if known is None or refresh:
            held.enter_context(hold(wait_s=wait_s, emit=emit))
        elif not (known.disturbed and _is_old(place.file)):
            return known
        else:
            try:
                held.enter_context(hold(wait_s=0.0))
            except LockedError:  # figures of a busy device would be no better than those that are known
                return known
        if emit is not None:
            emit("measuring what this device can do")
        before = snapshot()
        measured = _measure(place, target, cache_dir, session)
        waited = waited_share(before, snapshot()) if place.gpu is None else None
    if waited is not None and waited > _BUSY_SHARE:
        if emit is not None:
            emit(f"others used this machine {waited:.0%} of that time: the figures may be too low")
        widest = _wider(known or measured, measured)
        measured = widest.model_copy(update={"disturbed": known is None or known.disturbed})
    with contextlib.suppress(StitchError):  # a cache that cannot be written only costs the next run time
        write_atomically(place.file, _entry(measured, products=session is not None))
    return measured


def cached_ceilings(
    target: str, *, threads: int | None = None, cache_dir: Path | None = None
) -> Ceilings | None:
    """The ceilings that were measured here before for `threads` CPU threads; None where there are none."""
    return _read(_place(target, threads, cache_dir).file, need_products=False)


def remeasured(known: Ceilings, session: TargetSession, *, cache_dir: Path | None = None) -> Ceilings:
    """The wider of `known` and what is measured now: what a disturbed measurement missed is made good.

    The caller holds the device's lock. The cache gets the wider ones.

    Raises:
        EnvironmentMissingError: the device is not here, or there is no C++ compiler.
        WorkerError: the measuring child failed.
    """
    place = _place(known.target, session.threads, cache_dir)
    widest = _wider(known, _measure(place, known.target, cache_dir, session))
    with contextlib.suppress(StitchError):
        write_atomically(place.file, _entry(widest, products=True))
    return widest


def _wider(known: Ceilings, measured: Ceilings) -> Ceilings:
    wider: dict[str, object] = {
        name: max(getattr(known, name) or 0.0, getattr(measured, name) or 0.0) or None for name in _BANDWIDTHS
    }
    wider["launch_us"] = min(known.launch_us, measured.launch_us)
    wider["flops_per_s"] = {
        name: max(known.flops_per_s.get(name, 0.0), measured.flops_per_s.get(name, 0.0))
        for name in {**known.flops_per_s, **measured.flops_per_s}
    }
    return known.model_copy(update=wider)


def _is_old(file: Path) -> bool:
    """Whether figures have stood in for better ones long enough."""
    try:
        return time.time() - file.stat().st_mtime > _DISTURBED_FOR_S
    except OSError:
        return True


@dataclass(frozen=True)
class _Place:
    """Whose ceilings, and where they are kept."""

    key: str
    gpu: Gpu | None
    threads: int
    file: Path


def _place(target: str, threads: int | None, cache_dir: Path | None) -> _Place:
    gpu = _gpu_of(target)
    count = threads or usable_cpus()
    if gpu is not None:
        key = f"{gpu.uuid}/driver {find_gpus().driver or 'unknown'}"
    else:
        key = f"cpu/{cpu_info().model}/{count} threads/{platform.release()}"
    file = (cache_dir or user_cache_dir()) / "ceilings" / f"{sha256_hex(key.encode())[:32]}.json"
    return _Place(key, gpu, count, file)


def _measure(place: _Place, target: str, cache_dir: Path | None, session: TargetSession | None) -> Ceilings:
    if place.gpu is None:
        return _measure_cpu(place.key, place.threads, cache_dir, session)
    return _measure_gpu(place.key, place.gpu, target, session)


def _gpu_of(target: str) -> Gpu | None:
    if target == "cpu":
        return None
    resolved = resolve_target(target)
    if resolved.gpu is None:
        raise EnvironmentMissingError(
            f"the ceilings of {target} cannot be measured here: {resolved.device}",
            hint="run this on a machine with such a GPU, or plan without ceilings",
        )
    return resolved.gpu


def _entry(ceilings: Ceilings, *, products: bool) -> bytes:
    body = {"schema": _SCHEMA, "products": products, "ceilings": ceilings.model_dump(mode="json")}
    return json.dumps(body, indent=1).encode("utf-8")


def _read(path: Path, *, need_products: bool) -> Ceilings | None:
    """The cached figures; None where there are none, they are damaged, or lack measured products."""
    try:
        entry: dict[str, Any] = json.loads(path.read_bytes())
        if entry["schema"] != _SCHEMA or (need_products and not entry["products"]):
            return None
        return Ceilings.model_validate(entry["ceilings"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _measure_cpu(key: str, threads: int, cache_dir: Path | None, session: TargetSession | None) -> Ceilings:
    cache = cpu_info().last_level_cache_bytes or _DEFAULT_CACHE_BYTES
    best = _run_probe(build_probe(cache_dir), threads, cache)
    fma = best["fma_flops_per_s"]
    rates = {"fp32": fma}
    if session is not None:
        rates |= _ask_child(session, "cpu").flops_per_s
    return Ceilings(
        device=cpu_info().model,
        device_key=key,
        target="cpu",
        copy_bytes_per_s=best["copy_bytes_per_s"],
        cache_bytes_per_s=best["cache_bytes_per_s"],
        write_bytes_per_s=best["write_bytes_per_s"],
        read_bytes_per_s=best["read_bytes_per_s"],
        last_level_cache_bytes=cache,
        flops_per_s=rates,
        pointwise_flops_per_s=fma,
        launch_us=best["launch_s"] * 1e6,
        threads=threads,
    )


def _run_probe(probe: Path, threads: int, cache_bytes: int) -> dict[str, float]:
    """The best figures of several runs: on a shared machine one whole run may fall into a busy moment."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    memory_limit = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4
    best: dict[str, float] = {}
    for _ in range(_PROBE_REPETITIONS):
        try:
            process = subprocess.run(
                [str(probe), str(cache_bytes), str(memory_limit)],
                capture_output=True,
                check=True,
                timeout=_PROBE_TIMEOUT_S,
                env=environment,
            )
            figures: dict[str, float] = json.loads(process.stdout)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            raise WorkerError(
                f"the ceilings probe failed: {error}",
                hint="try again; `stitch-mcp doctor` checks the compiler",
            ) from error
        for name, value in figures.items():
            choose = min if name == "launch_s" else max
            best[name] = choose(best.get(name, value), value)
    return best


def _measure_gpu(key: str, gpu: Gpu, target: str, session: TargetSession | None) -> Ceilings:
    if session is None:
        raise EnvironmentMissingError(
            "the ceilings of a GPU are measured by torch", hint="give the target interpreter (--python)"
        )
    answer = _ask_child(session, f"cuda:{gpu.index}")
    rates = answer.device
    assert rates is not None, "a GPU was asked for"
    return Ceilings(
        device=gpu.name,
        device_key=key,
        target=target,
        copy_bytes_per_s=rates.copy_bytes_per_s,
        cache_bytes_per_s=rates.cache_bytes_per_s,
        write_bytes_per_s=rates.write_bytes_per_s,
        read_bytes_per_s=rates.read_bytes_per_s,
        last_level_cache_bytes=int(gpu.l2_bytes or rates.last_level_cache_bytes),
        flops_per_s=answer.flops_per_s,
        launch_us=rates.launch_s * 1e6,
    )


def _ask_child(session: TargetSession, device: str) -> CeilingsMeasured:
    with session.spawn("reference") as child:
        try:
            return child.call(MeasureCeilings(device), _CHILD_TIMEOUT_S)
        except OperationFailedError as error:
            raise WorkerError(
                f"measuring the matrix-product rate failed: {error.fault.message}",
                hint="does `torch.mm` work in the target interpreter?",
            ) from error
