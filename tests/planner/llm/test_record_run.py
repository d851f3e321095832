"""`scripts/record-run`: runs go as far as there are answers, and leave prompts, reports and certificates."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stitch_planner.agents.prompting import prompt_source
from stitch_tools.storage.certificate import read_certificate
from tests.planner.llm.test_solve_with_model import REFERENCE

ROOT = Path(__file__).parents[3]


def record(folder: Path) -> str:
    """What the script says of the folder's reference, with the shortest timing."""
    command = [sys.executable, str(ROOT / "scripts/record-run"), "sum.py", "--rounds", "1"]
    command += ["--out", "recorded", "--workspace", "work", "--time-limit-s", "120"]
    quick = {"STITCH_BENCH_BUDGET_S": "0.001", "STITCH_COMPILE_BASELINES": "false"}
    path = os.pathsep.join(str(ROOT / name) for name in ("", "tools", "planner", "rag_index"))
    environment = {**os.environ, **quick, "PYTHONPATH": path}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.exhaustive
def test_a_run_waits_for_its_answer_and_ends_with_it(tmp_path: Path) -> None:
    (tmp_path / "sum.py").write_text(REFERENCE)
    call = tmp_path / "recorded/sum/calls/000"
    assert f"waits for an answer to {Path('recorded/sum/calls/000/prompt.md')}" in record(tmp_path)
    asked = (call / "prompt.md").read_text()
    assert "torch.relu(x + y)" in asked
    assert not (tmp_path / "recorded/sum/certificate.stitch.zip").exists()
    (call / "answer.md").write_text(f"One loop.\n\n```cpp program.cpp\n{prompt_source('example.cpp')}\n```\n")
    told = record(tmp_path)
    assert "sum 001 manual: accepted" in told
    assert "sum: exit 0" in told
    assert (call / "prompt.md").read_text() == asked
    assert read_certificate(tmp_path / "recorded/sum/certificate.stitch.zip").folder("program")
    assert "<svg" in (tmp_path / "recorded/sum/report.html").read_text()
