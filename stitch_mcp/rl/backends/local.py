"""Judges submissions in worker processes of this machine, several side by side.

Builds and checks overlap; the judge's own lock lets one process time a device at a time. A worker that dies
or hangs is ended with all below it, and its job is tried again in a new one.
"""

import contextlib
import json
import os
import queue
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from stitch_mcp.jobs.tree import end_tree, process_start
from stitch_mcp.rl.backends.jobs import JobResult, JudgeJob, JudgeSettings, Seen, distinct
from stitch_mcp.rl.backends.results import ResultStore

WORKER = (sys.executable, "-m", "stitch_mcp.rl.backends.judge_worker")
_TRIES = 2
"""How often a job is given to a worker: once more after a fault."""


class WorkerLostError(Exception):
    """The worker process ended without an answer."""


class WorkerHungError(Exception):
    """The worker process gave no answer in time."""


class JudgeWorker:
    """One worker process, started with its first job and again after a fault."""

    def __init__(
        self, command: Sequence[str], head: str, job_limit_s: float, *, device: str | None = None
    ) -> None:
        """A worker that is not started yet.

        Args:
            command: what is started.
            head: the first line that it receives.
            job_limit_s: seconds that an answer may take.
            device: value of CUDA_VISIBLE_DEVICES; None: as here.
        """
        self._command = tuple(command)
        self._head = head
        self._job_limit_s = job_limit_s
        self._device = device
        self._process: subprocess.Popen[bytes] | None = None
        self._started = ""
        self._is_closed = False
        self._starting = threading.Lock()
        self._asking = threading.Lock()

    def ask(self, job: JudgeJob) -> JobResult:
        """The worker's answer.

        Raises:
            WorkerLostError: the process ended.
            WorkerHungError: no answer came in time; the process was ended.
        """
        with self._asking:
            return self._answer(job)

    def _answer(self, job: JudgeJob) -> JobResult:
        with self._starting:
            process = self._running()
        assert process.stdin is not None
        try:
            process.stdin.write(job.canonical_json() + b"\n")
            process.stdin.flush()
        except OSError as error:
            self.end()
            raise WorkerLostError("the worker ended before it was asked") from error
        try:
            return JobResult.from_json_bytes(self._line(process))
        except (WorkerLostError, WorkerHungError):
            self.end()
            raise
        except ValueError as error:
            self.end()
            raise WorkerLostError("the worker's answer is no result") from error

    def close(self) -> None:
        """End the process, and start none again: a thread may still be asking."""
        with self._starting:
            self._is_closed = True
            process = self._process
        if process is not None:
            end_tree(process.pid, self._started)
        # The pipes are closed once nobody reads them.
        with self._asking:
            self.end()

    def end(self) -> None:
        """End the process with all below it."""
        process, self._process = self._process, None
        if process is None:
            return
        end_tree(process.pid, self._started)
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()
        process.wait()

    def _running(self) -> "subprocess.Popen[bytes]":
        if self._is_closed:
            raise WorkerLostError("the backend was closed")
        if self._process is not None and self._process.poll() is None:
            return self._process
        self.end()
        environment = dict(os.environ)
        if self._device is not None:
            environment["CUDA_VISIBLE_DEVICES"] = self._device
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
        self._started = process_start(self._process.pid)
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # Seen when it is asked.
            self._process.stdin.write(self._head.encode("utf-8") + b"\n")
            self._process.stdin.flush()
        return self._process

    def _line(self, process: "subprocess.Popen[bytes]") -> bytes:
        """The next line of the process, read as it comes, so that its end and its silence are both seen."""
        assert process.stdout is not None
        handle = process.stdout.fileno()
        deadline_s = time.monotonic() + self._job_limit_s
        pieces: list[bytes] = []
        with selectors.DefaultSelector() as selector:
            selector.register(handle, selectors.EVENT_READ)
            while True:
                left_s = deadline_s - time.monotonic()
                if left_s <= 0 or not selector.select(left_s):
                    raise WorkerHungError(f"no answer within {self._job_limit_s:g} s")
                piece = os.read(handle, 1 << 16)
                if not piece:
                    raise WorkerLostError("the worker ended without an answer")
                pieces.append(piece)
                if piece.endswith(b"\n"):
                    return b"".join(pieces)


class LocalBackend:
    """A pool of worker processes. A context manager; `judge` may be called from one thread at a time."""

    def __init__(
        self,
        settings: JudgeSettings,
        results: Path,
        *,
        workers: int = 1,
        build_slots: int | None = None,
        job_limit_s: float = 600.0,
        devices: Sequence[str] = (),
        command: Sequence[str] = WORKER,
    ) -> None:
        """A pool whose workers start with their first jobs.

        Args:
            settings: how submissions are judged.
            results: folder of the results by content hash.
            workers: processes side by side.
            build_slots: compilers at work at once, over all workers; None: one a CPU.
            job_limit_s: seconds after which a job is cancelled. The judge's own limits are shorter: this one
                ends a judge that hangs.
            devices: values of CUDA_VISIBLE_DEVICES that the workers take in turn; () leaves it as it is.
            command: what is started as a worker.
        """
        self.settings = settings
        self.results = ResultStore(results)
        head = json.dumps({"settings": settings.model_dump(), "build_slots": build_slots})
        self._workers = [
            JudgeWorker(command, head, job_limit_s, device=devices[index % len(devices)] if devices else None)
            for index in range(max(1, workers))
        ]

    def __enter__(self) -> "LocalBackend":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def judge(self, jobs: Sequence[JudgeJob], seen: Seen | None = None) -> Sequence[JobResult]:
        """The results of the jobs, in their order; see `Backend`."""
        wanted = distinct(jobs, self.settings)
        known = {key: result for key in wanted if (result := self.results.find(key)) is not None}
        waiting: queue.SimpleQueue[tuple[str, JudgeJob]] = queue.SimpleQueue()
        open_jobs = [(key, job) for key, job in wanted.items() if key not in known]
        for item in open_jobs:
            waiting.put(item)
        done: queue.SimpleQueue[JobResult | BaseException] = queue.SimpleQueue()
        threads = [
            threading.Thread(target=_serve, args=(worker, waiting, done), daemon=True)
            for worker in self._workers[: len(open_jobs)]
        ]
        for thread in threads:
            thread.start()
        for _ in open_jobs:
            result = done.get()
            if isinstance(result, BaseException):
                raise result
            self.results.keep(result)
            known[result.key] = result
            if seen is not None:
                seen(result)
        for thread in threads:
            thread.join()
        return [known[job.key(self.settings)] for job in jobs]

    def close(self) -> None:
        """End all workers."""
        for worker in self._workers:
            worker.close()


def _serve(
    worker: JudgeWorker,
    waiting: "queue.SimpleQueue[tuple[str, JudgeJob]]",
    done: "queue.SimpleQueue[JobResult | BaseException]",
) -> None:
    """Gives a worker jobs until none is left."""
    while True:
        try:
            key, job = waiting.get_nowait()
        except queue.Empty:
            return
        try:
            done.put(judged_with_retries(worker, key, job))
        except BaseException as error:  # Of our own code: raised again in the thread that waits for it.
            done.put(error)
            return


def judged_with_retries(worker: JudgeWorker, key: str, job: JudgeJob) -> JobResult:
    """The worker's result, asked again after a fault that says nothing about the program.

    A wrong, crashing or hanging program is a result of the judge and is not tried again. A job that hangs the
    judge itself twice is `cancelled`.
    """
    begun_s = time.monotonic()
    result = JobResult(key=key, outcome="lost")
    for tries in range(1, _TRIES + 1):
        try:
            result = worker.ask(job).model_copy(update={"tries": tries})
        except WorkerHungError as error:
            result = JobResult(key=key, outcome="cancelled", message=str(error), tries=tries)
        except WorkerLostError as error:
            result = JobResult(key=key, outcome="lost", message=str(error), tries=tries)
        if result.outcome == "judged":
            return result
    return result.model_copy(update={"wall_s": time.monotonic() - begun_s})
