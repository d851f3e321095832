"""Explains wrong arguments, so that the next call is right."""

import difflib
from typing import cast

from pydantic import ValidationError

from stitch_mcp.server.tool import Tool
from stitch_tools.errors import UsageError

_MOST = 5


def explain_arguments(tool: Tool, error: ValidationError) -> UsageError:
    """What is wrong with a call's arguments, with the nearest name for unknown ones."""
    fields = list(tool.request.model_fields)
    parts: list[str] = []
    for problem in error.errors(include_url=False, include_context=False)[:_MOST]:
        where = ".".join(str(part) for part in problem["loc"])[:120]
        if problem["type"] == "extra_forbidden":
            near = difflib.get_close_matches(where, fields, n=1, cutoff=0.5)
            parts.append(f"there is no argument `{where}`" + (f"; did you mean `{near[0]}`?" if near else ""))
        else:
            parts.append(f"`{where}`: {problem['msg'][:200]}")
    return UsageError("; ".join(parts), hint=f"arguments of {tool.name}: {', '.join(fields)}")


def lone_surrogate(value: object) -> str | None:
    """Where decoded JSON has half of a surrogate pair, as `arguments.name`; None where nothing has.

    JSON can escape such a half, UTF-8 cannot carry it: no file, hash or process could be made of it.
    """
    left: list[tuple[str, object]] = [("", value)]
    while left:
        where, entry = left.pop()
        if isinstance(entry, str):
            if not _encodes(entry):
                return where
        elif isinstance(entry, dict):
            items = cast("dict[str, object]", entry)
            if not all(_encodes(name) for name in items):
                return f"{where}, a name in it" if where else "a name"
            left += [(f"{where}.{name}" if where else name, item) for name, item in items.items()]
        elif isinstance(entry, list):
            row = cast("list[object]", entry)
            left += [(f"{where}[{index}]", item) for index, item in enumerate(row)]
    return None


def explain_surrogate(where: str) -> str:
    """What is wrong with the text at `where`."""
    return (
        f"`{where[:120]}`: half of a surrogate pair (\\ud800 to \\udfff) stands alone, which is no text; "
        "send whole characters"
    )


def _encodes(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
