"""Asks a model for its grades, as an addition to those by evidence: votes, of which the median counts.

What a model may do is bounded. It moves a score by one at most from the measured one, and `anti_hacking`
only down; the total is computed here. A vote has to quote the source that it was shown. A failure of the
model leaves the measured scores, so that it never lets a cheat through, and is counted in the rating's note.
"""

import contextlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median_low

from pydantic import ValidationError

from stitch_mcp.rl.reward.facts import DIMENSIONS, Dimension, DimensionRating, SkillRating
from stitch_mcp.rl.reward.neutral_code import neutral_sources
from stitch_mcp.rl.reward.rubric import ANCHORS
from stitch_planner.agents.prompting import bullets, clipped, fenced, render, whole_sentences
from stitch_planner.agents.quoted_votes import QuotedVote, read_quoted_votes
from stitch_planner.llm.chat import CallLimits, ChatAnswer, ChatModel, ChatRequest, ModelBusyError, ModelError
from stitch_tools.errors import BudgetError, StoreError
from stitch_tools.storage.store import write_atomically

_MOST_OUTPUT_TOKENS = 4_000
_MOST_CODE_CHARS, _MOST_REASON_CHARS = 40_000, 200
_NEUTRAL = 3
_Vote = QuotedVote[Dimension]


@dataclass(frozen=True)
class RubricPanel:
    """Votes of one model, kept by content."""

    model: ChatModel
    folder: Path
    """Where answers are kept; an equal question is not asked again."""
    votes: int = 3
    neutral: bool = True
    """Whether the program's own names are replaced before a model sees them."""
    stop: threading.Event = field(default_factory=threading.Event)

    def rate(
        self,
        measured: SkillRating,
        code: Mapping[str, str],
        parent_code: Mapping[str, str] | None = None,
        instruction: str = "",
    ) -> SkillRating:
        """The measured rating, moved by what the model says.

        Args:
            measured: by evidence alone.
            code: sources without comments, by path.
            parent_code: the same of the program that was to be refined.
            instruction: what was asked for.

        Raises:
            InterruptedRunError: `stop` was set.
        """
        shown = self._shown(code)
        votes: list[_Vote] = []
        failed = unusable = 0
        for number in range(self.votes):
            request = _request(measured, shown, self._shown(parent_code or {}), instruction, number)
            try:
                answer = self._ask(request)
            except (ModelError, ModelBusyError, BudgetError):
                failed += 1
                continue
            usable, refused = read_quoted_votes(answer.text, shown, _Vote, DIMENSIONS[measured.skill])
            votes += usable
            unusable += refused
        notes = [f"the model failed in {failed} of {self.votes} votes"] if failed else []
        notes += [f"{unusable} grades could not be used"] if unusable else []
        least = self.votes // 2 + 1
        rows = tuple(_moved(row, votes, least) for row in measured.dimensions)
        return SkillRating(skill=measured.skill, dimensions=rows, note="; ".join(notes))

    def _shown(self, code: Mapping[str, str]) -> str:
        neutral = neutral_sources(code, rename=self.neutral)
        return clipped("\n\n".join(f"// {path}\n{text}" for path, text in neutral.items()), _MOST_CODE_CHARS)

    def _ask(self, request: ChatRequest) -> ChatAnswer:
        kept = self.folder / f"{request.key}.json"
        # A damaged file is no answer: the model is asked again.
        with contextlib.suppress(OSError, ValidationError):
            return ChatAnswer.model_validate_json(kept.read_bytes())
        call = self.folder / "calls" / request.key
        call.mkdir(parents=True, exist_ok=True)
        answer = self.model.ask(request, CallLimits(folder=call, stop=self.stop))
        if answer.finish != "complete":
            raise ModelBusyError(f"the answer is {answer.finish}", was_sent=True)
        # A full disk costs a question more, later.
        with contextlib.suppress(StoreError):
            write_atomically(kept, answer.model_dump_json().encode("utf-8"))
        return answer


def _moved(row: DimensionRating, votes: Sequence[_Vote], least: int) -> DimensionRating:
    own = [vote for vote in votes if vote.dimension == row.name]
    scores = tuple(vote.score for vote in own)
    if len(scores) < least:
        return row.model_copy(update={"votes": scores})
    opinion = median_low(scores)
    measured = row.measured
    # Without a measured score it moves from the neutral one.
    before = _NEUTRAL if measured is None else measured
    highest = before if row.name == "anti_hacking" else before + 1
    score = min(max(opinion, before - 1, 1), highest, 5)
    reason = next(vote.reason for vote in own if vote.score == opinion)
    evidence = f"{row.evidence}; a model: {whole_sentences(reason, _MOST_REASON_CHARS)}"
    return row.model_copy(update={"score": score, "votes": scores, "evidence": evidence})


def _request(measured: SkillRating, shown: str, parent: str, instruction: str, number: int) -> ChatRequest:
    # Each vote asks in another order: what comes first is judged otherwise than what comes last.
    names = DIMENSIONS[measured.skill]
    turn = number % len(names)
    names = names[turn:] + names[:turn]
    variables = {
        "number": number + 1,
        "figures": bullets([f"{row.name}: {row.evidence}" for row in measured.dimensions]),
        "code": fenced(shown, "data"),
        "parent": fenced(parent, "data") if parent else "",
        "instruction": fenced(instruction or "(nothing)", "data"),
        "anchors": bullets([f"`{name}`: {_anchors(name)}" for name in names]),
    }
    return ChatRequest(
        system=render("rubric_system", {}),
        prompt=render("rubric", variables),
        max_output_tokens=_MOST_OUTPUT_TOKENS,
    )


def _anchors(name: Dimension) -> str:
    return "; ".join(f"{score}: {text}" for score, text in ANCHORS[name].items())
