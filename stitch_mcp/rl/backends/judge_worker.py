"""The process of one judge: a job a line on stdin, its result a line on stdout, until stdin ends.

Started by `LocalBackend` as `python -m stitch_mcp.rl.backends.judge_worker`, with its settings as first line.
Results leave through a descriptor of their own: whatever else writes to stdout goes to stderr.
"""

import json
import os
import sys

from stitch_mcp.rl.backends.jobs import JudgeJob, JudgeSettings
from stitch_mcp.rl.backends.judging import SubmissionJudge


def main() -> None:
    """Judge what stdin names."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    head = json.loads(sys.stdin.readline())
    settings = JudgeSettings.model_validate(head["settings"])
    with SubmissionJudge(settings, build_slots=head["build_slots"]) as judge:
        for line in sys.stdin:
            result = judge.judge(JudgeJob.from_json_bytes(line.encode("utf-8")))
            answers.write(json.dumps(result.model_dump(mode="json")) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
