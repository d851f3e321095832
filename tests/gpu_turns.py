"""Turns on the GPU between the processes of a test run, and between runs: many at once, or one alone."""

import os
import sys
import tempfile
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path


def turns_folder() -> Path:
    """Where this user's test runs find each other."""
    folder = Path(tempfile.gettempdir()) / f"stitch-gpu-tests-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


@contextmanager
def gpu_turn(folder: Path, *, alone: bool) -> Generator[None]:
    """Waits until the GPU may be used, beside others or `alone`, and has it while the block runs."""
    import fcntl

    with ExitStack() as turn:
        # Who waits to be alone holds the gate: those who come later would else keep the GPU busy for ever.
        with _locked(folder / "gate", fcntl.LOCK_EX):
            turn.enter_context(_locked(folder / "turn", fcntl.LOCK_EX if alone else fcntl.LOCK_SH))
        yield


@contextmanager
def _locked(path: Path, how: int) -> Generator[None]:
    import fcntl

    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, how)
        yield
    finally:
        os.close(handle)


def give_memory_back() -> None:
    """Returns what torch keeps for later tests of this process to those of others."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
