"""What is published of the tools: a table in the README, and all definitions as a JSON file.

`python -m stitch_mcp.server.published` writes both; a test compares them with the server.
"""

import json
from pathlib import Path
from typing import Any

from stitch_mcp.config import Config
from stitch_mcp.server.definitions import tool_definitions
from stitch_mcp.server.server_context import DEFAULT_TOOLSETS, TOOLSETS, ServerContext, Toolset

BEGIN = "<!-- tools: written by python -m stitch_mcp.server.published -->"
END = "<!-- end of tools -->"


def definitions(toolsets: tuple[Toolset, ...] = TOOLSETS) -> list[dict[str, Any]]:
    """The tools of a server that offers these sets, by default all, as they cross the wire."""
    server_context = ServerContext(config=Config(workspace=Path()), toolsets=toolsets)
    return [
        tool.model_dump(mode="json", by_alias=True, exclude_none=True)
        for tool in tool_definitions(server_context)
    ]


def tool_table() -> str:
    """The table of the README: the first sentence of each description."""
    rows = [f"| `{tool['name']}` | {_first_sentence(tool['description'])} |" for tool in definitions()]
    return "\n".join(["| tool | what it does |", "|---|---|", *rows])


def listed_texts() -> dict[str, str]:
    """What an agent is given by default, as compact JSON: `inputs` alone, and the `whole` list."""
    tools = definitions(DEFAULT_TOOLSETS)
    inputs = [{key: tool[key] for key in ("name", "description", "inputSchema")} for tool in tools]
    return {"inputs": _compact(inputs), "whole": _compact(tools)}


def sizes() -> dict[str, int]:
    """Characters of what an agent is given: inputs alone, and the whole list."""
    return {name: len(text) for name, text in listed_texts().items()}


def with_table(page: str) -> str:
    """The page with the table between its two marks."""
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{tool_table()}\n{END}{tail}"


def snapshot() -> str:
    """Text of the JSON file with all definitions."""
    return json.dumps(definitions(), indent=1, ensure_ascii=False) + "\n"


def _first_sentence(text: str) -> str:
    head, stop, _ = text.partition(". ")
    return f"{head}." if stop else text


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


if __name__ == "__main__":
    readme = Path("README.md")
    readme.write_text(with_table(readme.read_text(encoding="utf-8")), encoding="utf-8")
    Path("docs/schemas/mcp-tools.json").write_text(snapshot(), encoding="utf-8")
    print(sizes())
