"""The server object of the SDK: our tools, resources and prompts behind the protocol's methods.

The SDK's low-level server is used on purpose: schemas, refusals and sizes are ours (docs/decisions/0016).
"""

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import anyio.to_thread
import mcp_types as types
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from stitch_mcp import __version__
from stitch_mcp.jobs.state import JobState
from stitch_mcp.server import core_tasks, skills
from stitch_mcp.server.completions import MOST, complete
from stitch_mcp.server.confirmation import confirmed, may_ask, needs_consent, question_of
from stitch_mcp.server.definitions import (
    prompt_definitions,
    resource_definitions,
    template_definitions,
    tool_definitions,
)
from stitch_mcp.server.job_answers import as_argument, failure_words, job_answer, tool_answer
from stitch_mcp.server.prompts import prompt_text
from stitch_mcp.server.refusals import explain_arguments, explain_surrogate, lone_surrogate
from stitch_mcp.server.render import as_text, blot_text, render
from stitch_mcp.server.request_inputs import job_request
from stitch_mcp.server.resources import read_resource
from stitch_mcp.server.schema import tool_schema
from stitch_mcp.server.server_context import ServerContext
from stitch_mcp.server.tasks import (
    EXTENSION,
    HANDLE_AFTER_S,
    TaskParams,
    UpdateParams,
    created,
    need_tasks,
    takes_tasks,
    task_view,
)
from stitch_mcp.server.tool import JobAnswer, SlowRequest, Tool, ToolAnswer, ToolRequest
from stitch_mcp.server.tool_list import find_tool
from stitch_mcp.server.tools.get_job import GetJob
from stitch_mcp.server.toolset import fitting, fitting_answer, instructions, offered, offered_prompts
from stitch_tools.errors import StitchError, StoreError, UsageError, WorkerError

Context = ServerRequestContext[Any, Any]
_SHORTEST_POLL_S, _LONGEST_POLL_S = 0.02, 0.1
_POLL_SHARE = 0.05
"""Of the time that was waited already: so much longer a call may take than its job."""
_SAY_EVERY_S = 1.0
_REPLY_POLL_S = 0.25
"""Each look reads a run's log."""
_LOG = logging.getLogger(__name__)
_OUR_FAULT = "this is a fault of stitch-mcp; the server's log (stderr) has the traceback"


def build_server(server_context: ServerContext) -> Server[Any]:
    """The server over one workspace; its jobs end with it unless the room keeps them."""
    served = _Served(server_context)
    # Made here, before requests come from several threads.
    supervisor, docs = server_context.supervisor, server_context.docs

    @asynccontextmanager
    async def lifespan(_: Server[Any]) -> AsyncGenerator[ServerContext]:
        try:
            yield server_context
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(supervisor.close)
                await anyio.to_thread.run_sync(docs.close)

    server: Server[Any] = _ServerWithTasks(
        "stitch-mcp",
        version=__version__,
        title="StitchCUDA (stitch-mcp)",
        instructions=instructions(server_context),
        lifespan=lifespan,
        get_tool_input_schema=served.input_schema,
        on_list_tools=served.list_tools,
        on_list_resources=served.list_resources,
        on_list_resource_templates=served.list_templates,
        on_read_resource=served.read_resource,
        on_list_prompts=served.list_prompts,
        on_get_prompt=served.get_prompt,
        on_completion=served.complete,
    )
    # A call may also be answered with a task.
    server.add_request_handler("tools/call", types.CallToolRequestParams, served.call_tool)
    server.add_request_handler("tasks/get", TaskParams, served.get_task)
    server.add_request_handler("tasks/cancel", TaskParams, served.cancel_task)
    server.add_request_handler("tasks/update", UpdateParams, served.update_task)
    server.add_request_handler("tasks/result", TaskParams, served.task_result)
    server.add_request_handler("tasks/list", types.PaginatedRequestParams, served.list_tasks)
    server.add_request_handler("skills/list", types.PaginatedRequestParams, served.list_skills)
    server.add_request_handler("skills/get", skills.GetSkillParams, served.get_skill)
    server.middleware += [_tell_failures, _refuse_surrogates, served.answer_with_task]
    server.extensions |= {EXTENSION: {}, skills.EXTENSION: {}}
    return server


class _ServerWithTasks(Server[Any]):
    """The SDK's server, which also announces core tasks."""

    def get_capabilities(self, *given: Any, **named: Any) -> types.ServerCapabilities:
        capabilities = super().get_capabilities(*given, **named)
        if named.get("protocol_version") in MODERN_PROTOCOL_VERSIONS:
            return capabilities
        return capabilities.model_copy(update={"tasks": core_tasks.CAPABILITY})


class _Served:
    """The handlers of one server."""

    def __init__(self, server_context: ServerContext) -> None:
        self._server_context = server_context

    def input_schema(self, name: str) -> dict[str, Any] | None:
        return tool_schema(find_tool(name).request) if name in offered(self._server_context) else None

    async def list_tools(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        del params
        definitions = tool_definitions(self._server_context, with_tasks=core_tasks.knows_core_tasks(context))
        return types.ListToolsResult(tools=definitions)

    async def list_resources(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        del context, params
        return types.ListResourcesResult(resources=resource_definitions())

    async def list_templates(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        del context, params
        return types.ListResourceTemplatesResult(resource_templates=template_definitions())

    async def read_resource(
        self, context: Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        del context
        try:
            mime, text = await anyio.to_thread.run_sync(read_resource, self._server_context, params.uri)
        except StitchError as error:
            message = failure_words(error.message, error.hint)
            raise MCPError(types.INVALID_PARAMS, message, {"uri": params.uri}) from error
        contents = types.TextResourceContents(uri=params.uri, mime_type=mime, text=blot_text(text))
        return types.ReadResourceResult(contents=[contents])

    async def list_skills(self, context: Context, params: types.PaginatedRequestParams) -> dict[str, Any]:
        del context, params
        return await anyio.to_thread.run_sync(skills.list_skills)

    async def get_skill(self, context: Context, params: skills.GetSkillParams) -> dict[str, Any]:
        del context
        try:
            return await anyio.to_thread.run_sync(skills.get_skill, params.uri)
        except StitchError as error:
            raise MCPError(types.INVALID_PARAMS, failure_words(error.message, error.hint)) from error

    async def list_prompts(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListPromptsResult:
        del context, params
        return types.ListPromptsResult(prompts=prompt_definitions(self._server_context))

    async def get_prompt(
        self, context: Context, params: types.GetPromptRequestParams
    ) -> types.GetPromptResult:
        del context
        try:
            _refuse_unoffered(self._server_context, params.name)
            prompt, text = prompt_text(params.name, params.arguments or {})
        except StitchError as error:
            failure = failure_words(error.message, error.hint)
            raise MCPError(types.INVALID_PARAMS, failure) from error
        message = types.PromptMessage(role="user", content=types.TextContent(text=text))
        return types.GetPromptResult(description=prompt.description, messages=[message])

    async def complete(self, context: Context, params: types.CompleteRequestParams) -> types.CompleteResult:
        del context
        values = await anyio.to_thread.run_sync(
            complete, self._server_context, params.argument.name, params.argument.value
        )
        shown = types.Completion(values=values[:MOST], total=len(values), has_more=len(values) > MOST)
        return types.CompleteResult(completion=shown)

    async def answer_with_task(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """In front of all handlers: the task of a call that asks for one (protocol 2025-11-25)."""
        if ctx.method == "initialize":
            return core_tasks.declared(await call_next(ctx))
        if not core_tasks.asks_for_task(ctx):
            return await call_next(ctx)
        params = types.CallToolRequestParams.model_validate(ctx.params, by_name=False)
        tool = self._tool(params.name)
        if tool.work is None:
            raise MCPError(types.METHOD_NOT_FOUND, f"{tool.name} answers at once, without a task")
        try:
            request = _request(tool, params)
            await self._consent(ctx, params, tool, request)
            assert isinstance(request, SlowRequest)
            return core_tasks.created(
                await anyio.to_thread.run_sync(_start, self._server_context, tool, request)
            )
        except StitchError as error:
            response = fitting(
                self._server_context, failure_words(error.message, error.hint_for(as_argument(tool)))
            )
            raise MCPError(types.INVALID_PARAMS, blot_text(response)) from error

    async def task_result(self, context: Context, params: TaskParams) -> dict[str, Any]:
        _need_core_tasks(context)
        state = await self._wait(context, await self._job(params.task_id), float("inf"))
        answer = await anyio.to_thread.run_sync(tool_answer, self._server_context, state)
        return core_tasks.related(result(self._server_context, answer), state)

    async def list_tasks(self, context: Context, params: types.PaginatedRequestParams) -> dict[str, Any]:
        del params
        _need_core_tasks(context)
        states = await anyio.to_thread.run_sync(_recent, self._server_context)
        return {"tasks": [core_tasks.view(state) for state in states]}

    async def get_task(self, context: Context, params: TaskParams) -> dict[str, Any]:
        if core_tasks.knows_core_tasks(context):
            return core_tasks.view(await self._job(params.task_id))
        need_tasks(context)
        state = await self._job(params.task_id)
        ended = state.status in ("completed", "failed")
        answer = await anyio.to_thread.run_sync(tool_answer, self._server_context, state) if ended else None
        return task_view(state, result(self._server_context, answer) if answer else None)

    async def cancel_task(self, context: Context, params: TaskParams) -> types.EmptyResult | dict[str, Any]:
        core = core_tasks.knows_core_tasks(context)
        if not core:
            need_tasks(context)
        state = await self._job(params.task_id)
        if core and state.done:
            raise MCPError(types.INVALID_PARAMS, f"task {params.task_id} is over: {state.status}")
        if needs_consent(self._server_context, state):
            message = f"job {params.task_id} was started by another server; cancel_job asks the user about it"
            raise MCPError(types.INVALID_PARAMS, message)
        state = await anyio.to_thread.run_sync(self._server_context.supervisor.cancel, params.task_id)
        return core_tasks.view(state) if core else types.EmptyResult()

    async def update_task(self, context: Context, params: UpdateParams) -> types.EmptyResult:
        need_tasks(context)
        await self._job(params.task_id)
        return types.EmptyResult()

    async def _job(self, job_id: str) -> JobState:
        try:
            return await anyio.to_thread.run_sync(self._server_context.supervisor.view, job_id)
        except StitchError as error:
            raise MCPError(types.INVALID_PARAMS, error.message) from error

    async def call_tool(
        self, context: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult | dict[str, Any]:
        tool = self._tool(params.name)
        try:
            request = _request(tool, params)
            if asked := await self._consent(context, params, tool, request):
                return asked
            answer = await self._answer(context, tool, request)
        except StitchError as error:
            return refusal(self._server_context, tool, error)
        except (
            Exception
        ) as error:  # The boundary to the client: a fault of ours is reported, and the server keeps running.
            _LOG.exception("%s failed", tool.name)
            fault = WorkerError(f"{type(error).__name__} in {tool.name}", hint=_OUR_FAULT)
            return refusal(self._server_context, tool, fault)
        if isinstance(answer, JobState):
            return created(answer)
        return result(
            self._server_context, answer, detailed=getattr(request, "detail", "concise") == "detailed"
        )

    def _tool(self, name: str) -> Tool:
        if name not in offered(self._server_context):
            names = ", ".join(offered(self._server_context))
            raise MCPError(types.INVALID_PARAMS, f"there is no tool {name[:60]!r}; tools: {names}")
        return find_tool(name)

    async def _consent(
        self, context: Context, params: types.CallToolRequestParams, tool: Tool, request: ToolRequest
    ) -> types.InputRequiredResult | None:
        """None where the call may be answered; else what the client has to ask first."""
        if not may_ask(tool, request):
            return None  # A thread costs more than such a call.
        question = await anyio.to_thread.run_sync(question_of, self._server_context, tool, request)
        return await confirmed(context, params, self._server_context, question) if question else None

    async def _answer(self, context: Context, tool: Tool, request: ToolRequest) -> ToolAnswer | JobState:
        """The tool's answer; the state of a job that is still running, for a client with tasks."""
        server_context = self._server_context
        if isinstance(request, GetJob):
            answer = await anyio.to_thread.run_sync(_look, server_context, request)
            if isinstance(answer, JobAnswer):
                return answer
            state = await self._wait(context, answer, request.wait_s)
            return await anyio.to_thread.run_sync(job_answer, server_context, state)
        if tool.reply is not None:
            return await self._reply(tool.reply, request)
        assert isinstance(request, SlowRequest)
        try:
            state = await anyio.to_thread.run_sync(_start, server_context, tool, request)
        except StoreError:
            # A workspace that cannot be written has no jobs; some tools can answer without one.
            if tool.without_job is None:
                raise
            return await anyio.to_thread.run_sync(tool.without_job, request, server_context)
        tasks = takes_tasks(context)
        wait_s = request.job_wait_s
        state = await self._wait(context, state, min(wait_s, HANDLE_AFTER_S) if tasks else wait_s)
        if tasks and not state.done:
            return state
        return await anyio.to_thread.run_sync(tool_answer, server_context, state)

    async def _reply(
        self, reply: Callable[[Any, ServerContext], ToolAnswer], request: ToolRequest
    ) -> ToolAnswer:
        """The tool's answer; one that says `working` is waited on as long as the request allows."""
        deadline = anyio.current_time() + getattr(request, "wait_s", 0.0)
        while True:
            answer = await anyio.to_thread.run_sync(reply, request, self._server_context)
            if answer.status != "working" or anyio.current_time() >= deadline:
                return answer
            # Polled, since what it waits for can be another process's files.
            await anyio.sleep(_REPLY_POLL_S)

    async def _wait(self, context: Context, state: JobState, wait_s: float) -> JobState:
        """The job's state at its end or after `wait_s` seconds; forwards its progress meanwhile."""
        begin = anyio.current_time()
        deadline = begin + wait_s
        sent, sent_at = 0, float("-inf")
        while not state.done and (left := deadline - anyio.current_time()) > 0:
            if state.sentences > sent and anyio.current_time() - sent_at >= _SAY_EVERY_S:
                sent, sent_at = state.sentences, anyio.current_time()
                await context.session.report_progress(sent, message=blot_text(state.progress))
            # A share of the time so far: short jobs are answered at once, long ones cost few looks.
            pause = _POLL_SHARE * (anyio.current_time() - begin)
            # Polled, since another server's job can only be seen by its files.
            await anyio.sleep(min(max(pause, _SHORTEST_POLL_S), _LONGEST_POLL_S, left))
            state = await anyio.to_thread.run_sync(self._server_context.supervisor.view, state.job_id)
        return state


async def _tell_failures(ctx: Context, call_next: CallNext) -> HandlerResult:
    """In front of all handlers: a failure is reported in our words, without secrets or a traceback."""
    try:
        return await call_next(ctx)
    except (MCPError, ValidationError):
        raise  # The SDK reports these errors itself, with the right code.
    except StitchError as error:
        message = failure_words(error.message, error.hint)
        raise MCPError(types.INVALID_PARAMS, blot_text(message)) from error
    except Exception as error:  # The boundary to the client, as in `call_tool`.
        _LOG.exception("%s failed", ctx.method)
        message = f"{type(error).__name__} in {ctx.method}: {_OUR_FAULT}"
        raise MCPError(types.INTERNAL_ERROR, message) from error


async def _refuse_surrogates(ctx: Context, call_next: CallNext) -> HandlerResult:
    """In front of all handlers: no text comes in that could not go out again."""
    # A notification has no response, so its error can only be dropped.
    if ctx.request_id is not None and (where := lone_surrogate(ctx.params)) is not None:
        raise MCPError(types.INVALID_PARAMS, explain_surrogate(where))
    return await call_next(ctx)


def _request(tool: Tool, params: types.CallToolRequestParams) -> ToolRequest:
    """The call's arguments.

    Raises:
        UsageError: they do not fit.
    """
    try:
        return tool.request.model_validate(params.arguments or {})
    except ValidationError as error:
        raise explain_arguments(tool, error) from error


def _recent(server_context: ServerContext) -> list[JobState]:
    """States of the newest jobs, without those that cannot be read, such as another version's."""
    jobs: list[JobState] = []
    for job_id in server_context.supervisor.recent():
        with suppress(StitchError):
            jobs.append(server_context.supervisor.view(job_id))
    return jobs


def _need_core_tasks(context: Context) -> None:
    if not core_tasks.knows_core_tasks(context):
        raise MCPError(types.METHOD_NOT_FOUND, f"tasks of protocol {core_tasks.VERSION} alone have it")


def _start(server_context: ServerContext, tool: Tool, request: SlowRequest) -> JobState:
    server_context.refuse_links()
    needed = request.needs_tool
    if needed is not None and needed not in offered(server_context):
        raise UsageError(
            f"the caller has to answer this run with {needed}, which this server does not offer",
            hint="the user can start it with `serve --toolsets steps,solve,roles`",
        )
    job = job_request(server_context, tool, request)
    reuse = tool.reuse and (tool.reuse_in_run or job.subject.run_id is None)
    rerun = getattr(request, "rerun", False) or not reuse
    return server_context.supervisor.start(job, rerun=rerun, warm=tool.warm, timed=tool.timed)


def _look(server_context: ServerContext, request: GetJob) -> JobAnswer | JobState:
    """The answer where there is nothing to wait for, in one turn of a thread; else the job's state."""
    state = server_context.supervisor.view(request.job_id)
    return job_answer(server_context, state) if state.done or not request.wait_s else state


def _refuse_unoffered(server_context: ServerContext, prompt: str) -> None:
    """Raise a UsageError where a prompt tells to call tools that this server does not offer."""
    names = [item.name for item in offered_prompts(server_context)]
    if prompt not in names:
        raise UsageError(f"there is no prompt {prompt[:60]!r} here", hint=", ".join(names) or "there is none")


def result(
    server_context: ServerContext, answer: ToolAnswer, *, detailed: bool = False, own_words: bool = False
) -> types.CallToolResult:
    """The answer as the protocol carries it: structured facts, and the same as a short text for readers."""
    fields = render(fitting_answer(server_context, answer), detailed=detailed, own_words=own_words)
    content: list[types.ContentBlock] = [types.TextContent(text=as_text(fields))]
    if answer.artifact is not None:
        content.append(
            types.ResourceLink(
                uri=f"stitch://artifact/{answer.artifact}",
                name=answer.artifact[:16],
                mime_type="application/json",
            )
        )
    # Looking at a failed job is no failure.
    failed = answer.status == "failed" and not isinstance(answer, JobAnswer)
    return types.CallToolResult(content=content, structured_content=fields, is_error=failed)


def refusal(server_context: ServerContext, tool: Tool, error: StitchError) -> types.CallToolResult:
    """A failure as a result that a model can act on."""
    message = fitting(server_context, failure_words(error.message, error.hint_for(as_argument(tool))))
    failed = tool.answer(status="failed", message=message, next_steps=error.remedies)
    answer = result(server_context, failed, own_words=True)
    return answer.model_copy(update={"is_error": True})
