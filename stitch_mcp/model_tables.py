"""The language models that a user's settings describe."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from stitch_mcp.toml_file import read_toml
from stitch_planner.llm.model_settings import ModelSettings
from stitch_tools.errors import UsageError


def read_models(path: Path) -> dict[str, ModelSettings]:
    """The `[models.NAME]` tables of the user's settings file.

    Raises:
        UsageError: a table has an unknown key, lacks `model` and `command`, or a value does not fit.
    """
    tables: Any = read_toml(path).get("models", {})
    if not tables:
        return {}
    if not isinstance(tables, dict):
        raise UsageError(f"{path}: `models` is no table", hint="write [models.NAME] and its keys below it")
    return {str(name): _settings(table, f"{path}: [models.{name}]") for name, table in tables.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] # TOML


def _settings(table: Mapping[str, Any], where: str) -> ModelSettings:
    # Checked by pydantic, which most calls need not load.
    from pydantic import TypeAdapter, ValidationError

    known = {item.name for item in fields(ModelSettings)}
    hint = f"its keys are {', '.join(sorted(known))}"
    for key in table if isinstance(table, dict) else ():
        if key not in known:
            raise UsageError(f"{where} has the unknown key `{key}`", hint=hint)
    try:
        settings = TypeAdapter(ModelSettings).validate_python(table)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "it"
        raise UsageError(f"{where}: {key}: {first['msg'].lower()}", hint=hint) from error
    if not settings.model and not settings.command:
        raise UsageError(
            f"{where} has neither `model` nor `command`",
            hint="name a model at an endpoint, or the command of an agent",
        )
    return settings
