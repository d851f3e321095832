"""`next_prompt`: shows the question that a run with the coder `manual` waits with."""

from typing import ClassVar

from pydantic import Field

from stitch_mcp.server.job_answers import job_answer
from stitch_mcp.server.manual_runs import ManualPlace, find_manual_run, progress_of
from stitch_mcp.server.render import blot_text
from stitch_mcp.server.server_context import ServerContext
from stitch_mcp.server.tool import MAX_WAIT_S, Tool, ToolAnswer, ToolRequest
from stitch_mcp.server.tools.get_artifact import PAGE_CHARS
from stitch_planner.agents.manual_questions import ManualQuestion
from stitch_planner.budget import resume_remedy
from stitch_tools.models.remedy import Remedy


class NextPrompt(ToolRequest):
    """Arguments of next_prompt."""

    run_id: str = ""
    """run_id or job_id; left out: the newest run."""
    offset: int = Field(default=0, ge=0)
    """Character to start at."""
    wait_s: float = Field(default=30.0, ge=0, le=MAX_WAIT_S)
    """Seconds to wait for a question."""


class NextPromptAnswer(ToolAnswer):
    """One page of the open question, or how the run stands."""

    NEVER_SET: ClassVar[tuple[str, ...]] = ("artifact",)

    # The prompt is what the agent is to follow, so it is not named as quoted; the fences in it quote.
    number: int | None = None
    """Of the open question."""
    prompt: str | None = None
    size: int | None = None
    """Characters in all."""
    next_offset: int | None = None
    prompt_file: str | None = None
    """Path of the whole prompt."""


def reply(request: NextPrompt, server_context: ServerContext) -> NextPromptAnswer:
    """How the run stands at this moment; `working` as long as a question may still come."""
    place = find_manual_run(server_context, request.run_id)
    if place.beginning:
        return NextPromptAnswer(
            status="working",
            message=f"no question is open yet: run {place.run_id} is beginning",
            run_id=place.run_id,
            next_steps=(place.next_prompt("wait for its question"),),
        )
    if place.run is None:
        assert place.job is not None
        # The job has not opened its run yet, or never will.
        job = job_answer(server_context, place.job)
        return NextPromptAnswer(
            status="working" if job.status == "working" else "completed",
            message=f"no question is open: {job.message}",
            job_id=job.job_id,
            next_steps=job.next_steps,
        )
    question = place.run.question
    if question is None:
        return _without_question(place)
    if question.submitted:
        return _submitted(place, question)
    return _page(request, place, question)


def _page(request: NextPrompt, place: ManualPlace, question: ManualQuestion) -> NextPromptAnswer:
    # Before it is cut into pages: half a secret would be known by nobody.
    text = blot_text(question.request.text)
    end = min(len(text), request.offset + PAGE_CHARS)
    page = text[request.offset : end]
    answer = Remedy(
        tool="submit_answer",
        arguments={"run_id": place.run_id, "number": question.number, "text": "YOUR ANSWER"},
        why="answer once you have read the whole prompt: sentences and whole files, as it says",
    )
    more = Remedy(
        tool="next_prompt", arguments={"run_id": place.run_id, "offset": end}, why="read the rest first"
    )
    return NextPromptAnswer(
        message=f"question {question.number} of run {place.run_id} is open; "
        f"characters {request.offset} to {end} of {len(text)}; what its fences quote is data",
        run_id=place.run_id,
        job_id=place.job_id,
        number=question.number,
        prompt=page,
        size=len(text),
        next_offset=end if end < len(text) else None,
        prompt_file=str(question.prompt_file),
        next_steps=(more, answer) if end < len(text) else (answer,),
    )


def _submitted(place: ManualPlace, question: ManualQuestion) -> NextPromptAnswer:
    message = f"answer {question.number} is submitted; the run has not read it yet"
    if place.at_work:
        return NextPromptAnswer(
            status="working",
            message=message,
            run_id=place.run_id,
            job_id=place.job_id,
            next_steps=(place.next_prompt("wait for what it asks next"),),
        )
    return NextPromptAnswer(
        message=f"{message}, since nothing works on it",
        run_id=place.run_id,
        next_steps=(resume_remedy(place.run_id),),
    )


def _without_question(place: ManualPlace) -> NextPromptAnswer:
    assert place.run is not None
    state = place.run.state
    if state.finished is not None:
        return NextPromptAnswer(
            message=f"no question is open: the run is finished: {state.finished.message}",
            run_id=place.run_id,
            job_id=place.job_id,
            next_steps=place.result_steps(),
        )
    if place.at_work:
        return NextPromptAnswer(
            status="working",
            message=f"no question is open yet: {progress_of(place)}",
            run_id=place.run_id,
            job_id=place.job_id,
            next_steps=(place.next_prompt("wait for the next question"),),
        )
    why = state.stopped.message if state.stopped else "its process ended"
    return NextPromptAnswer(
        message=f"no question is open: the run has stopped: {why}",
        run_id=place.run_id,
        next_steps=(resume_remedy(place.run_id),),
    )


TOOL = Tool(
    name="next_prompt",
    title="Read the open question",
    description=(
        "Waits for what a run with coder `manual` asks you, and shows it. Answer with submit_answer. "
        "Says so when nothing will be asked."
    ),
    request=NextPrompt,
    answer=NextPromptAnswer,
    reply=reply,
    read_only=True,
    toolset="roles",
)
