"""What a result quotes where a program in Python refused something: its own words, on one line."""

import sys
from pathlib import Path

import pytest
import torch

from stitch_tools.judge.correctness.check_record import Record, end_of_step
from stitch_tools.judge.correctness.check_wording import describe_reason, describe_refusal
from stitch_tools.judge.correctness.draw_ruling import Ruling
from stitch_tools.judge.correctness.draw_runner import Observed
from stitch_tools.judge.correctness.draw_schedule import DrawRequest
from stitch_tools.judge.work.traced_worker import RefusedError, require_step
from stitch_tools.run.candidate_worker import Answer
from stitch_tools.run.reference_server import Expectation
from stitch_tools.worker.candidate.python_program import PythonProgram
from stitch_tools.worker.runtime.native import ProgramError

TEXT = """
import torch


class Refusal(Exception):
    status = "unsupported"


class ModelNew(torch.nn.Module):
    def forward(self, x):
        {body}
"""
LARGER = DrawRequest("own", "batch-probe", other_size=True)
EXPECTATION = Expectation(
    layout=[],
    nbytes=0,
    oracle="fp64",
    notes=(),
    reference_s=0.0,
    generator=b"",
    structure="leaf",
    held=(),
    inputs_written=False,
)


@pytest.fixture(autouse=True)
def _own_path(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]  # pytest calls it
    # A Python program puts its folder there, in a process that a worker has for itself.
    monkeypatch.setattr(sys, "path", list(sys.path))


def refusal_of(body: str, folder: Path) -> Answer:
    """What the worker says of a forward with this body."""
    folder.joinpath("program.py").write_text(TEXT.format(body=body), encoding="utf-8")
    program = PythonProgram(str(folder), "program.py")
    program.init(b"", [])
    with pytest.raises(ProgramError) as caught:
        program.run([torch.zeros(2)], b"")
    return Answer(caught.value.status, caught.value.step, caught.value.message)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("raise Refusal('input 0: made for 4 rows,\\n  given 2')", "input 0: made for 4 rows, given 2"),
        ("raise NotImplementedError", "NotImplementedError"),
        ("raise Refusal('see /srv/somebody/work/notes.txt: 4 rows')", "see notes.txt: 4 rows"),
        ("raise NotImplementedError('4 rows') from ValueError('inner')", "4 rows"),
        ("raise MemoryError('cannot allocate memory for /tmp/x/y')", "cannot allocate memory for y"),
    ],
)
def test_a_refusal_of_another_size_is_quoted_by_its_message_alone(
    body: str, reason: str, tmp_path: Path
) -> None:
    answer = refusal_of(body, tmp_path)
    record = Record()
    ruling = Ruling(record, uses_rng=False, sizes_count=False, tell=lambda _: None)
    assert ruling.on(LARGER, Observed(answer, EXPECTATION)) is None
    assert record.skipped == [f"draw batch-probe: the program refuses another leading size: {reason}"]


def test_a_refusal_of_the_tasks_own_size_is_quoted_alike(tmp_path: Path) -> None:
    answer = refusal_of("raise Refusal('4 rows')", tmp_path)
    assert describe_refusal(answer) == "the program refuses the inputs: 4 rows"


def test_what_a_native_program_says_stays_as_it_is() -> None:
    assert describe_reason(Answer("unsupported", "stitch_plan", "rows: 4 please")) == "rows: 4 please"
    assert describe_reason(Answer("unsupported", "stitch_plan", "")) == "no reason given"


def test_who_mends_a_program_gets_the_whole_traceback(tmp_path: Path) -> None:
    end = end_of_step(refusal_of("raise ValueError('odd')", tmp_path))
    assert end.status == "crashed"
    assert "Traceback" in end.message
    assert "program.py" in end.message


@pytest.mark.parametrize("message", ["", " \n"])
def test_a_refusal_without_words_is_quoted_by_its_status(message: str) -> None:
    with pytest.raises(RefusedError, match=r"^stitch_forward: error$"):
        require_step(Answer("error", "stitch_forward", message))
