"""Of a crash a person sees the cause and the program's own frames."""

from pathlib import Path

from stitch_tools import worker
from stitch_tools.run.last_words import native_call, own_words, without_modules

OURS = Path(worker.__file__).parent / "candidate" / "candidate_server.py"
CRASH = f"""\
now dividing
Fatal Python error: Segmentation fault

Current thread 0x00007f0b49cb8b80 (most recent call first):
  File "/scratch/crash.py", line 6 in poke
  File "/scratch/crash.py", line 11 in forward
  File "{OURS}", line 116 in _run
  File "{OURS}", line 52 in answer

Extension modules: numpy._core._multiarray_umath, torch._C (total: 2)
"""


def test_of_a_crash_in_python_only_the_programs_frames_are_left() -> None:
    assert own_words(CRASH).splitlines() == [
        "now dividing",
        "Fatal Python error: Segmentation fault",
        "",
        "Current thread 0x00007f0b49cb8b80 (most recent call first):",
        '  File "/scratch/crash.py", line 6 in poke',
        '  File "/scratch/crash.py", line 11 in forward',
    ]


def test_of_a_crash_in_native_code_only_the_cause_is_left() -> None:
    native = "".join(line for line in CRASH.splitlines(keepends=True) if "/scratch/" not in line)
    assert own_words(native).splitlines() == ["now dividing", "Fatal Python error: Segmentation fault"]


def test_the_call_in_which_a_native_program_crashed_is_read_from_the_stack() -> None:
    native = Path(worker.__file__).parent / "runtime" / "native.py"
    assert (
        native_call(f'  File "{native}", line 121 in plan\n  File "{OURS}", line 52 in answer\n')
        == "stitch_plan"
    )
    assert native_call(CRASH) is None


def test_of_a_traceback_our_frames_go_with_their_source_lines() -> None:
    text = f"""\
Traceback (most recent call last):
  File "{OURS}", line 116, in _run
    return self.model(*inputs)
           ^^^^^^^^^^^^^^^^^^^
  File "/scratch/program.py", line 3, in forward
    raise ValueError("odd")
ValueError: odd
"""
    assert own_words(text).splitlines() == [
        "Traceback (most recent call last):",
        '  File "/scratch/program.py", line 3, in forward',
        '    raise ValueError("odd")',
        "ValueError: odd",
    ]


def test_what_a_program_printed_stays() -> None:
    text = "  indented\n\n    more\nFile not found\n"
    assert own_words(text) == text.strip()
    assert own_words("") == ""


def test_the_whole_stack_is_kept_without_the_list_of_modules() -> None:
    assert without_modules(CRASH).endswith("line 52 in answer")
