"""Whether the GPU still answers: asked of a fresh process, since whoever asks may hang."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from stitch_tools.errors import EnvironmentMissingError
from stitch_tools.run.child_environment import target_environment
from stitch_tools.worker import cuda_driver

_LIMIT_S = 60.0
_END_S = 2.0
_MOST_CHARS = 300
FIX = (
    "end what still uses it (nvidia-smi shows the processes), reset it with `nvidia-smi --gpu-reset` or "
    "reboot, then start again; meanwhile --target cpu works"
)


class GpuCanary:
    """What this controller knows of its GPU. One that failed is out of use until the controller ends."""

    def __init__(self, command: Sequence[str] | None = None, *, limit_s: float = _LIMIT_S) -> None:
        """Nothing is asked yet.

        Args:
            command: a process that ends with 0 where the GPU works; None is our own (worker/cuda_driver.py).
            limit_s: a process that takes longer hangs.
        """
        self._command = list(command or (sys.executable, "-I", "-S", cuda_driver.__file__, "canary"))
        self._limit_s = limit_s
        self._is_sound = False
        self._reason = ""
        self._asked: _Asked | None = None
        """The question that `begin` asked, not answered yet."""

    def begin(self) -> None:
        """Ask now, where `require` would ask: the answer comes while the caller does something else."""
        if not self._reason and not self._is_sound and self._asked is None:
            self._asked = _Asked(self._command)

    def close(self) -> None:
        """End the question that nobody waited for."""
        asked, self._asked = self._asked, None
        if asked is not None:
            asked.answer(0.0)

    def require(self) -> None:
        """Go on where the GPU works; asked at the first use and after every doubt.

        Raises:
            EnvironmentMissingError: it does not, and is out of use.
        """
        if not self._reason and not self._is_sound:
            self._reason = self._ask()
            self._is_sound = not self._reason
        if self._reason:
            raise EnvironmentMissingError(
                f"the GPU is out of use: a small computation in a fresh process {self._reason}", hint=FIX
            )

    def doubt(self) -> None:
        """Have the next `require` ask again: a program crashed or hung on the GPU."""
        self._is_sound = False
        self.close()  # what was asked before says nothing of now

    def _ask(self) -> str:
        """What is wrong, as the end of a sentence; "" where the GPU works."""
        asked, self._asked = self._asked or _Asked(self._command), None
        return asked.answer(self._limit_s)


class _Asked:
    """One question: a process that runs."""

    def __init__(self, command: Sequence[str]) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the answer)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env=target_environment(1),
            start_new_session=True,
        )

    def answer(self, limit_s: float) -> str:
        """What is wrong, as the end of a sentence, after at most `limit_s` seconds from now; else ""."""
        with self._output:
            try:
                code = self._process.wait(limit_s)
            except subprocess.TimeoutExpired:
                _end(self._process)
                return f"did not end within {limit_s:g} s"
            self._output.seek(0)
            words = " ".join(self._output.read(4096).decode("utf-8", "replace").split())
        return f"failed: {words[-_MOST_CHARS:] or f'it ended with code {code}'}" if code else ""


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    # In the kernel, where a driver hangs, nothing can end it: then it is left to itself.
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_END_S)
