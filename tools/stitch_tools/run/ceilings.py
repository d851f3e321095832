"""What this device can do at best: measured once by torch in a confined child, cached by device."""

import contextlib
import json
import os
import platform
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from stitch_tools.errors import EnvironmentMissingError, LockedError, StitchError, WorkerError
from stitch_tools.machine.device_lock import DEVICE_WAIT_S, device_lock
from stitch_tools.machine.devices import Gpu, cpu_info, find_gpus, resolve_target
from stitch_tools.machine.interference import snapshot, waited_share
from stitch_tools.models.base import sha256_hex
from stitch_tools.models.graph import Ceilings, TransferRates
from stitch_tools.protocol.messages import OperationFailedError
from stitch_tools.protocol.timing_messages import MeasureCeilings
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import write_atomically
from stitch_tools.storage.user_cache import user_cache_dir

_CHILD_TIMEOUT_S = 180.0
_DEFAULT_CACHE_BYTES = 32 << 20
_BUSY_SHARE = 0.25
"""Above this share of waiting for a CPU the figures are low."""
_DISTURBED_FOR_S = 600.0
"""So long such figures stand in for better ones."""
_IDLE_LOAD = 0.25
"""Per CPU, the load average up to which a machine is idle enough to measure its limits again."""
_SCHEMA = 5


def is_idle() -> bool:
    """Whether this machine had little to do in the last minute."""
    return os.getloadavg()[0] <= _IDLE_LOAD * (os.cpu_count() or 1)


def measure_ceilings(
    target: str,
    *,
    session: TargetSession,
    cache_dir: Path | None = None,
    refresh: bool = False,
    emit: Callable[[str], None] | None = None,
    wait_s: float = DEVICE_WAIT_S,
    stop: threading.Event | None = None,
    idle: Callable[[], bool] = is_idle,
) -> Ceilings:
    """The ceilings of `cpu` or `cuda:sm_90`, from the cache where they were measured before.

    Figures of a CPU that others kept busy meanwhile are marked `disturbed`, and measured again by the first
    call after ten minutes that finds the machine idle and the device free: on a machine that is always busy
    they are paid for once. What is known stays where it is the better one.

    Args:
        target: the device; a GPU must be in this machine.
        session: where torch runs, on as many threads of a CPU as are measured.
        cache_dir: root of our caches; default: the user's cache folder.
        refresh: measure again.
        emit: progress for people.
        wait_s: how long to wait for another process that times on the device, where nothing is known or
            `refresh` asks for it.
        stop: when set, the wait ends.
        idle: whether a measurement now would be better than a disturbed one.

    Raises:
        EnvironmentMissingError: no such device here.
        WorkerError: the measuring child failed.
        LockedError: another process times on the device for longer than `wait_s`.
        InterruptedRunError: `stop` was set.
    """
    place = _place(target, session.threads, cache_dir)
    known = _read(place.file)
    with contextlib.ExitStack() as held:
        hold = partial(device_lock, place.gpu.uuid if place.gpu else "cpu", purpose="ceilings", stop=stop)
        if known is None or refresh:
            held.enter_context(hold(wait_s=wait_s, emit=emit))
            # Runs that begin side by side all know nothing: the first one measures for the others.
            meanwhile = None if refresh else _read(place.file)
            if meanwhile is not None:
                return meanwhile
        elif not (known.disturbed and _is_old(place.file) and idle()):
            return known
        else:
            try:
                held.enter_context(hold(wait_s=0.0))
            except LockedError:  # figures of a busy device would be no better than those that are known
                return known
        if emit is not None:
            emit("measuring what this device can do")
        before = snapshot()
        measured = _measure(place, target, session)
        waited = waited_share(before, snapshot()) if place.gpu is None else None
    if waited is not None and waited > _BUSY_SHARE:
        measured = _disturbed(known, measured, waited, emit)
    _keep(place.file, measured)
    return measured


def _disturbed(
    known: Ceilings | None, measured: Ceilings, waited: float, emit: Callable[[str], None] | None
) -> Ceilings:
    """What is left of a measurement beside others: no figure below what is known."""
    if emit is not None:
        emit(f"others used this machine {waited:.0%} of that time: the figures may be too low")
    widest = _wider(known or measured, measured)
    return widest.model_copy(update={"disturbed": known is None or known.disturbed})


def cached_ceilings(target: str, *, threads: int, cache_dir: Path | None = None) -> Ceilings | None:
    """The ceilings that were measured here before for `threads` CPU threads; None where there are none."""
    return _read(_place(target, threads, cache_dir).file)


def remeasured(known: Ceilings, session: TargetSession, *, cache_dir: Path | None = None) -> Ceilings:
    """The wider of `known` and what is measured now: what a disturbed measurement missed is made good.

    The caller holds the device's lock. The cache gets the wider ones.

    Raises:
        EnvironmentMissingError: the device is not here.
        WorkerError: the measuring child failed.
    """
    place = _place(known.target, session.threads, cache_dir)
    widest = _wider(known, _measure(place, known.target, session))
    _keep(place.file, widest)
    return widest


def _wider(known: Ceilings, measured: Ceilings) -> Ceilings:
    wider: dict[str, object] = {
        name: max(getattr(known, name) or 0.0, getattr(measured, name) or 0.0) or None
        for name in ("copy_bytes_per_s", "cache_bytes_per_s", "write_bytes_per_s")
    }
    wider["launch_us"] = min(known.launch_us, measured.launch_us)
    nodes = [row.node_us for row in (known, measured) if row.node_us is not None]
    wider["node_us"] = min(nodes, default=None)
    wider["flops_per_s"] = {
        name: max(known.flops_per_s.get(name, 0.0), measured.flops_per_s.get(name, 0.0))
        for name in {**known.flops_per_s, **measured.flops_per_s}
    }
    if known.transfers is not None or measured.transfers is not None:
        wider["transfers"] = (known.transfers or TransferRates()).wider(measured.transfers)
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

    gpu: Gpu | None
    file: Path


def _place(target: str, threads: int, cache_dir: Path | None) -> _Place:
    gpu = _gpu_of(target)
    if gpu is not None:
        key = f"{gpu.uuid}/driver {find_gpus().driver or 'unknown'}"
    else:
        key = f"cpu/{cpu_info().model}/{threads} threads/{platform.release()}"
    file = (cache_dir or user_cache_dir()) / "ceilings" / f"{sha256_hex(key.encode())[:32]}.json"
    return _Place(gpu, file)


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


def _keep(file: Path, ceilings: Ceilings) -> None:
    body = {"schema": _SCHEMA, "ceilings": ceilings.model_dump(mode="json")}
    with contextlib.suppress(StitchError):  # a cache that cannot be written only costs the next run time
        write_atomically(file, json.dumps(body, indent=1).encode("utf-8"))


def _read(path: Path) -> Ceilings | None:
    """The cached figures; None where there are none, or they are damaged."""
    try:
        entry: dict[str, Any] = json.loads(path.read_bytes())
        return Ceilings.model_validate(entry["ceilings"]) if entry["schema"] == _SCHEMA else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _measure(place: _Place, target: str, session: TargetSession) -> Ceilings:
    gpu = place.gpu
    cache = (gpu.l2_bytes if gpu else cpu_info().last_level_cache_bytes) or _DEFAULT_CACHE_BYTES
    with session.spawn("reference") as child:
        try:
            request = MeasureCeilings(f"cuda:{gpu.index}" if gpu else "cpu", cache)
            rates = child.call(request, _CHILD_TIMEOUT_S)
        except OperationFailedError as error:
            raise WorkerError(
                f"measuring the device failed: {error.fault.message}",
                hint="does `torch.mm` work in the target interpreter?",
            ) from error
    return Ceilings(
        device=gpu.name if gpu else cpu_info().model,
        target=target,
        copy_bytes_per_s=rates.copy_bytes_per_s,
        cache_bytes_per_s=rates.cache_bytes_per_s,
        write_bytes_per_s=rates.write_bytes_per_s,
        last_level_cache_bytes=cache,
        flops_per_s=rates.flops_per_s,
        launch_us=rates.launch_s * 1e6,
        node_us=None if rates.node_s is None else rates.node_s * 1e6,
        transfers=None if rates.transfers is None else TransferRates(**rates.transfers),
        threads=None if gpu else session.threads,
    )
