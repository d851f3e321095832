"""Times that a program bent are told from times that it earned."""

import os
import threading

import pytest

from stitch_tools.timing.audit import cpu_seconds, moved_work, too_many_cpus

CALL_S, GO_S, CALLS = 20e-6, 60e-6, 300


def history(put_off: float, blocks: int = 20) -> list[tuple[int, float]]:
    """Gos of blocks of which a share of k calls is put off from the long part into the next short one."""
    rows: list[tuple[int, float]] = []
    for block in range(blocks):
        carried = put_off if block else 0.0
        rows += [(0, GO_S), (1, GO_S + CALL_S)]
        rows += [
            (CALLS, GO_S + CALLS * CALL_S * (1.0 + carried)),
            (2 * CALLS, GO_S + CALLS * CALL_S * (2.0 - put_off)),
        ]
    return rows


def test_a_slope_that_agrees_with_the_whole_time_is_no_doubt() -> None:
    assert moved_work(history(0.0)) is None


@pytest.mark.parametrize("put_off", [0.2, 0.3, 0.45])
def test_work_that_is_put_off_until_the_next_block_shows_in_the_whole_time(put_off: float) -> None:
    doubt = moved_work(history(put_off))
    assert doubt is not None
    assert "their whole time 20" in doubt


def test_a_few_blocks_prove_nothing() -> None:
    assert moved_work(history(0.45, blocks=4)) is None
    assert moved_work([]) is None


def test_more_cpu_time_than_the_threads_can_use_is_a_doubt() -> None:
    gos = [(100, 1.0), (200, 2.0)]
    assert too_many_cpus(3.3, gos, threads=1) is None
    assert too_many_cpus(6.1, gos, threads=2) is None
    assert too_many_cpus(5.9, gos, threads=1) == "the program kept 2.0 CPUs busy, where one thread is allowed"


def test_the_cpu_time_of_all_threads_is_counted() -> None:
    before = cpu_seconds(os.getpid())
    assert before is not None

    def work() -> None:
        turns = 0
        while (after := cpu_seconds(os.getpid())) is not None and after < before + 0.1 and turns < 10**6:
            turns += 1

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    after = cpu_seconds(os.getpid())
    assert after is not None
    assert after >= before + 0.1
    assert cpu_seconds(2**22 + 1) is None
