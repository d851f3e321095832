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
from stitch_mcp.server.skills import INDEX, is_skill, read_skill_file, skills_index
from stitch_mcp.server.toolset import fitting
from stitch_planner.runs.run import read_state, started
from stitch_tools.errors import UsageError
from stitch_tools.models.remedy import Remedy
from stitch_tools.models.task import Contract, ReferenceFacts, Task

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
    on_gpu = Contract.default_for("cuda").model_dump(mode="json")
    lines = ["# Fields of a contract", ""]
    for name, default in defaults.items():
        row = rows[name]
        kind = " | ".join(row["enum"]) if "enum" in row else row.get("type", "")
        shown = json.dumps(default)
        if on_gpu[name] != default:
            shown += f", on a GPU {json.dumps(on_gpu[name])}"
        lines.append(f"- `{name}` ({kind}; default {shown}): {row.get('description', '')}")
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
    Fixed(INDEX, "skills", "Recipes for fast programs: names and uses", "application/json", skills_index),
)
SKELETON = "stitch://skeleton"
TEMPLATES = (
    ResourcePattern(
        "stitch://skeleton/{run_id}",
        "skeleton",
        "A program for a run's task that compiles: fill in its forward",
    ),
    ResourcePattern(f"{INDEX}/{{name}}", "skill", "A recipe's page"),
    ResourcePattern("skill://{name}/{path}", "skill-file", "A file of a recipe, for example SKILL.md"),
    ResourcePattern("stitch://run/{run_id}", "run", "Files of a run"),
    ResourcePattern("stitch://run/{run_id}/{+path}", "run-file", "A file of a run, for example events.jsonl"),
    ResourcePattern(
        "stitch://artifact/{id}", "artifact", "Evidence in full, or the files of a program or task"
    ),
    ResourcePattern("stitch://artifact/{id}/{+path}", "artifact-file", "A source file of a program or task"),
)
_URI = re.compile(r"stitch://(run|artifact)/([A-Za-z0-9_.-]+)(?:/(.+))?")


def _skeleton(server_context: ServerContext, uri: str) -> str:
    """The skeleton for the run that an address names; for the newest run where it names none.

    Raises:
        UsageError: there is no such run, or its reference was not analyzed.
    """
    from stitch_mcp.server.skeleton import skeleton

    workspace = server_context.workspace
    newest = workspace.run_ids()[-1:]
    run_id = uri.removeprefix(SKELETON).strip("/") or (newest[0] if newest else "")
    state = read_state(workspace.run_folder(run_id)) if run_id else None
    if state is None or state.reference is None:
        analyze = Remedy(
            tool="analyze_reference", arguments={"reference": "PATH.py"}, why="open a run for it"
        )
        what = f"run {run_id} has no analyzed reference" if run_id else "there is no run yet"
        raise UsageError(what, remedies=(analyze,))
    task = workspace.store.get_fact(started(state).task, Task)
    return skeleton(task, workspace.store.get_fact(state.reference.facts, ReferenceFacts))


def read_resource(server_context: ServerContext, uri: str) -> tuple[str, str]:
    """Mime type and text of a resource.

    Raises:
        UsageError: there is none of that address.
        StoreError: it cannot be read.
    """
    for fixed in FIXED:
        if uri == fixed.uri:
            return fixed.mime_type, _fixed_text(server_context, fixed)
    if is_skill(uri):
        return read_skill_file(uri)
    if uri == SKELETON or uri.startswith(f"{SKELETON}/"):
        return "text/x-c", _skeleton(server_context, uri)
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
    if is_skill(uri):
        return Artifact("page", read_skill_file(uri)[1])
    if uri == SKELETON or uri.startswith(f"{SKELETON}/"):
        return Artifact("skeleton", _skeleton(server_context, uri))
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
