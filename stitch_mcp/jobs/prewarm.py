"""A process that waits for the next job, with all done that every job begins with. Linux only.

It has imported what jobs import, and a warm one torch in a session of the target interpreter; it has run
nothing. One job takes it, and both end together: nothing of one job reaches another that way.
"""

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stitch_mcp.jobs.tree import end_tree, process_start

WAIT = "--wait"
WAIT_WARM = "--wait-warm"
"""For a job that needs a session."""
IDLE_S = 900.0
"""So long a process waits for a job before it ends by itself."""
_MOST_BYTES = 1 << 16


@dataclass(frozen=True)
class Given:
    """What a waiting process gets: its job."""

    folder: Path
    fds: tuple[int, int, int]
    """The job's held lock, its standard input, and its log."""


@dataclass(frozen=True)
class Likeness:
    """What a job's process must have been started with to be what it would be if it were started now."""

    settings: Mapping[str, Any]
    environment: str
    """Fingerprint of the request."""
    variables: Mapping[str, str]
    """Of the process' own environment."""
    warm: bool
    """Whether the job needs a session."""


@dataclass
class PrewarmedProcess:
    """A process that waits, seen from the server."""

    process: subprocess.Popen[bytes]
    likeness: Likeness
    _channel: socket.socket

    def give(self, folder: Path, lock_fd: int, stdin_fd: int, log_fd: int) -> bool:
        """Whether the process took the job; not where it has ended meanwhile."""
        try:
            socket.send_fds(self._channel, [os.fsencode(folder)], [lock_fd, stdin_fd, log_fd])
        except OSError:
            self.close()
            return False
        # From here on the process belongs to the job, and its input is the pipe to the server.
        self._channel.close()
        return True

    def close(self) -> None:
        """End the process, if it still waits."""
        self._channel.close()
        end_tree(self.process.pid, process_start(self.process.pid))
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(1.0)


def start_prewarmed(command: list[str], likeness: Likeness) -> PrewarmedProcess | None:
    """A process that begins to get ready; None where none can be started.

    Args:
        command: how a job's process is started, without its arguments.
        likeness: of the jobs that it may be given.
    """
    # Messages keep their boundaries, and each end sees when the other is gone.
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        with theirs:
            ours.send(json.dumps(dict(likeness.settings)).encode("utf-8"))
            # The job's descriptors come later, over the socket: a process cannot inherit what is opened after
            # its start.
            process = subprocess.Popen(
                [*command, WAIT_WARM if likeness.warm else WAIT, str(theirs.fileno())],
                env=dict(likeness.variables),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
    except OSError:
        ours.close()
        return None
    return PrewarmedProcess(process, likeness, ours)


def settings_given(channel: socket.socket) -> dict[str, Any]:
    """In the waiting process: the settings of the jobs to come."""
    return json.loads(channel.recv(_MOST_BYTES))


def await_job(channel: socket.socket, idle_s: float = IDLE_S) -> Given | None:
    """In the waiting process: its job; None where the server is gone, or gave none within `idle_s`."""
    ready, _, _ = select.select([channel], [], [], idle_s)
    if not ready:
        # From here on the server cannot send; what it has sent by now is still read.
        channel.shutdown(socket.SHUT_RD)
    folder, fds, _, _ = socket.recv_fds(channel, _MOST_BYTES, 3)
    if not folder or len(fds) != 3:
        return None
    lock, stdin, log = fds
    return Given(Path(os.fsdecode(folder)), (lock, stdin, log))


def become(given: Given) -> int:
    """In the waiting process: the lock's descriptor, once input and output are the job's own."""
    lock, stdin, log = given.fds
    sys.stdout.flush()
    sys.stderr.flush()
    for own, other in ((0, stdin), (1, log), (2, log)):
        os.dup2(other, own)
    os.close(stdin)
    os.close(log)
    return lock
