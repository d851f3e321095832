"""A pool of workers with one queue: who gets which order, what is tried again, and who gets no more.

A worker does one order at a time and blocks until it is done. What a worker is (a process of this machine, an
actor of a cluster) decides nothing here.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import fmean
from typing import Generic, Literal, Protocol, Self, TypeVar

from stitch_mcp.backends.pool_status import PoolStatus, StatusFile, WorkerStatus
from stitch_tools.errors import EnvironmentMissingError, StitchError, StoreError

HANGS, LOSSES, STRIKES = 2, 3, 3
"""An order that hung so often is cancelled; one that was lost so often is given up; a worker that lost so
many orders in a row gets no more, since its device or node is wedged."""
_FIRST_GUESS_S = 20.0
_REMEMBERED = 32
_STATUS_S = 0.5
"""At most so often what a worker notes is written for others; what it ends or begins is written at once."""
_CALLERS_FAULT = ("usage", "task")
OrderT = TypeVar("OrderT")
OrderC = TypeVar("OrderC", contravariant=True)
AnswerT = TypeVar("AnswerT")
AnswerC = TypeVar("AnswerC", covariant=True)
Note = Callable[[str], None]
"""Takes what a worker does now, in words."""


class WorkerLostError(Exception):
    """The worker ended, or lost its device, without an answer: that says nothing about the order."""


class WorkerHungError(Exception):
    """The worker gave no answer within the limit of an order, and was ended."""


class WorkerFailureError(StitchError):
    """What the worker told instead of an answer: a fault of ours, of its machine, or of the order itself."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.code = code


class PoolBusyError(StitchError):
    """All workers are at work."""

    code = "busy"

    def __init__(self, retry_after_s: float) -> None:
        super().__init__("all judges are at work", hint=f"ask again in {retry_after_s:.0f} s")
        self.retry_after_s = retry_after_s


class PoolWorker(Protocol[OrderC, AnswerC]):
    """Does one order after the other."""

    name: str
    """Its device or node, for people."""

    def warm_up(self) -> None:
        """Start, so that the first order need not wait.

        Raises:
            WorkerLostError: it ended.
            WorkerFailureError: something is missing on its machine.
        """
        ...

    def run(self, order: OrderC, note: Note) -> AnswerC:
        """The answer to the order.

        Raises:
            WorkerLostError: it ended without one.
            WorkerHungError: none came in time.
            WorkerFailureError: it told why there is none.
        """
        ...

    def close(self) -> None:
        """End it; from any thread, also while it is at work."""
        ...


@dataclass(frozen=True)
class Attempted(Generic[AnswerT]):
    """What came of an order."""

    outcome: Literal["done", "cancelled", "lost"]
    """`cancelled`: it hung twice. `lost`: a fault of ours, of the machines, or of the order itself."""
    answer: AnswerT | None = None
    """None unless `done`."""
    failure: WorkerFailureError | None = None
    """What the last worker told, where it told something."""
    message: str = ""
    tries: int = 1
    wall_s: float = 0.0


@dataclass(eq=False)
class _Entry(Generic[OrderT, AnswerT]):
    """An order in the queue."""

    order: OrderT
    future: "Future[Attempted[AnswerT]]"
    began_s: float = 0.0
    tries: int = 0
    hangs: int = 0
    lost_on: set[int] = field(default_factory=set[int])


@dataclass
class _Record:
    """What is known of a worker."""

    doing: str = ""
    since_s: float = field(default_factory=time.monotonic)
    done: int = 0
    failed: int = 0
    strikes: int = 0
    is_busy: bool = False

    def does(self, doing: str, *, busy: bool) -> None:
        self.doing, self.is_busy, self.since_s = doing, busy, time.monotonic()

    @property
    def state(self) -> Literal["idle", "busy", "quarantined"]:
        if self.strikes >= STRIKES:
            return "quarantined"
        return "busy" if self.is_busy else "idle"


class WorkerPool(Generic[OrderT, AnswerT]):
    """Workers side by side. A context manager; every method may be called from any thread."""

    def __init__(
        self,
        workers: Sequence[PoolWorker[OrderT, AnswerT]],
        *,
        status_file: StatusFile | None = None,
        at_end: Callable[[], None] = lambda: None,
    ) -> None:
        """A pool whose workers start with their first orders.

        Args:
            workers: at least one.
            status_file: where others can read what the workers do; None: nowhere.
            at_end: called when all workers have ended.
        """
        self._workers = tuple(workers)
        self._status_file = status_file
        self._written_s = 0.0
        self._at_end = at_end
        self._changed = threading.Condition()
        self._waiting: deque[_Entry[OrderT, AnswerT]] = deque()
        self._records = [_Record() for _ in self._workers]
        self._threads: list[threading.Thread] = []
        self._took_s: deque[float] = deque(maxlen=_REMEMBERED)
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def retry_after_s(self) -> float:
        """When a worker should be free again, by how long the last orders took."""
        return max(1.0, (fmean(self._took_s) if self._took_s else _FIRST_GUESS_S) / len(self._workers))

    def submit(self, order: OrderT, *, may_wait: bool = True) -> "Future[Attempted[AnswerT]]":
        """What will come of the order. The future raises what a fault of our own code raised.

        Args:
            order: what is to be done.
            may_wait: in a queue, where all workers are at work.

        Raises:
            PoolBusyError: all are, and it may not wait.
            EnvironmentMissingError: every worker is quarantined, or the pool was closed.
        """
        with self._changed:
            self._refuse_unusable()
            if not may_wait:
                free = sum(record.state == "idle" for record in self._records)
                if free <= len(self._waiting):
                    raise PoolBusyError(self.retry_after_s)
            entry: _Entry[OrderT, AnswerT] = _Entry(order, Future[Attempted[AnswerT]]())
            self._waiting.append(entry)
            self._start_threads()
            self._changed.notify_all()
        return entry.future

    def warm_up(self) -> None:
        """Start every worker now, side by side.

        Raises:
            EnvironmentMissingError: one cannot start; the message says why.
        """
        problems: list[str] = []

        def start(index: int) -> None:
            try:
                self._workers[index].warm_up()
            except (WorkerLostError, WorkerHungError, WorkerFailureError) as error:
                problems.append(f"{self._workers[index].name}: {error}")

        threads = [threading.Thread(target=start, args=(index,)) for index in range(len(self._workers))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if problems:
            hint = "see `stitch-mcp doctor` on its machine"
            raise EnvironmentMissingError(f"a worker does not start: {problems[0]}", hint=hint)
        self._write_status()

    def cancel_waiting(self) -> None:
        """Take back all orders that wait: their futures are cancelled, or lost if they were tried before."""
        with self._changed:
            for entry in self._waiting:
                # One that was tried before cannot be cancelled any more.
                if entry.future.cancel():
                    # Until then `wait` and `as_completed` take it for unfinished.
                    entry.future.set_running_or_notify_cancel()
                else:
                    taken_back = Attempted[AnswerT]("lost", message="it was taken back", tries=entry.tries)
                    entry.future.set_result(taken_back)
            self._waiting.clear()

    def status(self) -> PoolStatus:
        """What the workers do now."""
        now_s = time.monotonic()
        with self._changed:
            rows = tuple(
                WorkerStatus(
                    name=worker.name,
                    state=record.state,
                    doing=record.doing,
                    since_s=round(now_s - record.since_s, 1),
                    done=record.done,
                    failed=record.failed,
                )
                for worker, record in zip(self._workers, self._records, strict=True)
            )
            return PoolStatus(workers=rows, waiting=len(self._waiting))

    def close(self) -> None:
        """End all workers, whatever they do; what waits is cancelled, what is at work is lost."""
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            # At once: a worker that ends meanwhile must not find any left, which would fail as if unusable.
            self.cancel_waiting()
            self._changed.notify_all()
        for worker in self._workers:
            worker.close()
        for thread in self._threads:
            thread.join()
        if self._status_file is not None:
            self._status_file.remove()
        self._at_end()

    def _refuse_unusable(self) -> None:
        if self._is_closed:
            raise EnvironmentMissingError("the pool of workers was closed", hint="open another one")
        if all(record.state == "quarantined" for record in self._records):
            raise EnvironmentMissingError(
                f"all {len(self._workers)} workers lost {STRIKES} orders in a row",
                hint="look at their devices, then start again: finished results are kept",
            )

    def _start_threads(self) -> None:
        if self._threads:
            return
        # They outlive every order: the kernel ends a worker's process with the thread that started it.
        self._threads = [
            threading.Thread(target=self._serve, args=(index,), daemon=True, name=f"worker-{index}")
            for index in range(len(self._workers))
        ]
        for thread in self._threads:
            thread.start()

    def _serve(self, index: int) -> None:
        """Gives a worker orders for as long as it is usable."""
        while (entry := self._next(index)) is not None:
            self._write_status()
            self._try(index, entry)
            self._write_status()

    def _next(self, index: int) -> "_Entry[OrderT, AnswerT] | None":
        """The next order for a worker; None where it gets no more."""
        record = self._records[index]
        with self._changed:
            while not self._is_closed and record.state != "quarantined":
                for entry in self._waiting:
                    if self._may_take(index, entry):
                        self._waiting.remove(entry)
                        if entry.tries == 0 and not entry.future.set_running_or_notify_cancel():
                            break
                        entry.began_s = entry.began_s or time.monotonic()
                        entry.tries += 1
                        record.does("works", busy=True)
                        return entry
                else:
                    self._changed.wait()
        return None

    def _may_take(self, index: int, entry: "_Entry[OrderT, AnswerT]") -> bool:
        """Whether the order was not lost on this worker, or on every other usable one, too."""
        usable = {at for at, record in enumerate(self._records) if record.state != "quarantined"}
        return index not in entry.lost_on or usable <= entry.lost_on

    def _try(self, index: int, entry: "_Entry[OrderT, AnswerT]") -> None:
        record = self._records[index]
        try:
            answer = self._workers[index].run(entry.order, self._note(record))
        except WorkerHungError as error:
            entry.hangs += 1
            self._again(index, entry, Attempted("cancelled", message=str(error)), entry.hangs >= HANGS)
        except WorkerFailureError as error:
            lost = Attempted[AnswerT]("lost", failure=error, message=f"{error.code}: {error.message}")
            if error.code in _CALLERS_FAULT:
                self._settle(index, entry, lost)
            else:
                self._lose(index, entry, lost)
        except WorkerLostError as error:
            self._lose(index, entry, Attempted("lost", message=str(error)))
        except BaseException as error:  # Of our own code: raised again in the thread that waits for it.
            with self._changed:
                record.does("", busy=False)
            entry.future.set_exception(error)
        else:
            with self._changed:
                record.strikes = 0
            self._settle(index, entry, Attempted("done", answer=answer))

    def _lose(self, index: int, entry: "_Entry[OrderT, AnswerT]", attempted: Attempted[AnswerT]) -> None:
        record = self._records[index]
        with self._changed:
            # One order that every try of is lost on this worker says less than three orders.
            record.strikes += index not in entry.lost_on
            entry.lost_on.add(index)
        self._again(index, entry, attempted, entry.tries - entry.hangs >= LOSSES)

    def _again(
        self, index: int, entry: "_Entry[OrderT, AnswerT]", attempted: Attempted[AnswerT], is_last: bool
    ) -> None:
        """Put the order back into the queue, unless it was tried often enough."""
        with self._changed:
            if not is_last and not self._is_closed:
                self._records[index].does("", busy=False)
                self._waiting.appendleft(entry)
                self._changed.notify_all()
                self._fail_all_if_unusable()
                return
        self._settle(index, entry, attempted)

    def _settle(self, index: int, entry: "_Entry[OrderT, AnswerT]", attempted: Attempted[AnswerT]) -> None:
        record, wall_s = self._records[index], time.monotonic() - entry.began_s
        with self._changed:
            record.does("", busy=False)
            if attempted.outcome == "done":
                record.done += 1
                self._took_s.append(wall_s)
            else:
                record.failed += 1
            self._fail_all_if_unusable()
            self._changed.notify_all()
        entry.future.set_result(
            Attempted(
                attempted.outcome,
                attempted.answer,
                attempted.failure,
                attempted.message,
                tries=entry.tries,
                wall_s=wall_s,
            )
        )

    def _fail_all_if_unusable(self) -> None:
        """Nobody is left for what waits, where every worker is quarantined."""
        try:
            self._refuse_unusable()
        except EnvironmentMissingError as error:
            for entry in self._waiting:
                if entry.tries or entry.future.set_running_or_notify_cancel():
                    entry.future.set_exception(error)
            self._waiting.clear()

    def _note(self, record: _Record) -> Note:
        def note(doing: str) -> None:
            with self._changed:
                record.does(doing, busy=True)
            if time.monotonic() - self._written_s > _STATUS_S:
                self._write_status()

        return note

    def _write_status(self) -> None:
        # Whoever looks sees what was written before: no order fails for it.
        if self._status_file is not None:
            self._written_s = time.monotonic()
            with suppress(StoreError):
                self._status_file.write(self.status())
