"""Jobs: one process tree a request, its state on disk, resumable after anything."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from stitch_mcp.jobs.folder import JobFolder
from stitch_mcp.jobs.slots import place
from stitch_mcp.jobs.state import JobRequest, JobState
from stitch_mcp.jobs.supervisor import Supervisor
from stitch_mcp.server.request_inputs import job_request
from stitch_mcp.server.server_context import ServerContext
from stitch_mcp.server.tool_list import find_tool
from stitch_tools.confine.process_tree import descendants
from stitch_tools.errors import UsageError
from tests.mcp.server.conftest import SLOW_TO_COMPILE, until

BROKEN = "int broken = ;"


def request_of(server_context: ServerContext, source: str) -> JobRequest:
    tool = find_tool("compile_program")
    return job_request(server_context, tool, tool.request.model_validate({"files": {"program.cpp": source}}))


def compiling(supervisor: Supervisor, job_id: str) -> list[int]:
    """Numbers of the job's processes, once it has begun to compile."""
    pid = 0

    def begun() -> bool:
        nonlocal pid
        state = supervisor.view(job_id)
        assert not state.done, state.message
        pid = state.pid or 0
        return pid > 0 and any("cc1plus" in command(child) for child in descendants(pid))

    until(begun)
    return [pid, *descendants(pid)]


def command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8", errors="replace")
    return ""


def running(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] != "Z"


def test_equal_requests_are_one_job_until_it_is_asked_for_again(server_context: ServerContext) -> None:
    request = request_of(server_context, BROKEN)
    first = server_context.supervisor.start(request)
    assert first.status == "working"
    done = server_context.supervisor.wait(first.job_id, 60)
    assert done.status == "completed", done.message
    assert done.result is not None
    assert done.result["ok"] is False
    again = server_context.supervisor.start(request_of(server_context, BROKEN))
    assert (again.job_id, again.status, again.attempt) == (first.job_id, "completed", 1)
    assert server_context.supervisor.start(request_of(server_context, BROKEN + " ")).job_id != first.job_id
    anew = server_context.supervisor.start(request, rerun=True)
    assert (anew.job_id, anew.attempt) == (first.job_id, 2)
    assert server_context.supervisor.wait(first.job_id, 60).status == "completed"


def test_a_cancelled_job_leaves_no_process_long_before_its_work_is_done(
    server_context: ServerContext,
) -> None:
    job_id = server_context.supervisor.start(request_of(server_context, SLOW_TO_COMPILE)).job_id
    tree = compiling(server_context.supervisor, job_id)
    begin = time.monotonic()
    state = server_context.supervisor.cancel(job_id)
    assert state.status == "cancelled"
    # Two seconds on a quiet machine; the work would take minutes.
    assert time.monotonic() - begin < 15.0
    assert not [pid for pid in tree if running(pid)]
    assert server_context.supervisor.cancel(job_id).status == "cancelled", "a second time changes nothing"


def test_another_server_sees_and_cancels_the_job(server_context: ServerContext) -> None:
    job_id = server_context.supervisor.start(request_of(server_context, SLOW_TO_COMPILE)).job_id
    tree = compiling(server_context.supervisor, job_id)
    other = Supervisor(server_context.workspace.folder)
    assert other.view(job_id).status == "working"
    assert other.start(request_of(server_context, SLOW_TO_COMPILE)).attempt == 1, "it attaches itself"
    assert other.cancel(job_id).status == "cancelled"
    assert not [pid for pid in tree if running(pid)]
    assert server_context.supervisor.view(job_id).status == "cancelled"


def test_a_killed_job_is_interrupted_and_the_same_request_resumes_it(server_context: ServerContext) -> None:
    request = request_of(server_context, SLOW_TO_COMPILE)
    job_id = server_context.supervisor.start(request).job_id
    tree = compiling(server_context.supervisor, job_id)
    os.kill(tree[0], signal.SIGKILL)
    until(lambda: server_context.supervisor.view(job_id).status == "interrupted")
    state = server_context.supervisor.start(request)
    assert (state.job_id, state.status, state.attempt) == (job_id, "working", 2)
    assert server_context.supervisor.cancel(job_id).status == "cancelled"
    until(lambda: not [pid for pid in tree if running(pid)])


HOST = """
import sys
from stitch_mcp.server.server_context import open_server_context
from tests.mcp.server.conftest import SLOW_TO_COMPILE
from tests.mcp.server.test_job_supervisor import request_of
room = open_server_context({"workspace": sys.argv[1]}, keep_jobs=sys.argv[2] == "keep")
print(room.supervisor.start(request_of(room, SLOW_TO_COMPILE)).job_id, flush=True)
sys.stdin.read()
"""


def host(workspace: Path, keep: str) -> "tuple[subprocess.Popen[str], str]":
    process = subprocess.Popen(
        [sys.executable, "-c", HOST, str(workspace), keep],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


@pytest.mark.parametrize("keep", ["end", "keep"])
def test_jobs_end_with_a_server_that_is_killed_unless_they_are_kept(
    workspace: Path, server_context: ServerContext, keep: str
) -> None:
    process, job_id = host(workspace, keep)
    with process:
        tree = compiling(server_context.supervisor, job_id)
        process.kill()
    if keep == "keep":
        assert server_context.supervisor.view(job_id).status == "working"
        assert server_context.supervisor.cancel(job_id).status == "cancelled"
    else:
        until(lambda: server_context.supervisor.view(job_id).status == "interrupted")
    until(lambda: not [pid for pid in tree if running(pid)])


def test_a_failure_of_ours_is_kept_with_its_hint_and_tried_again(workspace: Path) -> None:
    settings = {"workspace": workspace, "cache_dir": workspace / "model.py" / "no-folder"}
    request = JobRequest(
        tool="compile_program", settings={name: str(value) for name, value in settings.items()}
    )
    with contextlib.closing(Supervisor(workspace / ".stitch")) as supervisor:
        state = supervisor.wait(supervisor.start(request).job_id, 60)
        assert (state.status, state.error_code) == ("failed", "usage")
        assert state.hint
        assert supervisor.start(request).attempt == 2
        # A process that has told its end, and takes its time to leave, is waited for.
        supervisor.wait(request.job_id, 60)
        lock = JobFolder(supervisor.jobs, request.job_id).lock()
        lock.acquire(wait_s=60)
        threading.Timer(1.0, lock.release).start()
        assert supervisor.start(request).attempt == 3


def test_who_finds_no_place_waits_for_one(tmp_path: Path) -> None:
    said: list[str] = []
    entered = threading.Event()

    def second() -> None:
        with place(tmp_path, said.append, 1):
            entered.set()

    thread = threading.Thread(target=second)
    with place(tmp_path, said.append, 1):
        thread.start()
        until(lambda: len(said) == 1)
        assert not entered.is_set()
    thread.join(timeout=20)
    assert entered.is_set()
    assert "waiting" in said[0]


def test_what_is_no_job_id_is_refused(workspace: Path) -> None:
    supervisor = Supervisor(workspace / ".stitch")
    for job_id in ("../../etc", "0" * 15, "", "0" * 16):
        with pytest.raises(UsageError):
            supervisor.view(job_id)


def test_a_state_that_says_working_is_not_believed(server_context: ServerContext) -> None:
    state = server_context.supervisor.start(request_of(server_context, BROKEN))
    server_context.supervisor.wait(state.job_id, 60)
    folder = server_context.supervisor.jobs / state.job_id / "state.json"
    lie = JobState(job_id=state.job_id, tool="compile_program", status="working", pid=os.getpid())
    folder.write_bytes(lie.canonical_json())
    until(lambda: server_context.supervisor.view(state.job_id).status == "interrupted")


@pytest.mark.parametrize("name", ["state.json", "request.json"])
def test_a_job_whose_file_is_damaged_begins_anew_with_the_next_call(
    server_context: ServerContext, name: str
) -> None:
    request = request_of(server_context, BROKEN)
    job_id = server_context.supervisor.start(request).job_id
    assert server_context.supervisor.wait(job_id, 60).status == "completed"
    path = server_context.supervisor.jobs / job_id / name
    path.write_bytes(b'{"job_id": ')
    server_context.supervisor.start(request, rerun=True)
    done = server_context.supervisor.wait(job_id, 60)
    assert done.status == "completed", done.message
    assert JobFolder(server_context.supervisor.jobs, job_id).request() == request


def test_a_log_that_is_a_link_is_replaced_and_nothing_is_written_through_it(
    server_context: ServerContext, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.write_text("mine", encoding="utf-8")
    request = request_of(server_context, BROKEN)
    folder = JobFolder(server_context.supervisor.jobs, request.job_id)
    folder.path.mkdir(parents=True)
    folder.log.symlink_to(outside)
    server_context.supervisor.start(request)
    assert server_context.supervisor.wait(request.job_id, 60).status == "completed"
    assert outside.read_text(encoding="utf-8") == "mine"
    assert folder.log.is_file()
    assert not folder.log.is_symlink()
