"""A public class name occurs once in the repository: whoever reads `Limits` knows which one is meant."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("stitch_mcp", "planner/stitch_planner", "rag_index/stitch_rag", "tools/stitch_tools")


def test_a_public_class_name_occurs_once() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}
    assert places, "no class was found: is the list of packages still right?"
