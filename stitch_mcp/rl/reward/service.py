"""The reward over HTTP: `POST /verify` takes a submission with its task, and answers with the reward.

The reward is computed here from what the judge measured; nothing in a request or in a program's output is
read as a reward. A request that no judge is free for is refused at once (429 with Retry-After): a queue would
let a trainer wait for rewards of a policy that is no longer its own.
"""

import asyncio
import math
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from stitch_mcp.backends.pool import PoolBusyError
from stitch_mcp.http_app import HttpOptions, TokenGuard, host_names
from stitch_mcp.rl.reward.facts import RewardPreset
from stitch_mcp.rl.reward.judge_workers import JudgeOrder, JudgePool
from stitch_mcp.rl.reward.presets import PRESETS, all_points
from stitch_mcp.rl.reward.submissions import checked_files
from stitch_mcp.rl.reward.verification import VerifyRequest, verify_hung, verify_judged
from stitch_planner.agents.answers import UnusableAnswerError
from stitch_tools.errors import StitchError, UsageError

MAX_BODY_BYTES = 8 << 20
TOKEN_VARIABLE = "STITCH_RL_TOKEN"
_BUSY, _CALLERS_FAULT = 429, ("usage", "task")
_RETRY_AFTER_FAULT_S = 30
_MOST_ERRORS = 5


class VerifyService:
    """The endpoints over a pool of judges."""

    def __init__(self, pool: JudgePool, root: Path, *, allow_relaxed: bool = False) -> None:
        """Serves references of the workspace at `root`, and those that a request brings along."""
        self._pool, self._root, self._allow_relaxed = pool, root.resolve(), allow_relaxed

    async def verify(self, request: Request) -> Response:
        """`POST /verify`: the reward of a submission."""
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            # A page in a browser cannot send this type to another site unasked.
            return _refusal(415, "send application/json")
        body = await _read(request)
        if body is None:
            return _refusal(413, f"a request has at most {MAX_BODY_BYTES >> 20} MiB")
        try:
            asked = VerifyRequest.model_validate_json(body)
            asked = self._within_reach(asked)
        except ValidationError as error:
            rows = error.errors(include_url=False, include_input=False, include_context=False)
            told = [f"{'.'.join(map(str, row['loc']))}: {row['msg']}" for row in rows[:_MOST_ERRORS]]
            return _refusal(422, "; ".join(told))
        except UsageError as error:
            return _refusal(400, error.message, error.hint)
        return await self._judged(asked)

    async def _judged(self, asked: VerifyRequest) -> Response:
        order = JudgeOrder(submission=asked.submission, task=asked.task)
        try:
            answer = self._pool.submit(order, may_wait=False)
        except PoolBusyError as error:
            return _refusal(_BUSY, error.message, error.hint, retry_after_s=error.retry_after_s)
        except StitchError as error:
            return _refusal(503, error.message, error.hint, retry_after_s=_RETRY_AFTER_FAULT_S)
        try:
            attempted = await asyncio.wrap_future(answer)
        except Exception as error:  # the outermost frame of a request: a fault of our own code
            return _refusal(503, f"the judge failed: {type(error).__name__}", retry_after_s=1)
        failure = attempted.failure
        if failure is not None and failure.code in _CALLERS_FAULT:
            return _refusal(400, failure.message, failure.hint)
        if attempted.outcome == "cancelled":
            return JSONResponse(verify_hung(asked).model_dump(mode="json"))
        if attempted.answer is None:
            told = (failure.message, failure.hint) if failure else (attempted.message, "")
            return _refusal(503, *told, retry_after_s=_RETRY_AFTER_FAULT_S)
        return JSONResponse(verify_judged(attempted.answer, asked.preset).model_dump(mode="json"))

    async def health(self, request: Request) -> Response:
        """`GET /health`: what the judges do."""
        del request
        status = self._pool.status()
        counts = {
            "slots": len(status.workers),
            "at_work": status.busy,
            "builds_waiting": status.builds_waiting,
        }
        rows = [row.model_dump(mode="json") for row in status.workers]
        return JSONResponse({**counts, "workers": rows})

    async def presets(self, request: Request) -> Response:
        """`GET /presets`: the presets with their range, floor and oracle."""
        del request
        return JSONResponse(preset_table())

    def _within_reach(self, asked: VerifyRequest) -> VerifyRequest:
        """The request with an absolute reference: a judge's process may have another working directory.

        Raises:
            UsageError: a loosened contract that the server does not allow, or a file outside the workspace.
        """
        task = asked.task
        if task.allow_relaxed and not self._allow_relaxed:
            raise UsageError("this server loosens no contract", hint="start it with --allow-relaxed")
        if task.files:
            try:
                checked_files(task.files)
            except UnusableAnswerError as error:
                raise UsageError(str(error), hint="give the file another name") from error
            for name in (task.reference, *_named_by_task_files(task.files)):
                if _leaves_folder(name):
                    raise UsageError(f"{name[:200]!r} is none of the task's files", hint="send it in `files`")
            return asked
        head, colon, tail = task.reference.rpartition(":")
        plain, entry = (head, f":{tail}") if colon and tail.isidentifier() else (task.reference, "")
        is_path = plain != "" and "\0" not in plain
        path = (self._root / (plain if is_path else ".")).resolve()
        if not is_path or not path.is_relative_to(self._root):
            raise UsageError(
                f"{plain[:200]!r} is no file of the workspace", hint="send the reference's sources as `files`"
            )
        placed = task.model_copy(update={"reference": f"{path}{entry}"})
        return asked.model_copy(update={"task": placed})


def build_service(service: VerifyService, options: HttpOptions) -> ASGIApp:
    """The application: the endpoints behind a token and a check of the Host header.

    Raises:
        UsageError: there is no token, or too short a one.
    """
    if len(options.token) < 16:
        raise UsageError(
            "a reward service needs a token", hint=f"set {TOKEN_VARIABLE} to 16 characters or more"
        )
    names = [name.strip("[]") for name in host_names(options)]
    app = Starlette(
        routes=[
            Route("/verify", service.verify, methods=["POST"]),
            Route("/health", service.health),
            Route("/presets", service.presets),
        ],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=names, www_redirect=False)],
    )
    return TokenGuard(app, options.token)


def preset_table() -> dict[str, object]:
    """The presets and what known kinds of programs get under each, for people and programs."""
    presets: tuple[RewardPreset, ...] = PRESETS
    return {
        "presets": [row.model_dump(mode="json") for row in presets],
        "points": [row.model_dump(mode="json") for row in all_points()],
    }


def _named_by_task_files(files: Mapping[str, str]) -> Iterator[str]:
    """The paths that the task files among `files` name: a reference may read what they list."""
    for text in (text for path, text in files.items() if path.endswith(".toml")):
        try:
            data = tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError):
            continue  # the judge says what is wrong with it
        for key in ("reference", "files", "search_path"):
            value: object = data.get(key)
            for name in value if isinstance(value, list) else [value]:  # pyright: ignore[reportUnknownVariableType] # TOML of a caller
                if isinstance(name, str):
                    yield name


def _leaves_folder(name: str) -> bool:
    return name.startswith(("/", "~")) or "\0" in name or ".." in PurePosixPath(name).parts


async def _read(request: Request) -> bytes | None:
    """The body; None where it is larger than allowed, whatever its headers say."""
    parts: list[bytes] = []
    size = 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > MAX_BODY_BYTES:
                return None
            parts.append(part)
    except ClientDisconnect:
        return b""
    return b"".join(parts)


def _refusal(status: int, message: str, hint: str = "", *, retry_after_s: float | None = None) -> Response:
    headers = {} if retry_after_s is None else {"Retry-After": str(math.ceil(retry_after_s))}
    return JSONResponse({"error": message, "hint": hint}, status_code=status, headers=headers)
