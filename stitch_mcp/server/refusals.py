"""Wrong arguments, told so that the next call is right."""

import difflib

from pydantic import ValidationError

from stitch_mcp.server.tool import Tool
from stitch_tools.errors import UsageError

_MOST = 5


def explain_arguments(tool: Tool, error: ValidationError) -> UsageError:
    """What is wrong with a call's arguments, with the nearest name for unknown ones."""
    known = list(tool.request.model_fields)
    parts: list[str] = []
    for problem in error.errors(include_url=False, include_context=False)[:_MOST]:
        where = ".".join(str(part) for part in problem["loc"])[:120]
        if problem["type"] == "extra_forbidden":
            near = difflib.get_close_matches(where, known, n=1, cutoff=0.5)
            parts.append(f"there is no argument `{where}`" + (f"; did you mean `{near[0]}`?" if near else ""))
        else:
            parts.append(f"`{where}`: {problem['msg'][:200]}")
    return UsageError("; ".join(parts), hint=f"arguments of {tool.name}: {', '.join(known)}")
