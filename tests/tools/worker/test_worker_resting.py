"""Threads of OpenMP sleep between loops where processes take turns, and spin where one is timed."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import os, sys, time
import torch
from stitch_tools.worker.sleeping_threads import rest_between_loops

torch.set_num_threads(max(2, len(os.sched_getaffinity(0))))
values = torch.randn(1 << 20)

def spun():
    # Processor time of this process while its main thread sleeps.
    seconds = 0.0
    for _ in range(10):
        values.relu()
        start = time.process_time()
        time.sleep(0.02)
        seconds += time.process_time() - start
    return seconds

before = spun()
print(rest_between_loops(), before, spun(), torch.equal(values.relu(), values.clamp(min=0)))
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor: nothing spins")
def test_threads_stop_spinning_and_still_compute() -> None:
    child = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    rests, before, after, right = child.stdout.split()
    assert (rests, right) == ("True", "True")
    assert float(after) < float(before) / 3
