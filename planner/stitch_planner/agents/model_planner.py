"""A language model as the planner: refines the deterministic plan, which stands where it cannot."""

from dataclasses import dataclass

from stitch_planner.agents.answers import UnusableAnswerError
from stitch_planner.agents.asking import ANSWERS, ask_until_usable
from stitch_planner.agents.describe_plan import describe_operations, plan_as_answer
from stitch_planner.agents.describe_task import describe_task
from stitch_planner.agents.model_ledger import ModelBudgetError, ModelLedger
from stitch_planner.agents.plan_answer import read_plan, refined_plan
from stitch_planner.agents.prompting import bullets, fenced, render
from stitch_planner.context import Refinement, RunContext
from stitch_planner.llm.chat import ChatAnswer, ModelBusyError, ModelError
from stitch_planner.plan import Plan
from stitch_planner.plan_checks import is_plannable, plan_problems
from stitch_planner.step_work import StepWork
from stitch_planner.stitcher.targets import simple_graph
from stitch_tools.models.graph import Graph

_MOST_OPERATIONS = 500
"""Of a larger graph the list alone would fill a model's context."""
_MOST_PROBLEMS = 8


@dataclass(frozen=True)
class ModelPlanner:
    """Asks the run's model for a better plan, at most three times."""

    ledger: ModelLedger

    def refine(self, context: RunContext) -> Refinement:
        """The model's plan once it fits the graph; whatever goes wrong with the model, the run continues.

        Raises:
            InterruptedRunError: somebody asked to stop.
            BudgetError: the time is over.
        """
        graph = simple_graph(context.task, context.facts, context.graph)
        author = self.ledger.model.name
        if not is_plannable(graph):
            return Refinement(author, None, "the graph has no operation that needs a step")
        if len(graph.nodes) > _MOST_OPERATIONS:
            what = (
                f"the graph has {len(graph.nodes)} operations, and a model is asked about {_MOST_OPERATIONS}"
            )
            return Refinement(author, None, what)
        try:
            return self._asked(context, graph, author)
        except (ModelBudgetError, ModelError, ModelBusyError) as error:
            hint = f" ({error.hint})" if error.hint else ""
            return Refinement(author, None, f"{error.message}{hint}")

    def _asked(self, context: RunContext, graph: Graph, author: str) -> Refinement:
        work = StepWork(graph)
        system, question = render("planner_system", {}), _question(context, work)
        try:
            plan = ask_until_usable(
                self.ledger,
                system,
                question,
                lambda answer: _read(answer, context, work, author),
                wanted="plan",
                shorter="Leave out `inputs`, `outputs` and `risks`.",
            )
        except UnusableAnswerError as error:
            return Refinement(author, None, f"no plan in {ANSWERS} answers could be carried out: {error}")
        return Refinement(author, plan, "")


def _question(context: RunContext, work: StepWork) -> str:
    variables = {
        "task": describe_task(context, context.plan),
        "operations": fenced(describe_operations(work), "text data"),
        "present": fenced(plan_as_answer(context.plan), "json"),
        "is_cpu": context.task.target == "cpu",
    }
    return render("plan", variables)


def _read(answer: ChatAnswer, context: RunContext, work: StepWork, author: str) -> Plan:
    """The plan of an answer.

    Raises:
        UnusableAnswerError: it holds none, or one that does not fit the graph.
    """
    contract, ceilings = context.task.contract, context.ceilings
    plan = refined_plan(read_plan(answer.text), context.task.target, work, contract, ceilings, author)
    problems = plan_problems(plan, work.index.graph, contract, ceilings)
    if problems:
        rest = len(problems) - _MOST_PROBLEMS
        lines = [str(problem) for problem in problems[:_MOST_PROBLEMS]]
        lines += [f"{rest} more problems like these"] if rest > 0 else []
        raise UnusableAnswerError(f"The plan does not fit the graph:\n\n{bullets(lines)}")
    return plan
