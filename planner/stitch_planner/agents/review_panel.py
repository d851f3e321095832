"""Asks a model for its opinion on a program: three votes, of which the median counts.

A vote has to quote the code that it rests on. Comments are taken out before, so that a program cannot plead
its cause. A failure of the model leaves no opinion, and never one against the program.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low

from stitch_planner.agents.model_ledger import ModelLedger
from stitch_planner.agents.prompting import bullets, clipped, fenced, render, whole_sentences
from stitch_planner.agents.quoted_votes import QuotedVote, read_quoted_votes
from stitch_planner.llm.chat import ChatRequest, ModelBusyError, ModelError
from stitch_planner.runs.reviews import Opinion, OpinionName, ReviewSubject
from stitch_tools.errors import BudgetError

VOTES, _LEAST_VOTES = 3, 2
_MOST_OUTPUT_TOKENS = 8_000
_MOST_CODE_CHARS, _MOST_REASON_CHARS = 40_000, 300
_MOST_QUOTE_CHARS = 200
_QUESTIONS: dict[OpinionName, str] = {
    "bottleneck": "does it change what costs most of the time, by the figures above?",
    "engineering": "how well does the code use the device: memory access, parallelism, launches, reuse?",
    "focus": "does it do what its author says, completely, and nothing that does not belong to it?",
}
_Vote = QuotedVote[OpinionName]


@dataclass(frozen=True)
class ReviewPanel:
    """Votes of the run's model, within its budget."""

    ledger: ModelLedger

    def opinions(self, subject: ReviewSubject) -> tuple[tuple[Opinion, ...], str]:
        """The opinions, and why one or a vote is missing, "" where none is.

        Raises:
            InterruptedRunError: somebody asked to stop.
        """
        shown = clipped(subject.code, _MOST_CODE_CHARS)
        votes: list[_Vote] = []
        unusable = 0
        problem = ""
        for number in range(VOTES):
            try:
                answer = self.ledger.ask(_request(subject, shown, number))
            # The program was judged: no fault of the model, and no budget, stops the run here.
            except (ModelError, ModelBusyError, BudgetError) as error:
                problem = error.message
                break
            usable, refused = read_votes(answer.text, shown)
            votes += usable
            unusable += refused
        notes = [f"the model gave no further vote: {problem}"] if problem else []
        notes += [f"{unusable} votes could not be used"] if unusable else []
        return tuple(_opinion(name, votes) for name in _QUESTIONS), "; ".join(notes)


def _request(subject: ReviewSubject, shown: str, number: int) -> ChatRequest:
    # Each vote asks in another order: what comes first is judged otherwise than what comes last.
    names = list(_QUESTIONS)
    names = names[number:] + names[:number]
    variables = {
        "task": subject.task,
        "summary": fenced(subject.summary or "(nothing)", "data"),
        "figures": bullets([f"{row.name}: {row.evidence}" for row in subject.scores]),
        "code": fenced(shown, "data"),
        "questions": bullets([f"`{name}`: {_QUESTIONS[name]}" for name in names]),
        "number": number + 1,
    }
    return ChatRequest(
        system=render("review_system", {}),
        prompt=render("review", variables),
        max_output_tokens=_MOST_OUTPUT_TOKENS,
    )


def read_votes(text: str, shown: str) -> tuple[list[_Vote], int]:
    """The votes of an answer that quote the shown code, and how many of its votes cannot be used."""
    return read_quoted_votes(text, shown, _Vote, _QUESTIONS)


def _opinion(name: OpinionName, votes: Sequence[_Vote]) -> Opinion:
    own = [row for row in votes if row.dimension == name]
    scores = tuple(row.score for row in own)
    if len(own) < _LEAST_VOTES:
        return Opinion(name=name, score=None, votes=scores)
    score = median_low(scores)
    vote = next(row for row in own if row.score == score)
    return Opinion(
        name=name,
        score=score,
        votes=scores,
        quote=" ".join(vote.quote.split())[:_MOST_QUOTE_CHARS],
        reason=whole_sentences(vote.reason, _MOST_REASON_CHARS),
    )
