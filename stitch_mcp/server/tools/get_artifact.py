"""`get_artifact`: pages through evidence, sources and the files of a run."""

from typing import ClassVar
from urllib.parse import quote

from pydantic import Field

from stitch_mcp.server.artifacts import Artifact, find_artifact
from stitch_mcp.server.evidence_summary import summarized
from stitch_mcp.server.render import blot_text
from stitch_mcp.server.server_context import ServerContext
from stitch_mcp.server.tool import Tool, ToolAnswer, ToolRequest
from stitch_tools.models.remedy import Remedy

PAGE_CHARS = 6000
_WHOLE = "json"
"""The path of a fact as it is stored, where tables do not do."""
_ROW_CHARS = 4
"""Quotes and comma around a row of a JSON list."""


class GetArtifact(ToolRequest):
    """Arguments of get_artifact."""

    id: str
    """artifact, program_id, task_id, run_id, or a URI: stitch://skeleton, ..."""
    path: str = ""
    """File of a program, task or run; left out: their list. json: evidence whole."""
    offset: int = Field(default=0, ge=0)
    """Character (in a list of files: file) to start at."""


class ArtifactAnswer(ToolAnswer):
    """A page of text, or a list of files."""

    QUOTED: ClassVar[tuple[str, ...]] = ("files", "text")
    NEVER_SET: ClassVar[tuple[str, ...]] = ("job_id", "run_id", "artifact")

    kind: str | None = None
    files: tuple[str, ...] = ()
    text: str | None = None
    size: int | None = None
    """Characters or files in all."""
    next_offset: int | None = None


class OwnPage(ArtifactAnswer):
    """A page of this package's own text."""

    QUOTED: ClassVar[tuple[str, ...]] = ()


def reply(request: GetArtifact, server_context: ServerContext) -> ArtifactAnswer:
    """One page of an artifact."""
    from stitch_mcp.server.resources import find_resource

    if request.id.startswith("stitch://"):
        artifact = find_resource(
            server_context, f"{request.id}/{quote(request.path)}" if request.path else request.id
        )
    else:
        artifact = find_artifact(server_context, request.id, request.path)
        if artifact.kind == "fact" and request.path != _WHOLE:
            artifact = summarized(artifact)
    if artifact.text is None:
        return _listed(request, artifact)
    # Before it is cut into pages: half a secret would be known by nobody.
    text = blot_text(artifact.text)
    end = min(len(text), request.offset + PAGE_CHARS)
    more = end < len(text)
    kind = OwnPage if artifact.kind == "page" else ArtifactAnswer
    return kind(
        message=f"characters {request.offset} to {end} of {len(text)}",
        kind=artifact.kind,
        text=text[request.offset : end],
        size=len(text),
        next_offset=end if more else None,
        next_steps=_page_at(request, end) if more else (),
    )


def _listed(request: GetArtifact, artifact: Artifact) -> ArtifactAnswer:
    """One page of a list of files."""
    end, left = request.offset, PAGE_CHARS
    for row in artifact.files[request.offset :]:
        # Pages are counted in characters of the answer, since file names may be long.
        left -= len(row) + _ROW_CHARS
        # At least one row, or a very long name would never be passed.
        if left < 0 and end > request.offset:
            break
        end += 1
    more = end < len(artifact.files)
    return ArtifactAnswer(
        message=f"{artifact.kind} {request.id}" + (f", files {request.offset} to {end}" if more else ""),
        kind=artifact.kind,
        files=artifact.files[request.offset : end],
        size=len(artifact.files),
        next_offset=end if more else None,
        next_steps=_page_at(request, end) if more else (),
    )


def _page_at(request: GetArtifact, offset: int) -> tuple[Remedy, ...]:
    arguments = request.model_dump(exclude_defaults=True) | {"offset": offset}
    return (Remedy(tool="get_artifact", arguments=arguments, why="the next page"),)


TOOL = Tool(
    name="get_artifact",
    title="Read an artifact",
    description=(
        "Reads an item by its id from a result: evidence as tables, a program's or task's sources, a run's "
        "log and files. Pages of 6000 characters."
    ),
    request=GetArtifact,
    answer=ArtifactAnswer,
    reply=reply,
    read_only=True,
    toolset="read",
)
