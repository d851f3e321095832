"""What the user is asked before it is done: running foreign code without isolation, ending another's job.

Clients of protocol 2026-07-28 get the question in place of a result and make the call again with the answer;
older ones are asked while the call waits. A client that cannot ask gets a refusal that says how to allow it.
"""

from dataclasses import dataclass
from typing import Any, NoReturn

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import NoBackChannelError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from stitch_mcp.jobs.state import JobState
from stitch_mcp.server.server_context import ServerContext
from stitch_mcp.server.tool import Tool, ToolRequest
from stitch_mcp.server.tools.cancel_job import CancelJob
from stitch_tools.errors import UsageError

Context = ServerRequestContext[Any, Any]
# Accepting is the answer: there is nothing to fill in.
_FORM: dict[str, Any] = {"type": "object", "properties": {}}
_HOW_TO_ALLOW = "the user can allow it: start the server with --confirm allow, or set STITCH_CONFIRM=allow"


@dataclass(frozen=True)
class ConsentQuestion:
    """One thing to be confirmed."""

    key: str
    """Names the question in protocol and memory."""
    what: str
    """What would be done, as the start of a sentence."""
    instead: str
    """What else can be done, for whoever is refused."""
    once: bool = False
    """Whether one agreement holds as long as the server runs."""


def may_ask(tool: Tool, request: ToolRequest) -> bool:
    """Whether anything of such a call may have to be confirmed; known without looking."""
    return tool.runs_code or isinstance(request, CancelJob)


def question_of(server_context: ServerContext, tool: Tool, request: ToolRequest) -> ConsentQuestion | None:
    """What has to be confirmed before the call, None for nothing. Blocks for the time of a probe, once.

    Raises:
        UsageError: a job is named that does not exist.
        StoreError: its files cannot be read.
    """
    if server_context.config.confirm == "allow":
        return None
    if tool.runs_code and server_context.unsandboxed and "unsandboxed" not in server_context.agreed:
        what = (
            f"{tool.name} runs code from the workspace or from a model, and this machine has no file and "
            "network isolation for it: the code could read and change what this user can"
        )
        instead = "call inspect_environment for what isolation needs here"
        return ConsentQuestion("unsandboxed", what, instead, once=True)
    if isinstance(request, CancelJob):
        state = server_context.supervisor.view(request.job_id)
        if needs_consent(server_context, state):
            what = f"cancel_job ends {state.tool}, job {request.job_id}, which another server began"
            return ConsentQuestion(f"cancel-{request.job_id}", what, "get_job waits for its result")
    return None


def needs_consent(server_context: ServerContext, state: JobState) -> bool:
    """Whether ending the job is the user's to decide: another server began it, and it works."""
    if server_context.config.confirm == "allow" or state.done:
        return False
    return not server_context.supervisor.started_here(state.job_id)


async def confirmed(
    context: Context,
    params: types.CallToolRequestParams,
    server_context: ServerContext,
    question: ConsentQuestion,
) -> types.InputRequiredResult | None:
    """None where the user agrees; else what the client has to ask first.

    Raises:
        UsageError: it is forbidden, the user does not agree, or the client cannot ask.
    """
    # Before the client's abilities are asked: a refusal by the user's setting needs no dialogue.
    if server_context.config.confirm == "deny":
        origin = server_context.config.origin("confirm")
        raise UsageError(f"{question.what}. That is forbidden here ({origin})", hint=question.instead)
    if not _can_ask(context):
        _cannot(question)
    asked = types.ElicitRequestFormParams(message=f"{question.what}. Continue?", requested_schema=_FORM)
    if context.protocol_version in MODERN_PROTOCOL_VERSIONS:
        answer = (params.input_responses or {}).get(question.key)
        if answer is None:
            return types.InputRequiredResult(input_requests={question.key: types.ElicitRequest(params=asked)})
    else:
        try:
            answer = await context.session.elicit_form(asked.message, _FORM, context.request_id)
        except NoBackChannelError:
            _cannot(question)
    if not isinstance(answer, types.ElicitResult) or answer.action != "accept":
        raise UsageError(
            f"{question.what}. The user did not agree, nothing was done", hint=f"ask them; {question.instead}"
        )
    # Remembered for this server only: the next start asks again.
    if question.once:
        server_context.agreed.add(question.key)
    return None


def _cannot(question: ConsentQuestion) -> NoReturn:
    raise UsageError(
        f"{question.what}. It needs the user's consent, and this client cannot ask",
        hint=f"{_HOW_TO_ALLOW}; or {question.instead}",
    )


def _can_ask(context: Context) -> bool:
    declared = context.session.client_capabilities
    elicitation = declared.elicitation if declared else None
    # An empty object is how clients declared forms before there was anything else.
    return elicitation is not None and (elicitation.form is not None or elicitation.url is None)
