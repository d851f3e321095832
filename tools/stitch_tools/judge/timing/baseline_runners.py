"""Baselines of PyTorch in reference servers of their own, and where torch.compile keeps its work."""

import os
import re
from contextlib import ExitStack, nullcontext
from pathlib import Path

from stitch_tools.errors import TaskError
from stitch_tools.judge.timing.runners import Runner, start_runner, wait_until_ready
from stitch_tools.judge.timing.setup import Setup
from stitch_tools.judge.timing.timed_process import RunnerFailedError
from stitch_tools.protocol.timing_messages import TimeBaseline
from stitch_tools.run.reference_server import ReferenceServer
from stitch_tools.storage.store import storing
from stitch_tools.storage.user_cache import SIZE_CAP_BYTES, evict_unused, user_cache_dir

# Inductor's pool of compile processes would run beside the clock. Its precompiled headers lie in the
# temporary folder, which is each child's own: every bench would make them anew, even with all else cached.
_COMPILE_ENV = {
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",
}
COMPILE_LIMIT_S = 180.0
"""Seconds of preparation beyond which a baseline counts as not measured."""
_COMPILED_WITHOUT_TUNING = ("compile:default", "compile:reduce-overhead")
_SPARED_S = 3600.0  # compiled baselines this fresh may belong to a bench that runs now


def start_baseline(stack: ExitStack, setup: Setup, kind: str, limit_s: float = COMPILE_LIMIT_S) -> Runner:
    """One baseline, built and ready after at most `limit_s` seconds, in a reference server of its own.

    Raises:
        RunnerFailedError: its reference cannot be loaded, or it is not built within the limit.
    """
    folder = inductor_folder(setup.cache_dir, setup.session.torch_version, setup.task.task_id)
    caches = {"TRITON_CACHE_DIR": str(folder / "triton")}
    # Inductor does not quote its compile commands: where a shell would split the path, nothing is kept.
    if re.fullmatch(r"[\w/.+-]+", str(folder)):
        caches["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    env = {**caches, **_COMPILE_ENV}
    try:
        server = stack.enter_context(
            ReferenceServer(setup.session, setup.task, setup.store, writable=[folder], env=env)
        )
        server.construct()
    except TaskError as error:
        raise RunnerFailedError(kind, error.message) from error
    # Inductor and Triton compile on the CPU, for minutes; only the modes that tune run kernels all along.
    compiles = kind in _COMPILED_WITHOUT_TUNING
    with nullcontext() if compiles else setup.sharing_device():
        request = TimeBaseline(kind, setup.shape.slots, list(setup.seeds))
        runner = start_runner(stack, kind, server.child, request)
        runner.draws = len(setup.seeds) if setup.renews_inputs else 0
        wait_until_ready(runner, limit_s)
    return runner


def inductor_folder(cache_dir: Path | None, torch_version: str, task_id: str) -> Path:
    """Where compiled baselines are kept. One folder a task: a reference could poison what it can write."""
    root = cache_dir or user_cache_dir()
    folder = root / "inductor" / f"{torch_version}-{task_id[:16]}"
    with storing(folder, "STITCH_CACHE_DIR"):
        (folder / "triton").mkdir(parents=True, exist_ok=True)
        os.utime(folder)  # the time of last use
    evict_unused(folder.parent.iterdir(), SIZE_CAP_BYTES, keep=folder, spared_s=_SPARED_S)
    return folder
