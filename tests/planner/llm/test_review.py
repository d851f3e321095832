"""The review of a program: figures from evidence, and opinions that have to quote the code."""

import json
import threading
from pathlib import Path

import pytest

from stitch_planner.agents.model_ledger import ModelLedger
from stitch_planner.agents.review_panel import ReviewPanel, read_votes
from stitch_planner.llm.chat import CallLimits, ChatAnswer, ChatRequest, ModelError
from stitch_planner.llm.model_settings import ModelLimits, ModelSettings
from stitch_planner.plan import Plan
from stitch_planner.rubric import rate
from stitch_planner.runs.attempt_evidence import AttemptEvidence
from stitch_planner.runs.attempts import Attempt
from stitch_planner.runs.reviews import ReviewSubject
from stitch_planner.runs.run import Run, Workspace
from stitch_planner.runs.run_events import BenchFinished, ProgramWritten
from stitch_planner.techniques import claimed_techniques, used_techniques, without_comments
from stitch_tools.models.acceptance import Verdict, VerdictReason
from stitch_tools.models.evidence import WorkEvidence
from stitch_tools.models.verdict import Bench, Check, CheckStatus, Timing

CODE = "for (int64_t i = 0; i < n; ++i) out[i] = x[i] + y[i];\n#pragma omp parallel for simd\n"
SUBJECT = ReviewSubject(task="t", summary="One loop.", scores=(), code=CODE)


def evidence(
    said: str,
    *,
    speed: float = 2.0,
    latency_us: float = 10.0,
    status: CheckStatus = "accepted",
    pytorch: float = 0.0,
    number: int = 1,
) -> AttemptEvidence:
    counts = status == "accepted"
    work = WorkEvidence(
        method="operators",
        own=1 - pytorch,
        library=0,
        pytorch=pytorch,
        copies=0,
        other=0,
        observations=1,
        outputs_right=True,
    )
    reasons = () if counts else (VerdictReason(source="check", rule=status, message="it keeps results"),)
    timing = Timing(name="program", latency_us=latency_us)
    timed = BenchFinished(program_id="p", bench="b", outcome="faster", counts=counts, safe_speedup=speed)
    written = ProgramWritten(program="p", program_id=f"p{number}", author="m", notes=(said,))
    return AttemptEvidence(
        attempt=Attempt(
            program=written, round=number, bench=timed, status=status, counts=counts, last_event=number
        ),
        build=None,
        check=Check(program_id="p", task_id="t", status=status, work=work),
        bench=Bench(program_id="p", task_id="t", outcome="faster", timings=(timing,)),
        verdict=Verdict(status=status, counts=counts, reasons=reasons),
    )


PLAN = Plan(target="cpu", steps=(), predicted_us=5.0)


def scores(
    own: AttemptEvidence, parent: AttemptEvidence | None = None, code: str = CODE
) -> dict[str, tuple[int | None, str]]:
    return {row.name: (row.score, row.evidence) for row in rate(own, parent, PLAN, [code])}


def test_each_figure_of_the_rubric_comes_from_evidence() -> None:
    seen = scores(evidence("SIMD in one loop.", speed=4.0), evidence("", number=0))
    assert seen == {
        "honesty": (5, "nothing speaks against it"),
        "claims": (5, "SIMD is there"),
        "bound": (4, "50% of the plan's bound is reached: 5 of 10 us"),
        "coverage": (5, "100% of the work is done outside of PyTorch"),
        "effect": (5, "it is 2.00 times as fast as program 0"),
    }
    slow = scores(evidence("", speed=1.0, latency_us=100.0, pytorch=0.5), evidence("", number=0))
    assert [score for score, _ in slow.values()] == [5, None, 1, 2, 1]


@pytest.mark.parametrize(
    ("said", "score", "told"),
    [
        ("Uses tensor cores.", 1, "no tensor cores in its sources"),
        ("OpenMP and SIMD, with a prefetch.", 3, "no prefetch in its sources"),
        ("It is now 3x faster.", 1, "3 times the speed is not measured"),
        ("It is 2 times as fast.", 5, "2 times the speed is measured"),
        ("Without OpenMP, it removes the atomics.", None, "nothing that can be checked"),
    ],
)
def test_what_an_answer_claims_is_compared_with_sources_and_clock(
    said: str, score: int | None, told: str
) -> None:
    rated = scores(evidence(said, speed=4.0), evidence("", speed=2.0, number=0))["claims"]
    assert rated[0] == score
    assert told in rated[1]


def test_a_comment_is_no_evidence() -> None:
    cpp = 'int a; // #pragma omp parallel\n/* wmma\n */ char c = \'"\'; auto s = "// kept"; // prefetch'
    assert without_comments("program.cpp", cpp) == 'int a;\n  char c = \'"\'; auto s = "// kept";'
    python = '"""wmma"""\nimport torch  # cublas\nSOURCE = """\nint a; // cudnn\n"""\nx = 7 // 2\n'
    assert used_techniques([without_comments("program.py", python)]) == frozenset()
    assert "7//2" in "".join(without_comments("program.py", python).split())
    assert claimed_techniques("vectorised, no atomics") == {"SIMD"}


def test_a_verdict_stands_above_all_scores() -> None:
    rated = scores(evidence("SIMD", status="rejected_cheat", speed=9.0), evidence("", number=0))
    assert rated["honesty"][0] == 1
    assert rated["effect"] == (1, "made from program 0, it does not count")


def voted(*rows: tuple[str, object, str]) -> str:
    votes = [
        {"dimension": name, "score": score, "quote": quote, "reason": "So."} for name, score, quote in rows
    ]
    return f"My votes:\n```json\n{json.dumps({'votes': votes})}\n```"


QUOTE = "out[i] = x[i]  + y[i];"


def test_a_vote_without_a_quote_from_the_code_does_not_count() -> None:
    text = voted(
        ("bottleneck", 4, QUOTE),
        ("engineering", 5, "out[i] = relu(x[i]);"),
        ("focus", True, QUOTE),
        ("beauty", 5, QUOTE),
        ("focus", 9, QUOTE),
    )
    votes, unusable = read_votes(text, CODE)
    assert [(row.dimension, row.score) for row in votes] == [("bottleneck", 4)]
    assert unusable == 2
    for bad in ("no JSON", "```json\n[1]\n```", '{"votes": 3}', "null", "[" * 100_000):
        assert read_votes(bad, CODE) == ([], 3)


class ScriptedVoter:
    """A model with an answer for each vote."""

    name = "voter"
    may_bill = True

    def __init__(self, *texts: str | ModelError) -> None:
        self.texts = list(texts)
        self.prompts: list[str] = []

    def ask(self, request: ChatRequest, waiting: CallLimits) -> ChatAnswer:
        """The next text."""
        self.prompts.append(request.prompt)
        text = self.texts.pop(0)
        if isinstance(text, ModelError):
            raise text
        return ChatAnswer(text=text, model=self.name, input_tokens=10, output_tokens=1)


def panel(folder: Path, voter: ScriptedVoter, limits: ModelLimits | None = None) -> ReviewPanel:
    workspace = Workspace(folder)
    run = Run(workspace.runs_folder / "one", workspace.store)

    def wait(path: Path) -> CallLimits:
        return CallLimits(path, threading.Event())

    settings = ModelSettings(model="voter")
    return ReviewPanel(ModelLedger(run, voter, settings, limits or ModelLimits(), wait, print))


def test_the_median_of_three_votes_counts_and_each_is_a_recorded_question(tmp_path: Path) -> None:
    texts = [voted(("bottleneck", score, QUOTE), ("focus", score, "not there at all")) for score in (1, 4, 5)]
    voter = ScriptedVoter(*texts)
    asked = panel(tmp_path, voter)
    opinions, note = asked.opinions(SUBJECT)
    bottleneck, engineering, focus = opinions
    assert (bottleneck.score, bottleneck.votes) == (4, (1, 4, 5))
    assert bottleneck.quote == "out[i] = x[i] + y[i];"
    assert (engineering.score, focus.score) == (None, None)
    assert note == "6 votes could not be used"
    assert len(asked.ledger.run.state.calls) == 3
    # Asked again, as after a kill, the answers come from the run's records.
    assert asked.opinions(SUBJECT) == (opinions, note)
    assert len(set(voter.prompts)) == len(voter.prompts) == 3


def test_a_model_that_fails_leaves_no_opinion(tmp_path: Path) -> None:
    voter = ScriptedVoter(voted(("focus", 1, QUOTE)), ModelError("quota", hint=""))
    opinions, note = panel(tmp_path, voter).opinions(SUBJECT)
    assert [row.score for row in opinions] == [None, None, None]
    assert "no further vote: quota" in note


def test_votes_keep_the_budget(tmp_path: Path) -> None:
    opinions, note = panel(tmp_path, ScriptedVoter(), ModelLimits(tokens=10)).opinions(SUBJECT)
    assert [row.score for row in opinions] == [None, None, None]
    assert "tokens are spent" in note
