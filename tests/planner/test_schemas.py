from collections.abc import Mapping
from pathlib import Path

import jsonschema
import pytest

from stitch_planner.runs.run_events import KINDS, DecisionMade
from stitch_planner.runs.schemas import event_schema, schema_files
from stitch_tools.storage.events import Event

PUBLISHED = Path(__file__).parents[2] / "docs/schemas"


@pytest.mark.parametrize("name", sorted(schema_files()))
def test_the_published_schemas_are_the_current_ones(name: str) -> None:
    """After a change of a fact run `python -m stitch_planner.runs.schemas docs/schemas`."""
    assert (PUBLISHED / name).read_text(encoding="utf-8") == schema_files()[name]


def line(kind: str, payload: Mapping[str, object]) -> dict[str, object]:
    return Event(seq=0, at="now", kind=kind, payload=dict(payload)).model_dump(mode="json")


def test_a_known_kind_with_a_wrong_payload_does_not_fit() -> None:
    good = DecisionMade(program_id="p", decision="accept", reason="r").model_dump(mode="json")
    jsonschema.validate(line("decision_made", good), event_schema())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(line("decision_made", good | {"decision": "maybe"}), event_schema())


def test_an_unknown_kind_fits_so_that_newer_runs_can_be_read() -> None:
    assert "from_the_future" not in KINDS
    jsonschema.validate(line("from_the_future", {"x": 1}), event_schema())
