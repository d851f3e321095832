"""A worker whose jobs say what it does: the judge's stand-in, since a real judge is hard to bring down.

The job's only file holds `ok`, `crash`, `crash once PATH`, `hang`, `fork PATH`, `pauseN` or `garbage`.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from stitch_mcp.rl.reward.facts import RewardEvidence
from stitch_mcp.rl.reward.judge_workers import JudgeOrder
from stitch_mcp.rl.reward.judging import JudgedSubmission


def answer(order: JudgeOrder) -> str:
    words = next(iter(order.submission.files.values())).split()
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
    judged = JudgedSubmission(evidence=RewardEvidence(unusable=words[0]), task_id="t")
    return json.dumps({"answer": judged.model_dump(mode="json")})


def main() -> None:
    sys.stdin.readline()
    for line in sys.stdin:
        print(answer(JudgeOrder.model_validate_json(line)), flush=True)


main()
