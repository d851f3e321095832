"""The base of facts: what is built when, and what a schema takes from docstrings."""

import subprocess
import sys
import threading
from pathlib import Path

from stitch_tools.models.base import Fact
from stitch_tools.models.docstrings import attribute_docstrings


class Bolt(Fact):
    """A part."""

    width: int
    """In millimetres,
    across the flats."""
    length: int = 1
    thread: str = "M"
    "Before `width`."


class LongBolt(Bolt):
    length: int = 100
    head: str = "hex"
    """Its form."""

    def turned(self) -> str:
        """Nothing about a field."""
        return self.head


def test_a_schema_tells_what_the_docstrings_of_attributes_say_and_takes_over_those_of_bases() -> None:
    rows = LongBolt.model_json_schema()["properties"]
    assert {name: row.get("description") for name, row in rows.items()} == {
        "width": "In millimetres,\nacross the flats.",
        "length": None,
        "thread": "Before `width`.",
        "head": "Its form.",
    }


def test_who_annotates_an_attribute_anew_takes_no_docstring_over() -> None:
    class Nut(Bolt):
        width: int = 3

    assert "width" not in attribute_docstrings(Nut)
    assert "thread" in attribute_docstrings(Nut)


def test_a_class_inside_a_function_and_one_without_source_have_schemas() -> None:
    class Washer(Fact):
        hole: int
        """Its width."""

    made: dict[str, type[Fact]] = {}
    exec("class Rivet(Fact):\n    a: int\n    'told'", {"Fact": Fact, "__name__": "nowhere"}, made)
    assert Washer.model_json_schema()["properties"]["hole"]["description"] == "Its width."
    assert "description" not in made["Rivet"].model_json_schema()["properties"]["a"]


def test_a_validator_is_built_once_at_the_first_use_whichever_thread_asks() -> None:
    class Spring(Fact):
        bolts: tuple[LongBolt, ...]

    assert not Spring.__pydantic_complete__
    text = '{"bolts": [{"width": 2}]}'
    begin, found = threading.Barrier(8), list[Spring]()

    def ask() -> None:
        begin.wait()
        found.append(Spring.from_json_bytes(text.encode()))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [Spring(bolts=(LongBolt(width=2),))] * 8


def test_importing_the_facts_reads_no_source_and_builds_no_validator(tmp_path: Path) -> None:
    asked = (
        "import importlib, pkgutil, sys, stitch_tools.models as m\n"
        "from stitch_tools.models.base import Fact\n"
        "names = [row.name for row in pkgutil.iter_modules(m.__path__) if row.name != 'docstrings']\n"
        "modules = [importlib.import_module(f'{m.__name__}.{name}') for name in names]\n"
        "types = {v for module in modules for v in vars(module).values() if isinstance(v, type)}\n"
        "facts = [v for v in types if issubclass(v, Fact)]\n"
        "built = sorted(v.__name__ for v in facts if v is not Fact and v.__pydantic_complete__)\n"
        "print(len(facts) > 20, *built)\n"
        "print('stitch_tools.models.docstrings' in sys.modules)\n"
    )
    command = [sys.executable, "-c", asked]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    # They stand as defaults, so they are made at once.
    assert done.stdout.splitlines() == ["True AcceptPolicy Contract Tolerance", "False"]
