"""The one supervisor of jobs: starts them, reports their state, and ends them.

Everything that it knows lies on disk, so that any number of servers over one workspace agree. A job's lock is
taken here and handed to its process, which holds it as long as it lives: of two that start the same request
at once one wins, and the other attaches itself to the winner's job.
"""

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from stitch_mcp.jobs.folder import JobFolder, job_ids
from stitch_mcp.jobs.prewarm import Likeness, PrewarmedProcess, start_prewarmed
from stitch_mcp.jobs.state import JobRequest, JobState
from stitch_mcp.jobs.tree import end_tree, process_start
from stitch_tools.confine import linux
from stitch_tools.errors import LockedError, StoreError
from stitch_tools.machine.devices import usable_cpus
from stitch_tools.secrets import without_secrets
from stitch_tools.storage.locks import FileLock

_END_S = 10.0
_PROBE_S = 0.3
"""How long a look at a lock by somebody else may hold it."""
# -P: a file of the folder that we stand in must not stand in for a module of ours.
_COMMAND = [sys.executable, "-P", "-m", "stitch_mcp.jobs.child"]


class Supervisor:
    """The jobs of one workspace. Methods block for milliseconds (`cancel`: up to 2 s)."""

    def __init__(self, stitch_folder: Path, *, keep: bool = False, prepare: bool = False) -> None:
        """Nothing is touched.

        Args:
            stitch_folder: the workspace's `.stitch`.
            keep: let jobs outlive this process; else they are ended with it, even by SIGKILL.
            prepare: while a job works, start processes that wait for the next one.
        """
        self.jobs = stitch_folder / "jobs"
        self.keep = keep
        # On one core it would take its time from the job.
        self._prepare = prepare and linux.is_supported() and usable_cpus() > 1
        self._spares: dict[bool, PrewarmedProcess] = {}
        """By whether a session is part of what is ready."""
        self._timed: set[str] = set()
        self._lifelines: dict[str, int] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        # Calls come from many threads: what one starts another must not take for what has ended.
        self._guard = threading.Lock()

    def start(
        self, request: JobRequest, *, rerun: bool = False, warm: bool = False, timed: bool = False
    ) -> JobState:
        """The state of the request's job: a finished or running one, else one that was started now.

        Args:
            request: the work. Equal requests are one job.
            rerun: do finished work again.
            warm: the work needs a session.
            timed: nothing may be prepared beside it.

        Raises:
            StoreError: the workspace cannot be written.
        """
        self.reap()
        folder = JobFolder(self.jobs, request.job_id)
        # Before the lock: whoever finds the job later must find what it is about.
        folder.write_request(request)
        before = self._stored_state(request.job_id)
        if before is not None and (
            before.status == "working" or (before.status == "completed" and not rerun)
        ):
            return before
        # Two servers may start the same job at the same moment: the lock decides which of them does.
        lock = folder.lock()
        if not self._taken(folder, lock):
            return self.view(request.job_id)
        try:
            attempt = before.attempt + 1 if before else 1
            # A run that an unfinished attempt opened is resumed; work done again opens its own.
            run_id = before.run_id if before and before.status != "completed" else None
            likeness = self._likeness(request, warm=warm)
            state = self._launch(folder, request, attempt, run_id, lock, likeness)
        finally:
            lock.release()
        if timed:
            self._timed.add(request.job_id)
        self._get_ready(request)
        return state

    def _likeness(self, request: JobRequest, *, warm: bool) -> Likeness:
        # A missing source makes no job: its failure would only appear after the start.
        return Likeness(request.settings, request.environment, without_secrets(os.environ), warm)

    def _get_ready(self, request: JobRequest) -> None:
        """Start processes that wait for jobs like this one, unless there are any or something is timed."""
        with self._guard:
            self._drop_ended_spares()
            if not self._prepare or self._timed & self._processes.keys():
                return
            for warm in (True, False):
                if warm not in self._spares and (
                    prewarmed := start_prewarmed(_COMMAND, self._likeness(request, warm=warm))
                ):
                    self._spares[warm] = prewarmed
                    self._reap_at_end(prewarmed.process)

    def _drop_ended_spares(self) -> None:
        for warm, prewarmed in list(self._spares.items()):
            if prewarmed.process.poll() is not None:
                prewarmed.close()  # It has waited long enough.
                del self._spares[warm]

    def _reap_at_end(self, process: "subprocess.Popen[bytes]") -> None:
        """Take note of the process' end at once, not only at the next call."""

        def wait() -> None:
            process.wait()
            self.reap()

        threading.Thread(target=wait, daemon=True).start()

    def _taken(self, folder: JobFolder, lock: FileLock) -> bool:
        """Whether the lock could be taken; not where somebody else works under it.

        Whose last state is written already gives it back within moments: that is waited for.
        """
        deadline = time.monotonic() + _END_S
        while time.monotonic() < deadline:
            try:
                lock.acquire(wait_s=_PROBE_S)
            except LockedError:
                state = self._stored_state(folder.job_id)
                if state is not None and state.status == "working":
                    return False
            else:
                return True
        return False

    def _launch(
        self,
        folder: JobFolder,
        request: JobRequest,
        attempt: int,
        run_id: str | None,
        lock: FileLock,
        likeness: Likeness,
    ) -> JobState:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        state = JobState(
            job_id=request.job_id,
            tool=request.tool,
            status="working",
            attempt=attempt,
            started_at=now,
            progress="starting",
            run_id=request.subject.run_id or run_id,
        )
        folder.write_state(state)
        # The child holds the reading end; the kernel closes ours when this server ends, however it ends.
        reading, writing = os.pipe()
        if (earlier := self._processes.get(folder.job_id)) is not None:
            # It gave its lock back, so it is at its very end.
            earlier.wait(_END_S)
            self.reap()
        try:
            process = self._begin(folder, lock.fileno(), reading, likeness)
        except OSError as error:
            os.close(writing)
            raise StoreError(f"no job can be started: {error}", hint="free memory or processes") from error
        finally:
            os.close(reading)
        with self._guard:
            self._processes[folder.job_id] = process
            if not self.keep:
                # The child reads nothing here: it sees the end of file when we are gone, however that is.
                self._lifelines[folder.job_id] = writing
        self._reap_at_end(process)
        if self.keep:
            os.close(writing)
        return state

    def _begin(
        self, folder: JobFolder, lock: int, lifeline: int, likeness: Likeness
    ) -> "subprocess.Popen[bytes]":
        """The job's process: the one that waits, where it is what would be started now, else a new one."""
        with contextlib.ExitStack() as stack:
            log = stack.enter_context(folder.open_log())
            stdin = stack.enter_context(Path(os.devnull).open("rb")).fileno() if self.keep else lifeline
            if (prewarmed := self._take_prewarmed(likeness.warm)) is not None:
                if prewarmed.likeness != likeness:
                    prewarmed.close()
                elif prewarmed.give(folder.path, lock, stdin, log.fileno()):
                    return prewarmed.process
            return subprocess.Popen(
                [*_COMMAND, str(folder.path), str(lock)],
                env=without_secrets(os.environ),
                stdin=stdin,
                stdout=log,
                stderr=log,
                pass_fds=(lock,),
                # A session of its own: Ctrl-C in the server's terminal goes to the server alone, which ends
                # jobs in order.
                start_new_session=True,
            )

    def _take_prewarmed(self, warm: bool) -> PrewarmedProcess | None:
        with self._guard:
            return self._spares.pop(warm, None)

    def find(self, job_id: str) -> JobState | None:
        """The state of a job, None where it never was started."""
        folder = JobFolder(self.jobs, job_id)
        return folder.state() if (folder.path / "state.json").exists() else None

    def _stored_state(self, job_id: str) -> JobState | None:
        """The state of a job that is to be started, None where there is none or it is damaged."""
        try:
            return self.find(job_id)
        except StoreError:
            return None  # A new attempt writes it anew.

    def view(self, job_id: str) -> JobState:
        """The state of a job.

        Raises:
            UsageError: there is none of that id.
            StoreError: it cannot be read.
        """
        self.reap()
        return JobFolder(self.jobs, job_id).state()

    def wait(self, job_id: str, wait_s: float) -> JobState:
        """The state of a job when it ends, or after `wait_s` seconds."""
        deadline = time.monotonic() + wait_s
        while True:
            state = self.view(job_id)
            if state.done or time.monotonic() >= deadline:
                return state
            time.sleep(min(0.05, max(0.0, deadline - time.monotonic())))

    def cancel(self, job_id: str) -> JobState:
        """The state of a job after it was ended with all its processes; one that is over stays as it is.

        Raises:
            UsageError: there is none of that id.
            StoreError: it runs on another host, or its state cannot be written.
        """
        folder = JobFolder(self.jobs, job_id)
        state = folder.state()
        if state.done:
            return state
        # First the process, then the state: a live process would write its own state over ours.
        self._end(folder)
        lock = folder.lock()
        try:
            lock.acquire(wait_s=_PROBE_S)
        except LockedError as error:
            raise StoreError(
                f"job {job_id} does not end: {error.message}", hint="end that process"
            ) from error
        try:
            state = folder.state_as_written()
            # It may have reached its end, or recorded the interruption in its run, while this call waited.
            if state.status != "completed":
                now = datetime.now(UTC).isoformat(timespec="milliseconds")
                state = state.model_copy(
                    update={"status": "cancelled", "message": "cancelled", "hint": "", "ended_at": now}
                )
                folder.write_state(state)
            return state
        finally:
            lock.release()

    def started_here(self, job_id: str) -> bool:
        """Whether this server began what works on the job now."""
        return job_id in self._processes

    def _end(self, folder: JobFolder) -> None:
        process = self._processes.get(folder.job_id)
        if process is not None and process.poll() is None:
            end_tree(process.pid, process_start(process.pid))
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)
            return
        # Bounded: a process that never writes its number was killed before it ran.
        deadline = time.monotonic() + _PROBE_S
        # Another server's job: its process writes its number as soon as it runs.
        while (state := folder.state_as_written()).pid is None and time.monotonic() < deadline:
            time.sleep(0.02)
        if state.pid is not None:
            end_tree(state.pid, state.pid_started)

    def reap(self) -> None:
        """Take note of processes that ended, so that none stays a zombie."""
        with self._guard:
            self._drop_ended_spares()
            for job_id, process in list(self._processes.items()):
                if process.poll() is not None:
                    del self._processes[job_id]
                    self._timed.discard(job_id)
                    if (lifeline := self._lifelines.pop(job_id, None)) is not None:
                        os.close(lifeline)

    def close(self) -> None:
        """End the jobs of this process, unless they are kept; they can be resumed."""
        spares = [self._take_prewarmed(warm) for warm in (True, False)]
        ends: list[Callable[[], None]] = [prewarmed.close for prewarmed in spares if prewarmed is not None]
        if not self.keep:
            # Over HTTP jobs outlive the server: a client can connect again.
            ends += [partial(self._end, JobFolder(self.jobs, job_id)) for job_id in list(self._processes)]
        # All at once: each may take its seconds.
        with ThreadPoolExecutor(max_workers=len(ends) or 1) as pool:
            for end in [pool.submit(end) for end in ends]:
                end.result()
        self.reap()

    def recent(self, limit: int = 20) -> list[str]:
        """Ids of the jobs of this workspace, the newest first."""
        return job_ids(self.jobs)[:limit]
