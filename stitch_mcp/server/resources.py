"""Resources: a guide, the native ABI, the contract's fields, runs and artifacts by template."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from typing import Any
from urllib.parse import unquote

from stitch_mcp.server.artifacts import Artifact, find_artifact
from stitch_mcp.server.schema import tool_schema
from stitch_mcp.server.server_context import ServerContext
from stitch_mcp.server.toolset import fitting
from stitch_tools.errors import UsageError
from stitch_tools.models.task import Contract

MAX_CHARS = 200_000


@dataclass(frozen=True)
class Fixed:
    """A resource that is the same for every workspace."""

    uri: str
    name: str
    description: str
    mime_type: str
    read: Callable[[], str]


@dataclass(frozen=True)
class ResourcePattern:
    """Resources of one workspace."""

    uri: str
    name: str
    description: str


def _guide() -> str:
    return files("stitch_mcp.server").joinpath("texts", "guide.md").read_text(encoding="utf-8")


def _abi() -> str:
    header = files("stitch_tools").joinpath("native", "include", "stitch", "abi.h")
    return header.read_text(encoding="utf-8")


def _contract() -> str:
    rows: dict[str, Any] = tool_schema(Contract)["properties"]
    defaults = Contract().model_dump(mode="json", exclude={"relaxed", "sources", "uses_rng"})
    lines = ["# Fields of a contract", ""]
    for name, default in defaults.items():
        row = rows[name]
        kind = " | ".join(row["enum"]) if "enum" in row else row.get("type", "")
        lines.append(f"- `{name}` ({kind}; default {json.dumps(default)}): {row.get('description', '')}")
    lines += [
        "",
        "`rtol` and `atol` may be set directly. What asks for less needs `allow_relaxed` and marks results.",
    ]
    return "\n".join(lines)


FIXED = (
    Fixed(
        "stitch://guide",
        "guide",
        "How to get from a PyTorch module to a certificate",
        "text/markdown",
        _guide,
    ),
    Fixed("stitch://abi", "abi", "The C header that a native program implements", "text/x-c", _abi),
    Fixed(
        "stitch://contract", "contract", "What counts as equal, field by field", "text/markdown", _contract
    ),
)
TEMPLATES = (
    ResourcePattern("stitch://run/{run_id}", "run", "Files of a run"),
    ResourcePattern("stitch://run/{run_id}/{+path}", "run-file", "A file of a run, for example events.jsonl"),
    ResourcePattern(
        "stitch://artifact/{id}", "artifact", "Evidence in full, or the files of a program or task"
    ),
    ResourcePattern("stitch://artifact/{id}/{+path}", "artifact-file", "A source file of a program or task"),
)
_URI = re.compile(r"stitch://(run|artifact)/([A-Za-z0-9_.-]+)(?:/(.+))?")


def read_resource(server_context: ServerContext, uri: str) -> tuple[str, str]:
    """Mime type and text of a resource.

    Raises:
        UsageError: there is none of that address.
        StoreError: it cannot be read.
    """
    for fixed in FIXED:
        if uri == fixed.uri:
            return fixed.mime_type, _fixed_text(server_context, fixed)
    name, path = _named(server_context, uri)
    return _shown(find_artifact(server_context, name, path), path)


def find_resource(server_context: ServerContext, uri: str) -> Artifact:
    """What `read_resource` reads, uncut: many clients give their models tools alone.

    Raises:
        UsageError: there is none of that address.
        StoreError: it cannot be read.
    """
    for fixed in FIXED:
        if uri == fixed.uri:
            return Artifact("page", _fixed_text(server_context, fixed))
    return find_artifact(server_context, *_named(server_context, uri))


def _fixed_text(server_context: ServerContext, fixed: Fixed) -> str:
    text = fixed.read()
    return fitting(server_context, text) if fixed.mime_type == "text/markdown" else text


def _named(server_context: ServerContext, uri: str) -> tuple[str, str]:
    """Id and path of a run's or artifact's address."""
    match = _URI.fullmatch(uri)
    if match is None:
        raise UsageError(
            f"there is no resource {uri[:120]!r}", hint="resources/templates/list shows what there is"
        )
    kind, name, path = match.group(1), match.group(2), unquote(match.group(3) or "")
    if (name in server_context.workspace.run_ids()) is not (kind == "run"):
        raise UsageError(f"there is no {kind} {name[:60]!r}", hint="ids come from earlier results")
    return name, path


def _shown(artifact: Artifact, path: str) -> tuple[str, str]:
    if artifact.text is None:
        return "application/json", json.dumps({"kind": artifact.kind, "files": artifact.files})
    cut = "\n... (cut; get_artifact pages through the whole)" if len(artifact.text) > MAX_CHARS else ""
    mime = "application/json" if artifact.kind == "fact" or path.endswith(".json") else "text/plain"
    return mime, artifact.text[:MAX_CHARS] + cut
