"""Baselines of PyTorch in reference servers of their own, and where torch.compile keeps its work."""

import os
import re
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from stitch_tools.errors import TaskError
from stitch_tools.judge.timing.contestant import ContestantFailedError
from stitch_tools.judge.timing.seats import Field, Seat, first_go, start
from stitch_tools.run.reference_server import ReferenceServer
from stitch_tools.storage.store import storing
from stitch_tools.storage.user_cache import SIZE_CAP_BYTES, evict_unused, user_cache_dir

_COMPILE_ENV = {
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",
}
"""Inductor's pool of compile processes would run beside the clock. Its precompiled headers lie in the
temporary folder, which is each child's own: every bench would make them anew, even with all else cached."""
_COMPILED = "compile:"
_SPARED_S = 3600.0  # compiled baselines this fresh may belong to a bench that runs now


def begin_compiled(stack: ExitStack, place: Field, kinds: Sequence[str]) -> None:
    """Nothing; torch.compile works on its baselines for a CPU from here on, until they are seated.

    On a GPU nothing is begun: there it takes times.
    """
    for kind in kinds:
        if not kind.startswith(_COMPILED) or place.cuda:
            continue
        with suppress(ContestantFailedError):  # Whoever seats it tries again, and tells.
            place.begun[kind] = _begin_baseline(stack, place, kind)
            stack.callback(_drop_begun, place, kind)


def _drop_begun(place: Field, kind: str) -> None:
    """End what was begun in vain, without waiting for it."""
    seat = place.begun.pop(kind, None)
    if seat is not None and seat.child is not None:
        seat.child.kill()


def seat_baseline(stack: ExitStack, place: Field, kind: str, *, compile_limit_s: float) -> Seat:
    """One baseline, built and ready, in a reference server of its own.

    Raises:
        ContestantFailedError: it cannot be built here, or not within the limit.
    """
    seat = place.begun.pop(kind, None) or _begin_baseline(stack, place, kind)
    seat.draws = len(place.seeds) if place.renews else 0
    first_go(seat, compile_limit_s)
    return seat


def _begin_baseline(stack: ExitStack, place: Field, kind: str) -> Seat:
    """One baseline that is being built.

    Raises:
        ContestantFailedError: its reference cannot be loaded.
    """
    folder = inductor_folder(place)
    caches = {"TRITON_CACHE_DIR": str(folder / "triton")}
    # Inductor does not quote its compile commands: where a shell would split the path, nothing is kept.
    if re.fullmatch(r"[\w/.+-]+", str(folder)):
        caches["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    try:
        server = stack.enter_context(
            ReferenceServer(
                place.session, place.task, place.store, writable=[folder], env={**caches, **_COMPILE_ENV}
            )
        )
        server.set_weights().close()
    except TaskError as error:
        raise ContestantFailedError(kind, error.message) from error
    message = {
        "op": "timed_baseline",
        "baseline": kind,
        "slots": place.shape.slots,
        "seeds": list(place.seeds),
    }
    return start(stack, kind, server.child, message, place.shape.slots, ())


def inductor_folder(place: Field) -> Path:
    """Where compiled baselines are kept. One folder a task: a reference could poison what it can write."""
    root = place.cache_dir or user_cache_dir()
    folder = root / "inductor" / f"{place.session.torch_version}-{place.task.task_id[:16]}"
    with storing(folder, "STITCH_CACHE_DIR"):
        (folder / "triton").mkdir(parents=True, exist_ok=True)
        os.utime(folder)  # the time of last use
    evict_unused(folder.parent.iterdir(), SIZE_CAP_BYTES, keep=folder, spared_s=_SPARED_S)
    return folder
