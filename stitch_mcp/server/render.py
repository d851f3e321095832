"""Answers as an agent reads them: small, without what is unknown, without secrets."""

import json
import os
import re
from collections.abc import Mapping
from typing import Any

from stitch_mcp.server.tool import Answer

MAX_CHARS = 7500
"""Of an answer's JSON: below what clients show without cutting."""
_SECRET = re.compile(r"(^|_)(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)($|_)", re.IGNORECASE)
_MIN_SECRET = 8
_CUT = "... (cut; `artifact` has the whole)"


def render(answer: Answer, *, detailed: bool) -> dict[str, Any]:
    """The answer as JSON of at most `MAX_CHARS` characters, secrets of our environment blotted out."""
    details: tuple[str, ...] = getattr(answer, "DETAILS", ())
    hidden: set[str] = set() if detailed else set(details)
    fields = answer.model_dump(mode="json", exclude_none=True, exclude=hidden)
    kept = {name: value for name, value in fields.items() if value not in ("", [], {})}
    # The steps come last, where a model remembers them best.
    steps = kept.pop("next_steps", None)
    kept = blot(kept, _secrets(os.environ))
    while len(_text(kept)) > MAX_CHARS - (len(_text(steps)) if steps else 0) and _shorten(kept):
        pass
    return {**kept, "next_steps": blot(steps, _secrets(os.environ))} if steps else kept


def blot(value: Any, secrets: Mapping[str, str]) -> Any:
    """The JSON value with every secret in its strings replaced by the name of its variable."""
    if isinstance(value, str):
        for name, secret in secrets.items():
            value = value.replace(secret, f"<{name}>")
        return value
    if isinstance(value, list):
        return [blot(item, secrets) for item in value]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, dict):
        return {key: blot(item, secrets) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType]
    return value


def blot_text(text: str) -> str:
    """The text with the secrets of our environment replaced by the names of their variables."""
    return str(blot(text, _secrets(os.environ)))


def _secrets(environ: Mapping[str, str]) -> dict[str, str]:
    found = {
        name: value for name, value in environ.items() if _SECRET.search(name) and len(value) >= _MIN_SECRET
    }
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _shorten(fields: dict[str, Any]) -> bool:
    """Cut the largest list or text of the fields in half; whether there was one to cut."""
    name = max(fields, key=lambda key: len(_text(fields[key])))
    value = fields[name]
    if isinstance(value, str) and len(value) > 2 * len(_CUT):
        fields[name] = value[: len(value) // 2].removesuffix(_CUT) + _CUT
        return True
    if isinstance(value, dict) and value:
        return _shorten(value)  # pyright: ignore[reportUnknownArgumentType] # JSON
    if isinstance(value, list) and value:
        return _shorten_list(value)  # pyright: ignore[reportUnknownArgumentType] # JSON
    return False


def _shorten_list(rows: list[Any]) -> bool:
    """Drop the second half of a list, or cut its only member; whether there was something to cut."""
    mark: Any = {"cut": _CUT} if isinstance(rows[0], dict) else _CUT
    if len(rows) > 2 or (len(rows) == 2 and rows[1] != mark):
        rows[(len(rows) + 1) // 2 :] = [mark]
        return True
    only: dict[str, Any] = {"": rows[0]}
    if rows[0] == mark or not _shorten(only):
        return False
    rows[0] = only[""]
    return True
