"""Processes that wait for the next job: who takes them, who does not, and that they end with their server."""

import os
import socket
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from stitch_mcp.jobs.prewarm import WAIT, WAIT_WARM, Likeness, await_job, start_prewarmed
from stitch_mcp.jobs.state import JobRequest
from stitch_mcp.jobs.supervisor import Supervisor
from stitch_mcp.server.request_inputs import job_request
from stitch_mcp.server.server_context import ServerContext, open_server_context
from stitch_mcp.server.tool_list import find_tool
from stitch_tools.confine.process_tree import descendants
from stitch_tools.machine.devices import usable_cpus
from tests.mcp.server.conftest import SLOW_TO_COMPILE, until
from tests.mcp.server.test_job_supervisor import BROKEN, command, compiling, request_of, running

pytestmark = pytest.mark.skipif(usable_cpus() < 2, reason="on one core nothing is prepared")


@pytest.fixture
def ready(workspace: Path) -> Generator[ServerContext]:
    """The room of a server that prepares."""
    found = open_server_context({"workspace": workspace}, prepare_jobs=True)
    yield found
    found.supervisor.close()
    assert waiting() == waiting(kind=WAIT) == []


def waiting(above: int | None = None, kind: str = WAIT_WARM) -> list[int]:
    """Numbers of the processes that wait for a job below `above`, by default below this one."""
    found = descendants(above or os.getpid())
    found = [pid for pid in found if kind in command(pid).split("\0") and running(pid)]
    # What one of them has just forked goes by its name until it runs a program of its own.
    return [pid for pid in found if not any(pid in descendants(other) for other in found)]


def done(supervisor: Supervisor, request: JobRequest, *, warm: bool = True) -> int | None:
    """The number of the process that finished the request."""
    state = supervisor.wait(supervisor.start(request, warm=warm).job_id, 60)
    assert state.status == "completed", state.message
    return state.pid


def test_the_next_job_gets_the_process_that_waits_and_its_session(ready: ServerContext) -> None:
    assert waiting() == []
    done(ready.supervisor, request_of(ready, BROKEN))
    (first,) = waiting()
    tool = find_tool("analyze_reference")
    request = job_request(ready, tool, tool.request.model_validate({"reference": "model.py"}))
    assert done(ready.supervisor, request) == first
    log = (ready.supervisor.jobs / request.job_id / "log.txt").read_text(encoding="utf-8")
    assert "observing the reference" in log
    assert "starting" not in log, "the session was there already"
    until(lambda: not running(first))
    (second,) = waiting()
    assert second != first


def test_a_job_takes_what_waits_only_where_it_suits_and_goes_on_without_it(
    ready: ServerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    done(ready.supervisor, request_of(ready, BROKEN))
    (prewarmed,), (without,) = waiting(), waiting(kind=WAIT)
    assert not any("bootstrap" in command(pid) for pid in descendants(without))
    assert done(ready.supervisor, request_of(ready, BROKEN + " "), warm=False) == without
    assert waiting() == [prewarmed], "a job without a session leaves it for one that needs it"

    monkeypatch.setenv("SOMETHING_ELSE", "1")
    assert done(ready.supervisor, request_of(ready, BROKEN + "  ")) != prewarmed
    (killed,) = waiting()
    assert killed != prewarmed

    os.kill(killed, 9)
    # Its first thread may be gone before the one that could still be sent a job.
    until(lambda: not Path(f"/proc/{killed}").exists())
    assert done(ready.supervisor, request_of(ready, BROKEN + "   ")) not in (killed, None)


def test_nothing_is_prepared_beside_a_job_that_is_timed(ready: ServerContext) -> None:
    job_id = ready.supervisor.start(request_of(ready, SLOW_TO_COMPILE), timed=True).job_id
    done(ready.supervisor, request_of(ready, BROKEN))
    assert waiting() == waiting(kind=WAIT) == []
    ready.supervisor.cancel(job_id)
    done(ready.supervisor, request_of(ready, BROKEN + " "))
    assert len(waiting()) == 1


def test_a_cancelled_job_takes_the_session_of_its_process_along(ready: ServerContext) -> None:
    done(ready.supervisor, request_of(ready, BROKEN))
    job_id = ready.supervisor.start(request_of(ready, SLOW_TO_COMPILE), warm=True).job_id
    tree = compiling(ready.supervisor, job_id)
    assert any("bootstrap" in command(pid) for pid in tree), "the session's first process"
    assert ready.supervisor.cancel(job_id).status == "cancelled"
    assert not [pid for pid in tree if running(pid)]


HOST = """
import sys
from stitch_mcp.server.server_context import open_server_context
from tests.mcp.server.test_job_supervisor import BROKEN, request_of
room = open_server_context({"workspace": sys.argv[1]}, prepare_jobs=True)
room.supervisor.start(request_of(room, BROKEN))
print("begun", flush=True)
sys.stdin.read()
"""


def test_the_process_that_waits_ends_with_a_server_that_is_killed(workspace: Path) -> None:
    command_line = [sys.executable, "-c", HOST, str(workspace)]
    with subprocess.Popen(command_line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        # What was started a moment ago may not show its arguments yet.
        until(lambda: len(waiting(process.pid)) == len(waiting(process.pid, WAIT)) == 1)
        (prewarmed,), (without,) = waiting(process.pid), waiting(process.pid, WAIT)
        below = [prewarmed, *descendants(prewarmed), without]
        process.kill()
    until(lambda: not [pid for pid in below if running(pid)])


def test_a_process_that_gets_ready_for_long_ends_with_its_server_too(workspace: Path, tmp_path: Path) -> None:
    never_ready = tmp_path / "python"
    never_ready.write_text("#!/bin/sh\nexec sleep 1000\n", encoding="utf-8")
    never_ready.chmod(0o755)
    settings = {"workspace": str(workspace), "python": str(never_ready)}
    likeness = Likeness(settings, "", dict(os.environ), warm=True)
    prewarmed = start_prewarmed([sys.executable, "-m", "stitch_mcp.jobs.child"], likeness)
    assert prewarmed is not None
    pid = prewarmed.process.pid
    until(lambda: any("1000" in command(child).split("\0") for child in descendants(pid)))
    below = [pid, *descendants(pid)]
    prewarmed._channel.close()  # as the kernel does for a server that is killed
    until(lambda: prewarmed.process.poll() is not None and not [one for one in below if running(one)])


def test_who_waited_long_enough_takes_no_job() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        assert await_job(theirs, idle_s=0.0) is None
        with pytest.raises(BrokenPipeError):
            ours.send(b"/jobs/0123")


def test_a_job_that_was_sent_before_the_waiting_ended_is_still_taken(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, (tmp_path / "file").open("wb") as file:
        socket.send_fds(ours, [b"/jobs/0123"], [file.fileno()] * 3)
        theirs.shutdown(socket.SHUT_RD)  # as when nothing was there a moment before
        given = await_job(theirs, idle_s=0.0)
        assert given is not None
        assert given.folder == Path("/jobs/0123")
        for fd in given.fds:
            os.close(fd)
        with pytest.raises(BrokenPipeError):
            socket.send_fds(ours, [b"/jobs/4567"], [file.fileno()] * 3)
