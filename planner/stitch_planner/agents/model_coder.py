"""A language model as the coder: writes, fixes and improves programs, one question a round.

The two skills are those of the StitchCUDA paper (arXiv 2603.02637): from a task to a program, and from
feedback to a better one. Each question stands for itself, so that it can be asked again after a kill.
"""

from dataclasses import dataclass

from stitch_planner.agents.answers import AnsweredProgram, UnusableAnswerError, read_answer
from stitch_planner.agents.asking import ANSWERS, ask_until_usable
from stitch_planner.agents.describe_evidence import describe_attempts, describe_evidence, describe_program
from stitch_planner.agents.describe_history import (
    describe_last,
    describe_lessons,
    describe_pairs,
    telling_pairs,
)
from stitch_planner.agents.describe_skills import describe_skills
from stitch_planner.agents.describe_task import describe_task
from stitch_planner.agents.model_ledger import ModelLedger
from stitch_planner.agents.prompting import fenced, prompt_source, render
from stitch_planner.context import Coder, Reviewer, RunContext, Written
from stitch_planner.llm.chat import ChatAnswer
from stitch_planner.llm.model_settings import ROUNDS
from stitch_planner.remembering import recalled
from stitch_planner.runs.attempt_evidence import evidence_of
from stitch_planner.runs.attempts import Attempt
from stitch_planner.runs.run import started
from stitch_planner.runs.run_events import MemoryRecalled
from stitch_planner.runs.state import State
from stitch_planner.search import search_of
from stitch_planner.stitcher import StitchFailedError
from stitch_tools.compile.cpp import BASE
from stitch_tools.compile.headers import native_include
from stitch_tools.models.program import Program
from stitch_tools.storage.store import Store


class NoUsableAnswerError(StitchFailedError):
    """A model gave no program, though it was told why its answers could not be used."""

    code = "no_usable_answer"


@dataclass(frozen=True)
class ModelCoder:
    """Takes the first program from another coder, and improves it by a model's answers."""

    first: Coder
    """Writes the program that the model begins with, where it can."""
    ledger: ModelLedger
    refines: bool = True
    """Whether further programs may be better than the first."""
    reviewer: Reviewer | None = None
    """Who gives an opinion on its programs; None: nobody is asked."""

    @property
    def name(self) -> str:
        """Author of what the model writes."""
        return self.ledger.model.name

    def rounds_left(self, state: State) -> int:
        """How many programs the model may still write; none where the search is exhausted."""
        allowed = state.started.rounds if state.started and state.started.rounds is not None else ROUNDS
        written = sum(row.author == self.name for row in state.attempts)
        return 0 if search_of(state).is_exhausted(state, self.name) else max(0, allowed - written)

    def write(self, context: RunContext) -> Written:
        """The next program.

        Raises:
            NoUsableAnswerError: no answer of this round could be used.
            ModelError: the model cannot be asked.
            BudgetError: time, tokens or money are spent.
        """
        if not context.run.state.attempts:
            try:
                return self.first.write(context)
            except StitchFailedError as error:
                context.workbench.say(f"the model begins without a program: {error.message}")
        return self._from_model(context, _shown_attempt(context.run.state))

    def _from_model(self, context: RunContext, shown: Attempt | None) -> Written:
        parent = context.run.store.get_fact(shown.program.program, Program) if shown else None
        if context.run.state.memory is None and started(context.run.state).memory:
            context.run.record(MemoryRecalled(lessons=recalled(context)))
        system, question = coder_system(context.task.target), _question(context, self.name, shown, parent)

        def read(answer: ChatAnswer) -> Written:
            return self._written(context, _read(answer, context, parent), parent)

        try:
            return ask_until_usable(
                self.ledger,
                system,
                question,
                read,
                wanted="answer",
                shorter="Answer with less text, and only with the files that change.",
            )
        except UnusableAnswerError as error:
            raise NoUsableAnswerError(
                f"{self.name} gave no program in {ANSWERS} answers: {error}",
                hint="its answers lie in the run's `calls` folder; solve anew, perhaps with another model",
            ) from error

    def _written(self, context: RunContext, answered: AnsweredProgram, parent: Program | None) -> Written:
        program = Program(
            format="kernelbench" if answered.main.endswith(".py") else "native",
            target=context.task.target,
            files=context.run.store.put_files(answered.files),
            main=answered.main,
            author=self.name,
            parent_id=parent.program_id if parent else None,
        )
        if (known := context.run.state.attempt(program.program_id)) is not None:
            raise UnusableAnswerError(f"It is program {known.round} again, which was judged already.")
        return Written(program, (answered.summary,) if answered.summary else ())


def _shown_attempt(state: State) -> Attempt | None:
    """The program that the next one is made from, as the decision says; None for a draft."""
    if state.decision is not None and state.decision.decision == "draft":
        return None
    named = state.attempt(state.decision.program_id) if state.decision else None
    return named or state.best or state.current


def _read(answer: ChatAnswer, context: RunContext, parent: Program | None) -> AnsweredProgram:
    store = context.run.store
    files = {file.path: store.get(file.sha256) for file in parent.files} if parent else {}
    return read_answer(answer.text, files, parent.main if parent else "")


def coder_system(target: str) -> str:
    """The instructions that every question for a program of this target begins with."""
    is_cpu = target == "cpu"
    abi = (native_include() / "stitch" / "abi.h").read_text(encoding="utf-8")
    example = prompt_source("example.cpp" if is_cpu else "example.cu")
    variables = {
        "is_cpu": is_cpu,
        "flags": " ".join(BASE),
        "abi": fenced(abi, "cpp"),
        "example": fenced(example, f"cpp program.{'cpp' if is_cpu else 'cu'}"),
    }
    return render("coder_system", variables)


def _question(context: RunContext, author: str, shown: Attempt | None, parent: Program | None) -> str:
    run = context.run
    state, first = run.state, started(run.state)
    # What never changes in a run comes first: providers charge less for a prefix that they know.
    task = describe_task(context, context.newest_plan)
    if state.memory is not None:
        task += describe_lessons(state.memory.lessons)
    is_cpu = context.task.target == "cpu"
    variables: dict[str, object] = {"task": task}
    variables["skills"] = describe_skills(context.plan, context.facts, shown, run.store)
    if not state.attempts:
        return render("write", {**variables, "is_cpu": is_cpu})
    suffix = "cpp" if is_cpu else "cu"
    variables["attempts"] = _history(state, author, shown, run.store)
    if shown is None or parent is None:
        return render("draft", {**variables, "suffix": suffix})
    evidence = describe_evidence(evidence_of(run.store, shown, first.policy))
    number = shown.round
    program = describe_program(parent, run.store, context.plan)
    variables |= {"number": number, "program": program, "evidence": evidence}
    if not shown.counts:
        return render("fix", {**variables, "suffix": suffix})
    is_best = state.best is not None and state.best.program_id == shown.program_id
    return render("optimize", {**variables, "goal": first.min_speedup, "is_best": is_best})


def _history(state: State, author: str, shown: Attempt | None, store: Store) -> str:
    """All programs, the last one where it is not shown, and pairs for the search that branches."""
    parts = [describe_attempts(state.attempts), describe_last(state, shown, author, store)]
    if search_of(state).name == "tree":
        parts.append(describe_pairs(telling_pairs(state), store))
    return "\n\n".join(part for part in parts if part)
