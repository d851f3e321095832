"""Evidence as the tables that the command line prints: a page where the fact itself takes three."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from pydantic import ValidationError

from stitch_mcp.server.artifacts import Artifact
from stitch_tools.models.base import Fact

FactT = TypeVar("FactT", bound=Fact)


def summarized(artifact: Artifact) -> Artifact:
    """The fact as tables, where it is one that has them; else as it is."""
    from stitch_mcp.views.fact_tables import bench_sections, build_sections, check_sections, graph_sections
    from stitch_mcp.views.table import ReportSection, render_text
    from stitch_tools.models.graph import Graph
    from stitch_tools.models.program import Build
    from stitch_tools.models.verdict import Bench, Check

    def as_tables(model: type[FactT], sections: Callable[[FactT], list[ReportSection]]) -> str | None:
        try:
            fact = model.model_validate_json(artifact.text or "")
        except ValidationError:
            return None
        return "\n\n".join(render_text(section) for section in sections(fact))

    # A fact refuses the fields of every other one, so at most one of these fits.
    text = (
        as_tables(Check, check_sections)
        or as_tables(Bench, bench_sections)
        or as_tables(Build, build_sections)
        or as_tables(Graph, graph_sections)
    )
    return replace(artifact, text=text) if text else artifact
