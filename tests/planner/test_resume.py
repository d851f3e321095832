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
from tests.sampling import sampled

REFERENCE = Path(__file__).parents[1] / "tools" / "programs" / "linear_relu.py"

# Solves until some events were written, then dies the hardest way. Any outcome of its timing will do.
SOLVE = """
import os, signal, sys
from pathlib import Path
from stitch_planner.loop import solve
from stitch_planner.opening import SolveRequest

folder, reference, resume = Path(sys.argv[1]), sys.argv[2] or None, sys.argv[3] or None
left = int(sys.argv[4])
request = SolveRequest(
    workspace=folder,
    reference=reference,
    resume=resume,
    quick=True,
    bench_budget_s=1e-6,
    compile_baselines=False,
)

def kill(event):
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)

solve(request, on_event=kill)
"""


def run_until_killed(folder: Path, reference: str, resume: str, events: int) -> int:
    command = [sys.executable, "-c", SOLVE, str(folder), reference, resume, str(events)]
    # Nor does it wait for another timing.
    environment = {**os.environ, "STITCH_LOCK_DIR": str(folder)}
    return subprocess.run(command, timeout=300, check=False, env=environment).returncode


# A resumed run's first event says that it goes on: four events are three steps. After one event alone, a run
# is killed twice a step.
@pytest.mark.slow
# All steps but the refinement of the plan, which only a model makes.
@pytest.mark.parametrize(("events", "resumed"), sampled([(4, 3), (1, len(FOUND) - 1)], 2))
def test_a_run_killed_after_every_so_many_events_ends_without_repeating_a_step(
    events: int, resumed: int, tmp_path: Path
) -> None:
    workspace = Workspace(tmp_path)
    assert run_until_killed(tmp_path, str(REFERENCE), "", events) == -signal.SIGKILL
    (run_id,) = workspace.run_ids()
    log = workspace.runs_folder / run_id / "events.jsonl"
    seen = log.read_bytes()
    for _ in range(2 * len(KINDS)):
        code = run_until_killed(tmp_path, "", run_id, events)
        now = log.read_bytes()
        assert now.startswith(seen), "an event that was durable has changed"
        added = now.count(b"\n") - seen.count(b"\n")
        seen = now
        if code == 0:
            break
        assert code == -signal.SIGKILL
        assert added == events, "each attempt says that it goes on, or does the open steps"
    kinds = Counter(json.loads(line)["kind"] for line in seen.splitlines())
    ended_early = {"run_stopped", "run_resumed"}
    steps = Counter({kind: count for kind, count in kinds.items() if kind not in ended_early})
    by_models = {"model_asked", "model_answered", "plan_refined", "memory_recalled", "review_finished"}
    assert steps == Counter(KINDS.keys() - ended_early - by_models), "every step happened, and none twice"
    assert kinds["run_resumed"] == resumed, "each kill shows in the log"
    assert kinds["run_stopped"] == 0
    for line in seen.splitlines():
        jsonschema.validate(json.loads(line), event_schema())
    (certificate,) = (workspace.runs_folder / run_id).glob("*.stitch.zip")
    archive = read_certificate(certificate)
    assert archive.certificate.check.status == "accepted"
    assert archive.certificate.bench is not None
    assert archive.certificate.bench.outcome == "inconclusive", "its time was over after one round"
    jsonschema.validate(archive.certificate.model_dump(mode="json"), certificate_schema())
