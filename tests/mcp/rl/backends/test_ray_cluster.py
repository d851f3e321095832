"""A simulated cluster of three nodes on this machine. Needs the extra `ray`: skipped without it."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")

CODE = """
import json, sys, threading, time
from pathlib import Path
import ray
from ray.cluster_utils import Cluster
from stitch_mcp.rl.backends.jobs import JudgeJob, JudgeSettings
from stitch_mcp.rl.backends.judge_backend import JudgeBackend, head_of
from stitch_mcp.rl.reward.judge_workers import ray_judges

folder, script, reference = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
cluster.wait_for_nodes()
ray.init(address=cluster.address, log_to_driver=False)
settings = JudgeSettings(workspace=str(folder / "judge"))
command = (sys.executable, script)
def job(text):
    return JudgeJob(reference=reference, files={"program.cpp": text})
pool = ray_judges(head_of(settings), address=None, workers=5, limit_s=3.0, command=command)
with JudgeBackend(settings, folder / "results", pool) as backend:
    texts = ["a", "b", "a", "crash", f"crash once {folder / 'mark'}", f"fork {folder / 'pid'}"]
    texts += [f"pause{n}" for n in range(6)]
    killer = threading.Timer(1.0, lambda: cluster.remove_node(nodes[1], allow_graceful=False))
    killer.start()
    results = backend.judge([job(text) for text in texts])
    judged = []
    backend.judge([job("a")], judged.append)
    print(json.dumps({
        "actors": len(pool.status().workers),
        "rows": [[row.outcome, row.evidence.unusable if row.evidence else ""] for row in results],
        "again": len(judged),
    }))
ray.shutdown()
cluster.shutdown()
"""


@needs_ray
@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_node_that_dies_in_mid_work_and_bad_candidates_lose_no_result(tmp_path: Path) -> None:
    import json

    script = Path(__file__).parent / "worker_script.py"
    reference = Path(__file__).parents[4] / "stitch_mcp" / "examples" / "mlp.py"
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(tmp_path), str(script), str(reference)],
        env={**os.environ, "RAY_DEDUP_LOGS": "0"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["actors"] == 3  # five were asked for: the cluster has room for three
    outcomes = [outcome for outcome, _ in told["rows"]]
    assert outcomes[:6] == ["judged", "judged", "judged", "lost", "judged", "cancelled"]
    assert [said for _, said in told["rows"][6:]] == [f"pause{n}" for n in range(6)]
    assert told["again"] == 0


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="ray is installed")
def test_without_ray_the_backend_says_how_to_install_it(tmp_path: Path) -> None:
    from stitch_mcp.rl.backends.jobs import JudgeSettings
    from stitch_mcp.rl.backends.judge_backend import head_of
    from stitch_mcp.rl.reward.judge_workers import ray_judges
    from stitch_tools.errors import EnvironmentMissingError

    with pytest.raises(EnvironmentMissingError, match="Ray is not installed"):
        ray_judges(head_of(JudgeSettings(workspace=str(tmp_path))), address=None, workers=1, limit_s=1.0)
