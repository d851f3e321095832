"""Asks a model within a budget, so that no question is paid twice unknowingly.

A question is recorded before it is sent. After a kill its answer is missing: it then counts with its upper
bound, and is sent once more at most. An answer that is recorded is never asked for again.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stitch_planner.llm.chat import CallLimits, ChatAnswer, ChatModel, ChatRequest, ModelBusyError, ModelError
from stitch_planner.llm.file_models import ANSWER, PROMPT, ManualModel
from stitch_planner.llm.model_settings import ModelLimits, ModelSettings
from stitch_planner.runs.model_calls import ModelCall, spent_tokens, spent_usd
from stitch_planner.runs.run import Run
from stitch_planner.runs.run_events import ModelAnswered, ModelAsked
from stitch_tools.errors import BudgetError
from stitch_tools.storage.store import write_atomically

CALLS = "calls"
"""Folder of a run with a question's readable copies each."""
_MOST_SENDINGS = 2
_PAUSES_S = (2.0, 10.0, 30.0, 60.0)
"""Waits between sendings that nobody bills."""
_LONGEST_PAUSE_S = 300.0


class ModelBudgetError(BudgetError):
    """The tokens or the money for the model are spent."""


@dataclass
class ModelLedger:
    """The questions of one run to its model."""

    run: Run
    model: ChatModel
    settings: ModelSettings | None
    limits: ModelLimits
    wait: Callable[[Path], CallLimits]
    """How long a call may wait, by its folder."""
    say: Callable[[str], None]

    def ask(self, request: ChatRequest) -> ChatAnswer:
        """The answer, from the run's records where they have it.

        Raises:
            ModelError: the model cannot be asked, or the question was sent twice without an answer.
            ModelBusyError: no answer came after several sendings.
            ModelBudgetError: the question could cost more than is left.
            BudgetError: the time is over.
            InterruptedRunError: somebody asked to stop.
        """
        call = self._known(request)
        if call is not None and call.answered is not None:
            return self.run.store.get_fact(call.answered.answer, ChatAnswer)
        number = call.asked.call if call else len(self.run.state.calls)
        folder = self.run.folder / CALLS / f"{number:03d}"
        write_atomically(folder / PROMPT, request.text.encode())
        if isinstance(self.model, ManualModel):
            # Nobody else would tell a person where the run waits for them.
            place = folder.absolute()
            self.say(f"read {place / PROMPT} and write the answer to {place / ANSWER}; the run waits for it")
        answer = self._sent(request, number, folder)
        self._record(number, answer)
        write_atomically(folder / ANSWER, answer.text.encode())
        return answer

    def _record(self, number: int, answer: ChatAnswer) -> None:
        call = next(row for row in self.run.state.calls if row.asked.call == number)
        tokens, usd = call.asked.most_tokens, call.asked.most_usd
        # Where the provider does not say what the call took, its upper bound stays.
        if answer.input_tokens is not None and answer.output_tokens is not None:
            tokens = answer.input_tokens + answer.output_tokens
            if self.settings is not None:
                usd = self.settings.cost_usd(
                    answer.input_tokens, answer.output_tokens, answer.cached_tokens or 0
                )
        stored = self.run.store.put_fact(answer)
        self.run.record(ModelAnswered(call=number, answer=stored, tokens=tokens, usd=usd))
        if self.model.may_bill:
            self.say(f"answered; so far at most {self._spent()}")

    def _spent(self) -> str:
        usd = spent_usd(self.run.state.calls)
        price = "price unknown" if usd is None else f"{usd:.2f} USD"
        return f"{spent_tokens(self.run.state.calls):,} tokens, {price}"

    def _known(self, request: ChatRequest) -> ModelCall | None:
        return next((row for row in self.run.state.calls if row.asked.request == request.key), None)

    def _sent(self, request: ChatRequest, number: int, folder: Path) -> ChatAnswer:
        """The answer after as many sendings as are sensible."""
        pauses = iter(_PAUSES_S)
        waiting = self.wait(folder)
        must_record = True
        while True:
            if must_record:
                self._record_sending(request, number)
            try:
                return self.model.ask(request, waiting)
            except ModelBusyError as error:
                pause = next(pauses, None)
                if pause is None:
                    raise
                pause = min(error.retry_after_s or pause, _LONGEST_PAUSE_S)
                self.say(f"{error.message}; asked again in {pause:.0f} s")
                # What was refused before it was worked on is the same sending.
                must_record = error.was_sent
                waiting.pause(pause)

    def _record_sending(self, request: ChatRequest, number: int) -> None:
        known = self._known(request)
        if self.model.may_bill and known is not None and known.sent >= _MOST_SENDINGS:
            raise ModelError(
                f"question {number} was sent {known.sent} times and never answered",
                hint="look at the provider's log; solve anew to ask again",
            )
        most_tokens, most_usd = 0, 0.0
        if self.model.may_bill:
            most_tokens = request.most_input_tokens + request.max_output_tokens
            settings = self.settings or ModelSettings(model=self.model.name)
            most_usd = settings.cost_usd(request.most_input_tokens, request.max_output_tokens)
            self._refuse_beyond_budget(most_tokens, most_usd)
        self.run.record(
            ModelAsked(
                call=number,
                request=self.run.store.put_fact(request),
                model=self.model.name,
                most_tokens=most_tokens,
                most_usd=most_usd,
            )
        )

    def _refuse_beyond_budget(self, most_tokens: int, most_usd: float | None) -> None:
        tokens = spent_tokens(self.run.state.calls)
        if self.limits.tokens is not None and tokens + most_tokens > self.limits.tokens:
            raise ModelBudgetError(
                f"{tokens:,} of {self.limits.tokens:,} tokens are spent, and the next question may take"
                f" {most_tokens:,}; everything so far is kept",
                hint="allow more with {max_model_tokens}",
                options=("max_model_tokens",),
            )
        if self.limits.usd is None:
            return
        spent = spent_usd(self.run.state.calls)
        if spent is None or most_usd is None:
            raise ModelBudgetError(
                f"a limit of {self.limits.usd:g} USD is set, and the price of {self.model.name} is not known",
                hint="set usd_per_million_input and usd_per_million_output of the model, or limit the tokens",
            )
        if spent + most_usd > self.limits.usd:
            raise ModelBudgetError(
                f"{spent:.2f} of {self.limits.usd:g} USD are spent, and the next question may cost"
                f" {most_usd:.2f}; everything so far is kept",
                hint="allow more with {max_model_usd}",
                options=("max_model_usd",),
            )
