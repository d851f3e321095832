"""What runs inside a job's process: `python -m stitch_mcp.jobs.child FOLDER LOCK`.

It holds the inherited lock, does the request's work and writes the state. It ends when it is asked (SIGTERM)
or when its standard input ends, which is the far end of a pipe of the server that started it. With
`--wait FD` or `--wait-warm FD` in place of folder and lock it gets ready first, and waits for both
(`stitch_mcp.jobs.prewarm`).
"""

import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from stitch_mcp.jobs.folder import JobFolder
from stitch_mcp.jobs.prewarm import WAIT, WAIT_WARM, await_job, become, settings_given
from stitch_mcp.jobs.slots import place
from stitch_mcp.jobs.state import JobState
from stitch_mcp.jobs.tree import process_start
from stitch_tools.confine import linux
from stitch_tools.confine.process_tree import kill_descendants
from stitch_tools.errors import InterruptedRunError, StitchError

if TYPE_CHECKING:
    from stitch_tools.run.session import TargetSession

_IMPORTED = (
    "stitch_mcp.certificates",
    "stitch_mcp.server.docs",
    "stitch_mcp.server.steps",
    "stitch_mcp.server.job_work",
    "stitch_planner.certify",
    "stitch_planner.join",
    "stitch_tools.compile.build",
)
"""What jobs import."""
_IMPORTED_WARM = ("stitch_mcp.api", "stitch_planner.loop", "stitch_tools.judge", "stitch_tools.judge.timing")
"""What those that need a session import beside it."""
_GRACE_S = 1.0
_SAY_EVERY_S = 0.5


@dataclass
class Reporter:
    """Writes the job's state, progress no more often than every half second."""

    folder: JobFolder
    state: JobState
    _said_at: float = field(default=float("-inf"), init=False)

    def say(self, sentence: str) -> None:
        """Take a progress sentence."""
        print(f"{datetime.now(UTC):%H:%M:%S} {sentence}", flush=True)
        update = {"progress": sentence[:300], "sentences": self.state.sentences + 1}
        self.state = self.state.model_copy(update=update)
        # Every write syncs a file; a chatty step must not spend its time on that.
        if time.monotonic() - self._said_at >= _SAY_EVERY_S:
            self._said_at = time.monotonic()
            self.folder.write_state(self.state)

    def joined(self, run_id: str) -> None:
        """Name the run that the job works in."""
        self.state = self.state.model_copy(update={"run_id": run_id})
        self.folder.write_state(self.state)

    def end(self, **update: object) -> None:
        """Write the last state."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        self.state = self.state.model_copy(update={**update, "ended_at": now})
        self.folder.write_state(self.state)


def run(folder: JobFolder, warm: "TargetSession | None" = None) -> None:
    """Do the job's work and write how it ended. The process' outermost frame: nothing is raised.

    Args:
        folder: the job's.
        warm: a session that was started before the job came, for whatever needs one.
    """
    pid = os.getpid()
    # The start time goes with the number, since the system gives numbers to later processes again.
    state = folder.state_as_written().model_copy(update={"pid": pid, "pid_started": process_start(pid)})
    reporter = Reporter(folder, state)
    folder.write_state(state)
    try:
        from stitch_mcp.server.job_work import do_work

        with place(folder.path.parent, reporter.say):
            result = do_work(folder.request(), state.run_id, reporter.say, reporter.joined, warm)
        reporter.end(status="completed", result=result, message="")
    except (KeyboardInterrupt, InterruptedRunError):
        reporter.end(status="interrupted", message=f"ended while {reporter.state.progress or 'starting'}")
    except StitchError as error:
        reporter.end(
            status="failed",
            error_code=error.code,
            message=error.message[:2000],
            hint=_hint(error, state.tool)[:1000],
            remedies=error.remedies,
        )
    except Exception as error:  # The process' outermost frame: whatever it was becomes the job's state.
        traceback.print_exc()
        message = f"{type(error).__name__}: {error}"[:1000]
        hint = f"this is a fault of stitch-mcp; {folder.log} has the traceback"
        reporter.end(status="failed", error_code="internal", message=message, hint=hint)


def _hint(error: StitchError, tool: str) -> str:
    """The error's hint in the words of the tool's callers."""
    from stitch_mcp.server.job_answers import as_argument
    from stitch_mcp.server.tool_list import find_tool

    return error.hint_for(as_argument(find_tool(tool)))


def _end_on_request() -> None:
    """Turn SIGTERM into KeyboardInterrupt, and end by force where that is not heard within a second."""

    def force() -> None:
        time.sleep(_GRACE_S)
        kill_descendants(os.getpid())
        os._exit(130)

    def handle(number: int, frame: FrameType | None) -> None:
        # One signal is enough: a second one would interrupt the cleaning up.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        threading.Thread(target=force, daemon=True).start()
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, handle)


def _end_with_server() -> None:
    """Ask this process to end when its standard input does; with the null device it never ends."""
    if os.path.samestat(os.fstat(0), Path(os.devnull).stat()):
        return

    def watch() -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def _session(settings: dict[str, Any]) -> "TargetSession | None":
    """A session of the target interpreter; None where none can be had, which a job finds out by itself."""
    from stitch_mcp.config import configure
    from stitch_mcp.workbench import open_workbench

    try:
        session = open_workbench(configure(settings)).cold_session()
        session.start()
    except StitchError:
        return None
    return session


def _wait_and_run(fd: int, *, needs_session: bool) -> None:
    """Get ready, wait for a job, and run it; nothing where none comes."""
    with socket.socket(fileno=fd) as channel:
        settings = settings_given(channel)
        job = _watched(channel)
        for name in (*_IMPORTED, *(_IMPORTED_WARM if needs_session else ())):
            import_module(name)
        warm = _session(settings) if needs_session else None
        try:
            _run_held(job.get(), warm)
        finally:
            if warm is not None:
                warm.close()


def _watched(channel: socket.socket) -> "queue.SimpleQueue[Path]":
    """Where the job's folder will be put. Where none comes this process is ended, however far it got."""
    paths: queue.SimpleQueue[Path] = queue.SimpleQueue()

    def watch() -> None:
        given = await_job(channel)
        if given is None:
            os.kill(os.getpid(), signal.SIGTERM)
            return
        _hold(become(given))
        paths.put(given.folder)

    # To get ready takes seconds, in which the server may go.
    threading.Thread(target=watch, daemon=True).start()
    return paths


def _hold(lock: int) -> None:
    """Keep the job's lock to this process alone, and end with the server."""
    # A process below this one that inherited the lock would keep the job alive after its end.
    os.set_inheritable(lock, False)
    _end_with_server()


def _run_held(path: Path, warm: "TargetSession | None" = None) -> None:
    """Run the job of the folder at `path`, whose lock this process alone holds."""
    run(JobFolder(path.parent, path.name), warm)


def main() -> None:
    """Run the job that the arguments name, or wait for one."""
    if linux.is_supported():
        # Descendants whose parent ends come here, so that one look below this process finds all of them.
        linux.become_subreaper()
    _end_on_request()
    try:
        if sys.argv[1] in (WAIT, WAIT_WARM):
            _wait_and_run(int(sys.argv[2]), needs_session=sys.argv[1] == WAIT_WARM)
        else:
            _hold(int(sys.argv[2]))
            _run_held(Path(sys.argv[1]))
    except KeyboardInterrupt:
        pass  # Asked to end before there was anything to do, or after all was done.
    finally:
        kill_descendants(os.getpid())


if __name__ == "__main__":
    main()
