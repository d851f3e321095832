"""A worker whose jobs say what it does: the judge's stand-in, since a real judge is hard to bring down.

The job's only file holds `ok`, `crash`, `crash once PATH`, `hang`, `fork PATH`, `pauseN` or `garbage`.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

from stitch_mcp.rl.backends.jobs import JobResult, JudgeJob, JudgeSettings
from stitch_mcp.rl.reward.facts import RewardEvidence


def answer(job: JudgeJob, settings: JudgeSettings) -> str:
    words = next(iter(job.files.values())).split()
    if words[0] == "crash" and not (words[1:2] == ["once"] and Path(words[2]).exists()):
        if words[1:]:
            Path(words[2]).touch()
        os.abort()
    if words[0] == "garbage":
        return "accepted, reward 3.0"
    if words[0] in ("hang", "fork"):
        if words[0] == "fork":
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            Path(words[1]).write_text(str(child.pid), encoding="utf-8")
        time.sleep(600)
    if words[0].startswith("pause"):
        time.sleep(0.8)
    evidence = RewardEvidence(unusable=words[0])
    return JobResult(key=job.key(settings), outcome="judged", evidence=evidence).model_dump_json()


def main() -> None:
    settings = JudgeSettings.model_validate_json(sys.argv[1])
    sys.stdin.readline()
    for line in sys.stdin:
        print(answer(JudgeJob.model_validate_json(line), settings), flush=True)


main()
