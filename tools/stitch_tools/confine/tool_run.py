"""The tool runner: executes one program that is no Python of ours (a sanitizer's host) inside the sandbox.

It serves in a confined child like a worker. What it starts inherits the confinement, and is a fresh process
image: nothing of torch or of this interpreter is in it.
"""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from stitch_tools.confine import linux
from stitch_tools.protocol.serving import Reply, Request, serve_ops
from stitch_tools.protocol.wire import Channel

_MAX_TEXT_BYTES = 4 << 20
_SYS_PERSONALITY = 135
_FIXED_ADDRESSES = 0x0040000


def serve(channel: Channel, scratch: str) -> None:
    """Answer the controller until it asks us to exit."""
    # Shadow memory lies at fixed places that a random layout may take (for programs executed from here on).
    with contextlib.suppress(OSError):
        linux.syscall(_SYS_PERSONALITY, _FIXED_ADDRESSES)
    serve_ops(channel, {"execute": lambda request: _execute(request, Path(scratch))})


def _execute(request: Request, scratch: Path) -> Reply:
    """Run `command` in the scratch folder with the request's descriptors, for at most `limit_s` seconds.

    `files` are written before; `{0}`, `{1}`, ... in the command stand for the descriptors' numbers. The
    answer holds the exit code, what was printed, and the text of all files whose names begin with `reports`.
    """
    message = request.message
    for name, text in message["files"].items():
        (scratch / name).write_text(text, encoding="utf-8")
    command = [_filled(word, request.fds) for word in message["command"]]
    start = time.monotonic()
    with (scratch / "stdout").open("wb") as stdout, (scratch / "stderr").open("wb") as stderr:
        process = subprocess.Popen(
            command,
            cwd=scratch,
            env={**os.environ, **message["env"]},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            pass_fds=request.fds,
            start_new_session=True,
        )
        timed_out = False
        try:
            process.wait(message["limit_s"])
        except subprocess.TimeoutExpired:
            timed_out = True
        # Also what it may have left behind; the group is this process' own.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return Reply(
        {
            "exit_code": process.returncode,
            "timed_out": timed_out,
            "wall_s": time.monotonic() - start,
            "stdout": _text(scratch / "stdout"),
            "stderr": _text(scratch / "stderr"),
            "reports": _reports(scratch, message["reports"]),
        }
    )


def _filled(word: str, fds: tuple[int, ...]) -> str:
    for position, fd in enumerate(fds):
        if word == f"{{{position}}}":
            return str(fd)
    return word


def _reports(scratch: Path, prefix: str) -> dict[str, Any]:
    found = sorted(path for path in scratch.iterdir() if path.name.startswith(prefix) and path.is_file())
    return {path.name: _text(path) for path in found[:16]}


def _text(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_MAX_TEXT_BYTES).decode("utf-8", "replace")
