"""A run is killed after every one of its events, and goes on each time."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import jsonschema
import pytest

from stitch_planner.runs.run import Workspace
from stitch_planner.runs.run_events import KINDS
from stitch_planner.runs.schemas import certificate_schema, event_schema
from stitch_planner.runs.state import FOUND
from stitch_tools.storage.certificate import read_certificate

REFERENCE = """
import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(64, 32)

    def forward(self, x):
        return torch.relu(self.linear(x))


def get_inputs():
    return [torch.randn(128, 64)]


def get_init_inputs():
    return []
"""

# Solves until one event was written, then dies the hardest way.
SOLVE = """
import os, signal, sys
from pathlib import Path
from stitch_planner.loop import solve
from stitch_planner.opening import SolveRequest

folder, reference, resume = Path(sys.argv[1]), sys.argv[2] or None, sys.argv[3] or None
request = SolveRequest(workspace=folder, reference=reference, resume=resume, quick=True)
kill = lambda event: os.kill(os.getpid(), signal.SIGKILL)
solve(request, on_event=kill)
"""


def run_until_killed(folder: Path, reference: str, resume: str) -> int:
    command = [sys.executable, "-c", SOLVE, str(folder), reference, resume]
    # Any outcome of the timing will do: it waits for nobody else's.
    environment = {**os.environ, "STITCH_LOCK_DIR": str(folder)}
    return subprocess.run(command, timeout=300, check=False, env=environment).returncode


@pytest.mark.slow
def test_a_run_killed_after_every_event_ends_without_repeating_a_step(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(REFERENCE, encoding="utf-8")
    workspace = Workspace(tmp_path)
    assert run_until_killed(tmp_path, str(tmp_path / "model.py"), "") == -signal.SIGKILL
    (run_id,) = workspace.run_ids()
    log = workspace.runs_folder / run_id / "events.jsonl"
    seen = log.read_bytes()
    for _ in range(2 * len(KINDS)):
        code = run_until_killed(tmp_path, "", run_id)
        now = log.read_bytes()
        assert now.startswith(seen), "an event that was durable has changed"
        if code == 0:
            break
        assert code == -signal.SIGKILL
        assert now.count(b"\n") == seen.count(b"\n") + 1, (
            "each attempt says that it goes on, or does the open step"
        )
        seen = now
    kinds = Counter(json.loads(line)["kind"] for line in seen.splitlines())
    ended_early = {"run_stopped", "run_resumed"}
    steps = Counter({kind: count for kind, count in kinds.items() if kind not in ended_early})
    assert steps == Counter(KINDS.keys() - ended_early), "every step happened, and none twice"
    assert kinds["run_resumed"] == len(FOUND), "each kill shows in the log"
    assert kinds["run_stopped"] == 0
    for line in seen.splitlines():
        jsonschema.validate(json.loads(line), event_schema())
    (certificate,) = (workspace.runs_folder / run_id).glob("*.stitch.zip")
    archive = read_certificate(certificate)
    assert archive.certificate.check.status == "accepted"
    jsonschema.validate(archive.certificate.model_dump(mode="json"), certificate_schema())
