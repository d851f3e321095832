"""Eight judges at once, each a process of its own, end all, and no two time on this machine at one moment."""

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

JUDGE = Path(__file__).parents[4] / "scripts" / "benchmark_kernels" / "one_judge.py"
JUDGES = 8


@pytest.mark.exhaustive
def test_eight_judges_share_a_machine_and_never_a_timing_slot(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "STITCH_LOCK_DIR": str(tmp_path),
        "STITCH_CACHE_DIR": str(tmp_path / "cache"),
    }
    running = [
        subprocess.Popen(
            [sys.executable, str(JUDGE), str(tmp_path), str(number)],
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        for number in range(JUDGES)
    ]
    found = [json.loads(process.communicate(timeout=900)[0]) for process in running]
    assert [row["status"] for row in found] == ["accepted"] * JUDGES
    slots = sorted(tuple(slot) for row in found for slot in row["slots"])
    assert len(slots) >= JUDGES
    for (begin, end), (following, _) in pairwise(slots):
        assert begin < end < following
