"""Times that a program bent are told from times that it earned."""

import os
import subprocess
import sys
import threading
from dataclasses import replace

import pytest

from stitch_tools.confine.process_tree import kill_descendants
from stitch_tools.judge.timing.probes.extra_cpus import cpu_seconds, extra_cpus
from stitch_tools.judge.timing.probes.moved_work import moved_work
from stitch_tools.judge.timing.program_runners import programs_among
from stitch_tools.judge.timing.rounds import Rounds, Series
from stitch_tools.judge.timing.visits import Visit
from stitch_tools.judge.timing.wording import describe_disturbance
from stitch_tools.machine.interference import snapshot

CALL_S = 20e-6


def visits(put_off: float, blocks: int = 20, *, clean: bool = True) -> list[Visit]:
    """Visits of one block each: a share of the k calls between its batches is put off to the next one."""
    slope_s, whole_s = CALL_S * (1.0 - 2.0 * put_off), CALL_S
    return [Visit((slope_s,), (whole_s,), (1.0,), (1.0,), whole_s, clean=clean) for _ in range(blocks)]


def test_a_slope_that_agrees_with_the_whole_time_is_no_doubt() -> None:
    assert moved_work(visits(0.0)) is None
    assert moved_work(visits(0.09)) is None


@pytest.mark.parametrize("put_off", [0.11, 0.2, 0.45])
def test_work_that_is_put_off_until_the_next_block_shows_in_the_whole_time(put_off: float) -> None:
    doubt = moved_work(visits(put_off))
    assert doubt is not None
    assert (doubt.rule, doubt.observed) == ("work_moved_between_batches", pytest.approx(CALL_S * 1e6))


def test_visits_that_were_disturbed_neither_make_nor_hide_the_doubt() -> None:
    assert moved_work(visits(0.45, clean=False)) is None
    assert moved_work([*visits(0.0, 60, clean=False), *visits(0.2)]) is not None


@pytest.mark.parametrize(
    ("dirty", "others"), [("program", False), ("program:cudagraph", False), ("eager", True)]
)
def test_only_disturbance_beside_a_baseline_is_that_of_others(dirty: str, others: bool) -> None:
    names = ("program", "program:cudagraph", "eager", "compile:default")
    series = {name: Series(visits(0.0, clean=name != dirty)) for name in names}
    rounds = Rounds(series, snapshot(), snapshot())
    assert rounds.disturbance(without=programs_among(rounds.series)).is_large == others


@pytest.mark.parametrize(("dirty", "disturbed"), [(2, False), (3, True)])
def test_more_than_a_tenth_of_all_visits_left_out_is_a_disturbed_timing(dirty: int, disturbed: bool) -> None:
    eager = [*visits(0.0, 10 - dirty), *visits(0.0, dirty, clean=False)]
    rounds = Rounds({"program": Series(visits(0.0, 10)), "eager": Series(eager)}, snapshot(), snapshot())
    assert rounds.disturbance().is_large == disturbed
    assert ("3 of 20 visits were left out" in describe_disturbance(rounds)) == disturbed


def test_blocks_that_others_made_be_repeated_are_no_moved_work() -> None:
    repeated = [replace(visit, total_s=3.0 * CALL_S, repeats=4) for visit in visits(0.0, 60)]
    doubt = moved_work(repeated)
    assert doubt is not None
    assert (doubt.rule, doubt.observed) == ("work_moved_out_of_blocks", pytest.approx(3e6 * CALL_S))
    assert moved_work(repeated, visits(0.0)) == doubt  # only the program's own blocks were
    assert moved_work(repeated, repeated) is None
    moving = [replace(visit, total_s=3.0 * CALL_S) for visit in visits(0.0)]
    assert moved_work([*repeated, *moving], repeated) == doubt


def test_a_few_blocks_prove_nothing() -> None:
    assert moved_work(visits(0.45, blocks=4)) is None
    assert moved_work([]) is None


def test_more_cpu_time_than_the_threads_can_use_is_a_doubt() -> None:
    history = [(100, 1.0), (200, 2.0)]
    assert extra_cpus(3.3, history, threads=1) is None
    assert extra_cpus(6.1, history, threads=2) is None
    doubt = extra_cpus(6.0, history, threads=1)
    assert doubt is not None
    assert (doubt.rule, doubt.observed, doubt.expected) == ("extra_cpus", pytest.approx(2.0), 1.0)


_FAMILY = """
import os, sys, time

def work(seconds):
    while time.process_time() < seconds:
        pass

if not os.fork():  # the program, below its init
    work(0.1)
    if not os.fork():  # still runs when it is looked at
        work(0.2)
        print(os.getppid(), flush=True)
        time.sleep(60.0)
    child = os.fork()  # ends before
    if not child:
        work(0.3)
        os._exit(0)
    os.waitpid(child, 0)
    print(os.getpid(), flush=True)
time.sleep(60.0)
"""


def test_the_cpu_time_of_all_processes_of_a_program_is_counted() -> None:
    with subprocess.Popen([sys.executable, "-c", _FAMILY], stdout=subprocess.PIPE, text=True) as init:
        assert init.stdout is not None
        try:
            said = {int(init.stdout.readline()) for _ in range(2)}
            (program,) = said
            seconds = cpu_seconds(program)
        finally:
            kill_descendants(init.pid)
            init.kill()
    assert seconds is not None
    assert 0.55 < seconds < 2.0


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
