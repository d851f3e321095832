"""JSON schemas as small as they can be: no generated titles, no nulls, no defaults, no references."""

from functools import cache
from typing import Any

from pydantic import BaseModel

Schema = dict[str, Any]


@cache
def tool_schema(model: type[BaseModel], *, output: bool = False) -> Schema:
    """The schema of a tool's arguments or answer, made once: whoever changes it changes it for all.

    Args:
        model: the pydantic model.
        output: for an answer: nothing is required, since unknown fields are left out.
    """
    whole = model.model_json_schema(mode="validation")
    definitions: Schema = whole.pop("$defs", {})
    schema = _small(whole, definitions)
    schema.pop("description", None)
    if output:
        # Every answer has `status`, and leaves out what is unknown: saying so in each tool tells little.
        schema.pop("required", None)
        # The same in every tool; the guide explains each.
        schema["properties"]["status"].pop("enum", None)
        for name in getattr(model, "NEVER_SET", ()):
            del schema["properties"][name]
        _open(schema)
    return schema


def _open(node: Any) -> None:
    """Allow fields beyond the schema, which later versions add; descriptions explain a list's entries."""
    if not isinstance(node, dict):
        return
    given: Schema = node  # pyright: ignore[reportUnknownVariableType] # JSON
    if isinstance(given.get("additionalProperties"), bool):
        del given["additionalProperties"]
    # What a list holds is told by its description: a tenth of all definitions would be about it.
    given.pop("items", None)
    for value in given.values():
        _open(value)


def _small(node: Any, definitions: Schema) -> Any:
    if isinstance(node, list):
        return [_small(item, definitions) for item in node]  # pyright: ignore[reportUnknownVariableType]
    if not isinstance(node, dict):
        return node
    given: Schema = dict(node)  # pyright: ignore[reportUnknownArgumentType] # JSON
    if "$ref" in given:
        target = _small(definitions[given.pop("$ref").rpartition("/")[2]], definitions)
        target.pop("description", None)
        return target | _small(given, definitions)
    if "anyOf" in given:
        others = [item for item in given["anyOf"] if item != {"type": "null"}]
        if len(others) == 1:
            del given["anyOf"]
            given = others[0] | given
            return _small(given, definitions)
        given["anyOf"] = others
    properties = given.pop("properties", None)
    small = {
        key: _small(value, definitions) for key, value in given.items() if key not in ("title", "default")
    }
    if properties is not None:
        small["properties"] = {name: _small(value, definitions) for name, value in properties.items()}
    if isinstance(small.get("description"), str):
        small["description"] = " ".join(small["description"].split())
    return small
