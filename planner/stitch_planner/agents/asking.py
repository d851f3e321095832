"""Asks a model until its answer can be used, a few times at most."""

from collections.abc import Callable
from typing import Literal, TypeVar

from stitch_planner.agents.answers import UnusableAnswerError
from stitch_planner.agents.model_ledger import ModelLedger
from stitch_planner.agents.prompting import render
from stitch_planner.llm.chat import ChatAnswer, ChatRequest
from stitch_planner.llm.model_settings import ModelSettings

ANSWERS = 3
"""How often one question is asked."""
ValueT = TypeVar("ValueT")


def ask_until_usable(
    ledger: ModelLedger,
    system: str,
    question: str,
    read: Callable[[ChatAnswer], ValueT],
    *,
    wanted: Literal["answer", "plan"],
    shorter: str,
) -> ValueT:
    """What `read` makes of the first answer that it can use.

    Args:
        ledger: asks.
        system: who the model is, and how it answers.
        question: sent again with the problem of the answer before.
        read: raises UnusableAnswerError with what the model is to change.
        wanted: what is asked for; chooses the words for another try.
        shorter: how to answer where an answer was cut off.

    Raises:
        UnusableAnswerError: the problem of the last answer.
        ModelError, ModelBusyError, BudgetError, InterruptedRunError: as `ModelLedger.ask` says.
    """
    settings = ledger.settings or ModelSettings()
    problem = ""
    for number in range(1, ANSWERS + 1):
        again = {"problem": problem, "number": number, "most": ANSWERS}
        template = "plan_again" if wanted == "plan" else "again"
        ledger.say(f"asking {ledger.model.name}{' for a plan' if wanted == 'plan' else ''}")
        answer = ledger.ask(
            ChatRequest(
                system=system,
                prompt=question + ("\n\n" + render(template, again) if problem else ""),
                max_output_tokens=settings.max_output_tokens,
                effort=settings.effort,
            )
        )
        try:
            _require_whole(answer, shorter)
            return read(answer)
        except UnusableAnswerError as error:
            problem = str(error)
            ledger.say(f"{wanted} {number} of {ANSWERS} cannot be used: {problem}")
    raise UnusableAnswerError(problem)


def _require_whole(answer: ChatAnswer, shorter: str) -> None:
    if answer.finish == "refused":
        raise UnusableAnswerError("It was a refusal. The task is ordinary numerical code.")
    if answer.finish == "truncated":
        raise UnusableAnswerError(f"It was cut off before its end. {shorter}")
