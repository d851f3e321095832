"""A public class name occurs once in the repository: whoever reads `Limits` knows which one is meant."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("stitch_mcp", "planner/stitch_planner", "rag_index/stitch_rag", "tools/stitch_tools")
SUPPORT = ("tests", "scripts")
USERS_FILES = ("tests/data", "tests/tools/judge/zoo", "tests/tools/judge/attackers")
"""Programs and references as users write them, which have `Model` and `ModelNew`."""


def python_files() -> Iterator[Path]:
    users = tuple(ROOT / folder for folder in USERS_FILES)
    for folder in (*PACKAGES, *SUPPORT):
        for path in sorted((ROOT / folder).rglob("*")):
            if (
                path.is_file()
                and not any(path.is_relative_to(folder) for folder in users)
                and not (path.name == "reference.py" and (path.parent / "SKILL.md").exists())
                and _is_python(path)
            ):
                yield path


def _is_python(path: Path) -> bool:
    with path.open("rb") as file:
        return path.suffix == ".py" or (not path.suffix and b"python" in file.readline())


def classes(path: Path) -> Iterator[str]:
    """Names of the public classes; those of models that a test is about (`Norm`) say what they are alone."""
    is_support = path.relative_to(ROOT).parts[0] in SUPPORT
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ClassDef) or node.name.startswith("_"):
            continue
        if not (is_support and any("Module" in ast.unparse(base) for base in node.bases)):
            yield node.name


def test_a_public_class_name_occurs_once() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path in python_files():
        for name in classes(path):
            places[name].append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}
    assert {"ServerContext", "Case"} <= places.keys(), "are the lists of folders still right?"
