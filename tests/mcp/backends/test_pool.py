"""The pool: who gets which order, what is tried again, who gets no more, and who may wait."""

import threading
from collections.abc import Callable
from concurrent.futures import wait as wait_for
from pathlib import Path

import pytest

from stitch_mcp.backends.pool import (
    Attempted,
    Note,
    PoolBusyError,
    WorkerFailureError,
    WorkerHungError,
    WorkerLostError,
    WorkerPool,
)
from stitch_mcp.backends.pool_status import LivePool, StatusFile, live_pools, status_folder
from stitch_tools.errors import EnvironmentMissingError

WAIT_S = 20.0


class FakeWorker:
    """Does what a function says."""

    def __init__(self, name: str, do: Callable[[str], str]) -> None:
        self.name = name
        self.do = do
        self.orders: list[str] = []
        self.is_closed = False

    def warm_up(self) -> None:
        self.do("warm up")

    def run(self, order: str, note: Note) -> str:
        self.orders.append(order)
        note(f"does {order}")
        return self.do(order)

    def close(self) -> None:
        self.is_closed = True


def echo(order: str) -> str:
    return order


def fail(error: Exception) -> Callable[[str], str]:
    def do(order: str) -> str:
        raise error

    return do


def results(pool: WorkerPool[str, str], *orders: str) -> list[Attempted[str]]:
    futures = [pool.submit(order) for order in orders]
    return [future.result(WAIT_S) for future in futures]


def test_orders_are_done_side_by_side() -> None:
    together = threading.Barrier(2, timeout=WAIT_S)

    def meet(order: str) -> str:
        together.wait()
        return order

    with WorkerPool([FakeWorker("a", meet), FakeWorker("b", meet)]) as pool:
        done = results(pool, "1", "2", "3", "4")
    assert [(row.outcome, row.answer) for row in done] == [("done", number) for number in "1234"]


def test_an_order_that_one_worker_loses_goes_to_another_one() -> None:
    wedged, fine = FakeWorker("wedged", fail(WorkerLostError("no device"))), FakeWorker("fine", echo)
    with WorkerPool([wedged, fine]) as pool:
        # Whoever takes them first: each is done in the end.
        done = results(pool, *"123456789")
        status = pool.status()
    assert {row.outcome for row in done} == {"done"}
    assert len(wedged.orders) == len(set(wedged.orders)) <= 3
    assert [row.failed for row in status.workers] == [0, 0]


def test_a_worker_that_loses_three_orders_in_a_row_gets_no_more_and_the_rest_is_told() -> None:
    with WorkerPool([FakeWorker("wedged", fail(WorkerLostError("no device")))]) as pool:
        futures = [pool.submit(order) for order in "1234"]
        assert futures[0].result(WAIT_S).outcome == "lost"
        with pytest.raises(EnvironmentMissingError, match="lost 3 orders"):
            futures[3].result(WAIT_S)
        with pytest.raises(EnvironmentMissingError, match="lost 3 orders"):
            pool.submit("5")
        assert pool.status().workers[0].state == "quarantined"


def test_an_order_that_hangs_twice_is_cancelled_and_says_nothing_against_its_worker() -> None:
    worker = FakeWorker("a", fail(WorkerHungError("no answer within 1 s")))
    with WorkerPool([worker]) as pool:
        done = results(pool, *"12345")
        assert pool.status().workers[0].state == "idle"
    assert {(row.outcome, row.tries, row.message) for row in done} == {
        ("cancelled", 2, "no answer within 1 s")
    }


@pytest.mark.parametrize(("code", "tries"), [("task", 1), ("usage", 1), ("locked", 3)])
def test_a_fault_of_the_order_is_not_tried_again_and_one_of_the_machine_is(code: str, tries: int) -> None:
    with WorkerPool([FakeWorker("a", fail(WorkerFailureError(code, "it cannot", "do this")))]) as pool:
        (row,) = results(pool, "1")
    assert (row.outcome, row.tries, row.message) == ("lost", tries, f"{code}: it cannot")
    assert row.failure is not None
    assert row.failure.hint == "do this"


def test_a_fault_of_our_own_code_is_raised_where_the_result_is_asked_for() -> None:
    with WorkerPool([FakeWorker("a", fail(KeyError("x")))]) as pool, pytest.raises(KeyError):
        results(pool, "1")


def test_what_may_not_wait_is_refused_while_all_are_at_work() -> None:
    begun, may_go_on = threading.Event(), threading.Event()

    def wait(order: str) -> str:
        begun.set()
        assert may_go_on.wait(WAIT_S)
        return order

    with WorkerPool([FakeWorker("a", wait)]) as pool:
        first = pool.submit("1", may_wait=False)
        with pytest.raises(PoolBusyError, match="all judges are at work"):
            pool.submit("2", may_wait=False)
        second = pool.submit("3")
        assert begun.wait(WAIT_S)
        assert pool.status().waiting == 1
        may_go_on.set()
        assert [first.result(WAIT_S).answer, second.result(WAIT_S).answer] == ["1", "3"]
        assert pool.submit("4", may_wait=False).result(WAIT_S).answer == "4"


def test_a_pool_that_is_closed_cancels_what_waits_and_takes_no_more() -> None:
    begun, ended = threading.Event(), threading.Event()

    def wait(order: str) -> str:
        begun.set()
        assert ended.wait(WAIT_S)
        raise WorkerLostError("it was ended")

    worker = FakeWorker("a", wait)
    worker.close = ended.set
    at_end: list[str] = []
    pool = WorkerPool([worker], at_end=lambda: at_end.append("end"))
    first, second = pool.submit("1"), pool.submit("2")
    assert begun.wait(WAIT_S)
    pool.close()
    assert wait_for([first, second], WAIT_S).not_done == set()
    assert (first.result(WAIT_S).outcome, second.cancelled(), at_end) == ("lost", True, ["end"])
    with pytest.raises(EnvironmentMissingError, match="closed"):
        pool.submit("3")


def test_a_worker_that_cannot_start_is_named() -> None:
    bad = FakeWorker("gpu 1", fail(WorkerFailureError("environment", "no torch")))
    told = pytest.raises(EnvironmentMissingError, match="gpu 1: no torch")
    with WorkerPool([FakeWorker("gpu 0", echo), bad]) as pool, told:
        pool.warm_up()


def test_others_read_what_the_workers_do_until_the_pool_ends(tmp_path: Path) -> None:
    looked: list[LivePool] = []

    def look(order: str) -> str:
        looked.extend(live_pools(tmp_path))
        return order

    with WorkerPool([FakeWorker("cpu", look)], status_file=StatusFile(tmp_path, "rl serve")) as pool:
        results(pool, "1")
        pool.warm_up()
        (after,) = live_pools(tmp_path)
    (during,) = looked[:1]
    assert (during.purpose, during.status.busy) == ("rl serve", 1)
    assert during.status.workers[0].doing == "works"
    assert (after.status.workers[0].state, after.status.workers[0].done) == ("idle", 1)
    assert live_pools(tmp_path) == []


def test_the_file_of_a_process_that_was_killed_is_removed(tmp_path: Path) -> None:
    with WorkerPool([FakeWorker("cpu", echo)], status_file=StatusFile(tmp_path, "rl train")) as pool:
        pool.warm_up()
        (live,) = live_pools(tmp_path)
    path = status_folder(tmp_path) / "1-2.json"
    path.write_bytes(live.model_copy(update={"started": "another"}).canonical_json())
    assert live_pools(tmp_path) == []
    assert not path.exists()
