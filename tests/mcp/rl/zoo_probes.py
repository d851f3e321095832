"""The zoo's programs as submissions to the reward."""

from stitch_mcp.rl.reward.judging import JudgedSubmission, RewardJudge, RewardTask
from stitch_mcp.rl.reward.submissions import Submission
from tests.tools.judge.zoo_runner import ZOO, Case


def submission_of(case: Case) -> Submission:
    files = {path: data.decode("utf-8") for path, data in case.files().items()}
    return Submission(files=files, main=case.main)


def task_of(case: Case) -> RewardTask:
    source = (ZOO / "references" / f"{case.reference}.py").read_text(encoding="utf-8")
    contract = {**case.contract}
    tolerance = contract.pop("tolerance", {})
    return RewardTask(files={"reference.py": source}, contract={**contract, **tolerance}, allow_relaxed=True)


def judge_case(judge: RewardJudge, case: Case) -> JudgedSubmission:
    return judge.judge(submission_of(case), task_of(case))
