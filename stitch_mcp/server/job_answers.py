"""Job states as answers: a result, a sign of life, or a failure with what to do next."""

from collections.abc import Callable
from typing import Any

from pydantic import ValidationError

from stitch_mcp.jobs.folder import JobFolder
from stitch_mcp.jobs.state import JobState
from stitch_mcp.server.server_context import ServerContext
from stitch_mcp.server.tool import JobAnswer, Tool, ToolAnswer
from stitch_mcp.server.tool_list import find_tool
from stitch_mcp.server.toolset import fitting, offered
from stitch_planner.agents.manual_questions import MANUAL
from stitch_tools.errors import StoreError, flag
from stitch_tools.models.remedy import Remedy

_CALLERS_FAULTS = ("usage", "task")


def tool_answer(server_context: ServerContext, state: JobState) -> ToolAnswer:
    """The answer of the job's own tool; without a result only how the job stands.

    Raises:
        UsageError: there is no such tool in this version.
        StoreError: the result is none of this version's, or damaged.
    """
    model = find_tool(state.tool).answer
    if state.status == "completed" and state.result is not None:
        # A server of another version may have more to say.
        fields = {name: value for name, value in state.result.items() if name in model.model_fields}
        try:
            answer = model.model_validate(fields)
        except ValidationError as error:
            raise StoreError(
                f"the result of job {state.job_id} was written by another version",
                hint="make the call again with `rerun`: true",
            ) from error
        return answer.model_copy(update={"job_id": state.job_id})
    return model(
        status=state.status,
        message=_message(server_context, state),
        job_id=state.job_id,
        run_id=state.run_id,
        next_steps=_next(server_context, state),
    )


def job_answer(server_context: ServerContext, state: JobState) -> JobAnswer:
    """The job's state as get_job returns it."""
    result: dict[str, Any] | None = None
    artifact: str | None = None
    steps = _next(server_context, state)
    if state.status == "completed" and state.result is not None:
        # These stand in the outer answer, or only in a detailed one.
        hidden = ("status", "next_steps", *find_tool(state.tool).answer.DETAILS)
        result = {
            name: value
            for name, value in state.result.items()
            if name not in hidden and value not in ("", [], {})
        }
        answer = tool_answer(server_context, state)
        steps, artifact = answer.next_steps, answer.artifact
    return JobAnswer(
        status=state.status,
        message=_message(server_context, state),
        job_id=state.job_id,
        run_id=state.run_id,
        tool=state.tool,
        progress=state.progress if state.status == "working" else None,
        artifact=artifact,
        result=result,
        next_steps=steps,
    )


def _message(server_context: ServerContext, state: JobState) -> str:
    if state.status == "working":
        return f"{state.tool} is running: {state.progress}"
    if state.status == "completed":
        return str((state.result or {}).get("message", "done"))
    return fitting(server_context, failure_words(state.message, state.hint))


def failure_words(message: str, hint: str) -> str:
    """What went wrong and what to do next."""
    if not hint:
        return message
    # The last line of several is a quoted one (of a source, say), which no full stop ends.
    if "\n" in message:
        return f"{message.rstrip()}\nNext: {hint}"
    ended = message if message.endswith("?") else f"{message.rstrip('.:')}."
    return f"{ended} Next: {hint}"


def as_argument(tool: Tool) -> Callable[[str], str]:
    """How a hint spells an option for callers of the tool: its argument where it has one, else a flag."""
    return lambda option: f"`{option}`" if option in tool.request.model_fields else flag(option)


def _next(server_context: ServerContext, state: JobState) -> tuple[Remedy, ...]:
    if state.status == "working":
        ends = "; cancel_job ends it" if "cancel_job" in offered(server_context) else ""
        why = f"wait for the result{ends}"
        wait = Remedy(tool="get_job", arguments={"job_id": state.job_id}, why=why)
        if state.tool == "solve" and _arguments(server_context, state).get("coder") == MANUAL:
            why = "wait for its question, which is yours to answer"
            return (Remedy(tool="next_prompt", arguments={"run_id": state.job_id}, why=why), wait)
        return (wait,)
    # The error's own remedies know more than the status does.
    if state.remedies:
        return state.remedies
    if state.status in ("interrupted", "cancelled", "failed"):
        arguments = _arguments(server_context, state)
        if state.error_code in _CALLERS_FAULTS:
            return _repair(state.tool, arguments, at_reference=state.error_code == "task")
        # The run keeps what was finished; a reference alone would begin another one.
        if state.tool == "solve" and state.run_id and state.status != "interrupted":
            arguments = {"run_id": state.run_id}
        reasons = {
            "interrupted": "resume it",
            "cancelled": "resume its run" if "run_id" in arguments else "start it again",
            "failed": "try it again once the cause is gone",
        }
        return (Remedy(tool=state.tool, arguments=arguments, why=reasons[state.status]),)
    return ()


def _arguments(server_context: ServerContext, state: JobState) -> dict[str, Any]:
    return JobFolder(server_context.supervisor.jobs, state.job_id).request().arguments


def _repair(tool: str, arguments: dict[str, Any], *, at_reference: bool) -> tuple[Remedy, ...]:
    """What helps where the same call would fail again."""
    if "reference" in arguments:
        # It was named by content: the corrected file has to be read anew.
        again = {**arguments, "reference": "PATH.py"}
        return (Remedy(tool=tool, arguments=again, why="correct the file, then name it by its path"),)
    if at_reference or tool == "make_plan":
        why = "correct the reference if needed; analyzing it opens another run"
        return (Remedy(tool="analyze_reference", arguments={"reference": "PATH.py"}, why=why),)
    if tool in ("benchmark_program", "certify_program") and "program" in arguments:
        return (Remedy(tool="check_program", arguments=arguments, why="have the program accepted first"),)
    return (Remedy(tool=tool, arguments=arguments, why="call it again once `message` is dealt with"),)
