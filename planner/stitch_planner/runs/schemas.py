"""The published JSON schemas of what a run leaves on disk.

`python -m stitch_planner.runs.schemas FOLDER` writes them; `docs/schemas/` holds the current ones.
"""

import json
import sys
from pathlib import Path

from stitch_planner.runs.run_events import KINDS
from stitch_tools.storage.certificate import Certificate
from stitch_tools.storage.events import Event

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def event_schema() -> dict[str, object]:
    """Schema of one line of events.jsonl: a known kind fixes its payload, an unknown one leaves it open."""
    schema = Event.model_json_schema()
    definitions: dict[str, object] = {}
    for model in KINDS.values():
        result = model.model_json_schema()
        # References start at the document's root, so facts inside a payload are defined there, too.
        definitions |= result.pop("$defs", {})
        definitions[model.__name__] = result
    rules = [
        {
            "if": {"properties": {"kind": {"const": kind}}},
            "then": {"properties": {"payload": {"$ref": f"#/$defs/{model.__name__}"}}},
        }
        for kind, model in KINDS.items()
    ]
    return {"$schema": _DIALECT, **schema, "$defs": definitions, "allOf": rules}


def certificate_schema() -> dict[str, object]:
    """Schema of certificate.json inside the archive."""
    return {"$schema": _DIALECT, **Certificate.model_json_schema()}


def schema_files() -> dict[str, str]:
    """File name to text of every published schema."""
    schemas = {"event.schema.json": event_schema(), "certificate.schema.json": certificate_schema()}
    return {name: json.dumps(schema, indent=2, sort_keys=True) + "\n" for name, schema in schemas.items()}


def main() -> None:
    """Write the schemas into the folder named on the command line."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in schema_files().items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
