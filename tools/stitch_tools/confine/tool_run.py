"""The tool runner: executes one program that is no Python of ours (a sanitizer's host) inside the sandbox.

It serves in a confined child like a worker. What it starts inherits the confinement, and is a fresh process
image: nothing of torch or of this interpreter is in it.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from stitch_tools.confine import linux
from stitch_tools.protocol.messages_session import CommandEnded, ExecuteCommand
from stitch_tools.protocol.serving import on, serve_ops
from stitch_tools.protocol.wire import Channel

_MAX_TEXT_BYTES = 4 << 20
_SYS_PERSONALITY = 135
_FIXED_ADDRESSES = 0x0040000


def serve(channel: Channel, scratch: str) -> None:
    """Answer the controller until it asks us to exit."""
    # Shadow memory lies at fixed places that a random layout may take (for programs executed from here on).
    with contextlib.suppress(OSError):
        linux.syscall(_SYS_PERSONALITY, _FIXED_ADDRESSES)
    serve_ops(channel, on(ExecuteCommand, lambda message: _execute(message, Path(scratch))))


def _execute(message: ExecuteCommand, scratch: Path) -> CommandEnded:
    for name, text in message.files.items():
        (scratch / name).write_text(text, encoding="utf-8")
    command = [_filled(word, message.fds) for word in message.command]
    start = time.monotonic()
    with (scratch / "stdout").open("wb") as stdout, (scratch / "stderr").open("wb") as stderr:
        process = subprocess.Popen(
            command,
            cwd=scratch,
            env={**os.environ, **message.env},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            pass_fds=message.fds,
            start_new_session=True,
        )
        timed_out = False
        try:
            process.wait(message.limit_s)
        except subprocess.TimeoutExpired:
            timed_out = True
        # Also what it may have left behind; the group is this process' own.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return CommandEnded(
        exit_code=process.returncode,
        timed_out=timed_out,
        wall_s=time.monotonic() - start,
        stdout=_text(scratch / "stdout"),
        stderr=_text(scratch / "stderr"),
        reports=_reports(scratch, message.reports),
    )


def _filled(word: str, fds: Sequence[int]) -> str:
    for position, fd in enumerate(fds):
        if word == f"{{{position}}}":
            return str(fd)
    return word


def _reports(scratch: Path, prefix: str) -> dict[str, str]:
    found = sorted(path for path in scratch.iterdir() if path.name.startswith(prefix) and path.is_file())
    return {path.name: _text(path) for path in found[:16]}


def _text(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_MAX_TEXT_BYTES).decode("utf-8", "replace")
