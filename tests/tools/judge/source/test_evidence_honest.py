"""Honest programs: none is fatal, and what looks suspicious at first sight is a note at most."""

from pathlib import Path

import pytest

from stitch_tools.judge.source import scan_program
from tests.tools.judge.source.honest import QUIET
from tests.tools.judge.source.pairs import PAIRS
from tests.tools.judge.source.programs import REFERENCE
from tests.tools.judge.source.work_pairs import CAPTURING

PROGRAMS = Path(__file__).parents[2] / "programs"


@pytest.mark.parametrize("name", QUIET)
def test_an_honest_program_gets_notes_at_most(name: str) -> None:
    files = QUIET[name]
    form = "kernelbench" if "program.py" in files else "native"
    found = scan_program(files, format=form, reference_source=REFERENCE)
    assert [(row.rule, row.line, row.quote) for row in found if row.severity != "note"] == []
    assert not [row for row in found if row.rule == "not_scanned"]


@pytest.mark.parametrize("name", ["affine.cpp", "linear_relu.cpp", "linear_relu.cu", "twice.cpp"])
def test_programs_of_other_tests_are_not_convicted(name: str) -> None:
    found = scan_program({name: (PROGRAMS / name).read_bytes()}, format="native")
    assert [row for row in found if row.severity == "fatal"] == []


def test_dead_code_and_unreached_functions_weigh_less() -> None:
    patch = "    torch.allclose = print\n"
    twin = PAIRS["torch_op_in_forward"][1][0]["program.py"].decode("utf-8")
    reached = {"program.py": (twin + "\ndef patch():\n" + patch + "\npatch()\n").encode("utf-8")}
    unreached = {"program.py": (twin + "\ndef patch():\n" + patch).encode("utf-8")}
    dead = {"program.py": (twin + "\nif __name__ == '__main__':\n" + patch).encode("utf-8")}
    strongest = [
        [row.severity for row in scan_program(files, format="kernelbench") if row.rule == "judge_patched"]
        for files in (reached, unreached, dead)
    ]
    assert strongest == [["fatal"], ["suspicious"], []]


def test_a_function_of_the_programs_own_may_be_called_as_one_of_the_systems() -> None:
    source = b"static bool kcmp(int a, int b) { return a < b; }\nbool less() { return kcmp(1, 2); }\n"
    found = scan_program({"program.cpp": source}, format="native")
    assert [(row.rule, row.severity) for row in found] == [("other_process_memory", "suspicious")]


def test_a_stream_that_only_records_a_graph_is_a_note_at_most() -> None:
    found = scan_program(CAPTURING, format="native")
    assert {row.severity for row in found if row.rule == "work_not_joined"} <= {"note"}
