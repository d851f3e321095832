"""Baselines of PyTorch in reference servers of their own, and where torch.compile keeps its work."""

import os
import re
from collections.abc import Sequence
from contextlib import ExitStack, suppress
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
_COMPILED = "compile:"
_SPARED_S = 3600.0  # compiled baselines this fresh may belong to a bench that runs now


class CompiledEarly:
    """Baselines for a CPU that torch.compile works on while something else is done.

    On a GPU nothing is begun: there compiling takes times.
    """

    def __init__(self, stack: ExitStack, setup: Setup, kinds: Sequence[str]) -> None:
        """Begin with all that are compiled; what nobody took is ended with the stack."""
        self._begun: dict[str, Runner] = {}
        for kind in kinds:
            if kind.startswith(_COMPILED) and not setup.cuda:
                with suppress(RunnerFailedError):  # whoever starts it tries again, and reports it
                    self._begun[kind] = _begin_baseline(stack, setup, kind)
                    stack.callback(self._drop, kind)

    def take(self, kind: str) -> Runner | None:
        """What was begun of this baseline."""
        return self._begun.pop(kind, None)

    def _drop(self, kind: str) -> None:
        """End what was begun in vain, without waiting for it."""
        runner = self.take(kind)
        if runner is not None and runner.child is not None:
            runner.child.kill()


def start_baseline(
    stack: ExitStack,
    setup: Setup,
    kind: str,
    *,
    compile_limit_s: float,
    compiled: CompiledEarly | None = None,
) -> Runner:
    """One baseline, built and ready, in a reference server of its own. `compiled` may have begun with it.

    Raises:
        RunnerFailedError: it cannot be built here, or not within the limit.
    """
    begun = compiled.take(kind) if compiled is not None else None
    runner = begun or _begin_baseline(stack, setup, kind)
    runner.draws = len(setup.seeds) if setup.renews_inputs else 0
    wait_until_ready(runner, compile_limit_s)
    return runner


def _begin_baseline(stack: ExitStack, setup: Setup, kind: str) -> Runner:
    """One baseline that is being built.

    Raises:
        RunnerFailedError: its reference cannot be loaded.
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
        server.set_weights().close()
    except TaskError as error:
        raise RunnerFailedError(kind, error.message) from error
    request = TimeBaseline(kind, setup.shape.slots, list(setup.seeds))
    return start_runner(stack, kind, server.child, request)


def inductor_folder(cache_dir: Path | None, torch_version: str, task_id: str) -> Path:
    """Where compiled baselines are kept. One folder a task: a reference could poison what it can write."""
    root = cache_dir or user_cache_dir()
    folder = root / "inductor" / f"{torch_version}-{task_id[:16]}"
    with storing(folder, "STITCH_CACHE_DIR"):
        (folder / "triton").mkdir(parents=True, exist_ok=True)
        os.utime(folder)  # the time of last use
    evict_unused(folder.parent.iterdir(), SIZE_CAP_BYTES, keep=folder, spared_s=_SPARED_S)
    return folder
