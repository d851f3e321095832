"""`submit_answer`: answers the open question of a run with the coder `manual`."""

from stitch_mcp.server.manual_runs import find_manual_run
from stitch_mcp.server.server_context import ServerContext
from stitch_mcp.server.tool import Tool, ToolAnswer, ToolRequest
from stitch_planner.agents.manual_questions import QuestionNotOpenError, submit_answer
from stitch_planner.budget import resume_remedy


class SubmitAnswer(ToolRequest):
    """Arguments of submit_answer."""

    run_id: str
    """run_id or job_id."""
    number: int
    """Of the open question."""
    text: str
    """The answer, as the prompt asks for it."""


def reply(request: SubmitAnswer, server_context: ServerContext) -> ToolAnswer:
    """Leave the answer where the run reads it."""
    place = find_manual_run(server_context, request.run_id)
    if place.run is None:
        raise QuestionNotOpenError(
            f"question {request.number} is not open: the run has not begun yet",
            remedies=(place.next_prompt("wait for its question"),),
        )
    submit_answer(place.run, request.number, request.text)
    taken = f"answer {request.number} is submitted"
    if not place.at_work:
        return ToolAnswer(
            message=f"{taken}; nothing works on the run, so it is read once the run is resumed",
            run_id=place.run_id,
            next_steps=(resume_remedy(place.run_id),),
        )
    return ToolAnswer(
        message=f"{taken}; the run reads it now, and builds, checks and times what it holds",
        run_id=place.run_id,
        job_id=place.job_id,
        next_steps=(place.next_prompt("wait for what the run asks next, or for its end"),),
    )


TOOL = Tool(
    name="submit_answer",
    title="Answer a question",
    description=(
        "Answers the question of next_prompt. The run then builds, checks and times the program in it; "
        "next_prompt shows what came of it."
    ),
    request=SubmitAnswer,
    answer=ToolAnswer,
    reply=reply,
    toolset="roles",
)
