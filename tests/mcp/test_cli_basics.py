"""The command line as a whole: help, one JSON object, exit codes, tables, closed pipes, start-up cost."""

import errno
import io
import json
import os
import re
import resource
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import click
import pytest

from stitch_mcp.cli import COMMANDS, app, main
from stitch_mcp.cli.exit_codes import (
    MEANINGS,
    ExitCode,
    for_bench,
    for_build,
    for_error,
    for_result,
    for_verdict,
)
from stitch_mcp.cli.failure import describe
from stitch_mcp.config import SETTINGS
from stitch_mcp.views.table import ReportSection, print_sections, render_text
from stitch_tools.errors import (
    BudgetError,
    CertificateError,
    EnvironmentMissingError,
    InterruptedRunError,
    LockedError,
    SandboxError,
    StitchError,
    StoreError,
    TaskError,
    UsageError,
    WorkerError,
)
from stitch_tools.judge.verdict import verdict_of
from stitch_tools.models.acceptance import AcceptPolicy, Verdict
from stitch_tools.models.program import Build
from stitch_tools.models.verdict import Bench, BenchOutcome, Check, CheckFlag, CheckStatus, Ratio
from stitch_tools.worker.reference.draw_kinds import ALTERED, BATCHES, STRUCTURED

ROOT = Path(__file__).parents[2]


def leaves(
    command: click.Command, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from leaves(child, (*path, name))
    else:
        yield path, command


LEAVES = dict(leaves(app))


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert all(f"  {name} " in out and text in out for name, text in COMMANDS.items())


@pytest.mark.parametrize("path", sorted(LEAVES), ids=" ".join)
def test_every_command_explains_itself_and_takes_json(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(capsys, *path, "--help")
    assert code == 0
    assert "--json" in out
    assert LEAVES[path].help
    options = [row for row in LEAVES[path].params if isinstance(row, click.Option)]
    assert all(row.help for row in options), path


@pytest.mark.parametrize("path", sorted(LEAVES), ids=" ".join)
def test_a_wrong_option_gives_one_json_object_and_exit_code_2(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(capsys, *path, "--json", "--no-such-option")
    found = json.loads(out)
    assert code == found["exit_code"] == 2
    assert (found["schema_version"], found["ok"], found["command"]) == (1, False, " ".join(path))
    assert found["error"]["code"] == "usage"
    # A sweep hands what it does not know to `solve`, and says what it lacks itself.
    passes_on = LEAVES[path].context_settings.get("ignore_unknown_options")
    assert ("--path" if passes_on else "--no-such-option") in found["error"]["message"]


def test_an_unknown_command_names_the_nearest_one(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "sovle")
    assert (code, out) == (2, "")
    assert "did you mean `solve`?" in err


def test_a_failure_says_what_happened_and_what_to_do(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, out, err = run(capsys, "runs", "show", "nothing", "--workspace", str(tmp_path))
    assert (code, out) == (2, "")
    assert re.search(r"^error: .*\n  next: .*stitch-mcp solve REF", err)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StitchError("x"), 1),
        (WorkerError("x"), 1),
        (UsageError("x"), 2),
        (TaskError("x"), 2),
        (CertificateError("x"), 3),
        (EnvironmentMissingError("x"), 5),
        (SandboxError("x"), 5),
        (StoreError("x"), 5),
        (LockedError("x"), 5),
        (BudgetError("x"), 7),
        (InterruptedRunError("x"), 130),
    ],
)
def test_each_error_has_its_exit_code(error: StitchError, code: int) -> None:
    assert for_error(error) == code


def test_an_error_of_a_newer_layer_counts_as_its_base() -> None:
    class NewError(EnvironmentMissingError):
        code = "brand_new"

    assert for_error(NewError("x")) == ExitCode.ENVIRONMENT


def verdict(status: CheckStatus, *flags: CheckFlag, accept: tuple[str, ...] = ()) -> Verdict:
    check = Check(program_id="p", task_id="t", status=status, flags=flags)
    return verdict_of(check, policy=AcceptPolicy.of(accept))


def test_each_check_status_has_its_exit_code() -> None:
    wrong = ("incorrect", "build_failed", "crashed", "timed_out", "out_of_memory")
    codes = [for_verdict(verdict(status)) for status in ("accepted", *wrong, "rejected_cheat", "unmeasured")]
    assert codes == [0, 3, 3, 3, 3, 3, 8, 9]


def test_an_accepted_program_that_does_not_count_is_3_unless_that_is_accepted() -> None:
    assert for_verdict(verdict("accepted", "weak")) == 3
    assert for_verdict(verdict("accepted", "weak", accept=("weak",))) == 0
    assert for_verdict(verdict("accepted", "library_only")) == 0


def test_correct_but_slower_is_done_and_below_the_goal_is_4() -> None:
    ratio = Ratio(baseline="eager", speedup=0.8, low=0.7, high=0.9, outcome="slower")
    bench = Bench(program_id="p", task_id="t", outcome="slower", ratios=(ratio,))
    assert for_bench(bench, None) == 0
    assert for_bench(bench, 0.8) == 0
    assert for_bench(bench, 1.2) == 4
    assert for_result(verdict("accepted"), bench, 1.2) == 4
    assert for_result(verdict("incorrect"), None, 1.2) == 3
    assert for_result(verdict("accepted", "weak"), bench, 0.8) == 3
    assert for_result(None, None, None) == 3
    assert for_bench(Bench(program_id="p", task_id="t", outcome="unmeasured"), 1.2) == 9
    noisy = ratio.model_copy(update={"speedup": 2.0, "high": 9.0, "outcome": "inconclusive"})
    assert for_bench(bench.model_copy(update={"ratios": (noisy,)}), 1.5) == 4
    sure = ratio.model_copy(update={"speedup": 2.0, "low": 1.8, "high": 2.2, "outcome": "faster"})
    assert for_bench(bench.model_copy(update={"ratios": (sure,)}), 1.5) == 0
    assert for_bench(bench.model_copy(update={"ratios": (sure,), "doubt": "results are kept"}), 0.5) == 4
    failed = Bench(program_id="p", task_id="t", outcome="unmeasured", program_failed=True)
    assert for_bench(failed, None) == 3


def test_a_failed_build_is_3() -> None:
    build = Build(program_id="p", ok=False, toolchain="cpp", compiler="g++")
    assert for_build(build) == 3
    assert for_build(build.model_copy(update={"ok": True})) == 0


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EIO])
def test_trouble_with_the_disk_is_the_environments_with_a_next_step(number: int) -> None:
    failure = describe(OSError(number, os.strerror(number), "file"))
    assert failure.exit_code == ExitCode.ENVIRONMENT
    assert failure.hint


def test_ctrl_c_is_130_with_a_next_step() -> None:
    failure = describe(KeyboardInterrupt())
    assert (failure.exit_code, bool(failure.hint)) == (130, True)


def test_an_unforeseen_exception_is_ours() -> None:
    failure = describe(ZeroDivisionError("division by zero"))
    assert (failure.code, failure.exit_code) == ("internal", 1)


def test_the_documented_exit_codes_are_these() -> None:
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert set(MEANINGS) == set(ExitCode)
    for code, meaning in MEANINGS.items():
        assert f"| {int(code)} | {meaning} |" in text


def test_every_flag_outcome_and_draw_has_its_line_among_the_words_of_a_result() -> None:
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    words = text.partition("## Words of a result")[2].partition("\n## ")[0]
    named = {*get_args(CheckFlag), *get_args(BenchOutcome), *STRUCTURED, *BATCHES, ALTERED}
    assert {word for word in named if f"`{word}`" not in words} == set()


def test_the_documented_settings_are_these() -> None:
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    for name, meaning in SETTINGS.items():
        row = f"| `{name.replace('_', '-')}` | `STITCH_{name.upper()}` | {meaning}"
        assert row in text


def test_tables_align_figures_to_the_right() -> None:
    section = ReportSection("times", ("name", "us"), (("eager", "10.5"), ("program", "9")), ("done",))
    assert render_text(section).splitlines() == [
        "times",
        "name       us",
        "-------  ----",
        "eager    10.5",
        "program     9",
        "done",
    ]


def test_plain_text_has_no_escape_codes_and_a_terminal_gets_a_table() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    sections = [ReportSection("t", ("a", "b"), (("x", "1"),), ("a note",))]
    plain, terminal = io.StringIO(), Terminal()
    print_sections(sections, plain)
    print_sections(sections, terminal)
    assert "\x1b" not in plain.getvalue()
    assert "─" in terminal.getvalue() or "━" in terminal.getvalue()
    assert "a note" in terminal.getvalue()


def test_text_of_programs_cannot_steer_the_terminal() -> None:
    shown = io.StringIO()
    print_sections([ReportSection("", ("a",), (("\x1b[2Jwiped",),), ("rung\x07", "two\nlines"))], shown)
    assert not set("\x1b\x07") & set(shown.getvalue())
    assert "[2Jwiped" in shown.getvalue()
    assert "two\nlines" in shown.getvalue()


@pytest.mark.parametrize("path", [(), ("runs",), ("cache",)], ids=" ".join)
def test_a_call_without_a_command_shows_the_help_and_no_error(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, *path)
    assert (code, out) == (2, "")
    assert "Commands:" in err
    assert "error" not in err


def test_rich_is_loaded_only_for_a_terminal(tmp_path: Path) -> None:
    code = (
        "import sys; from stitch_mcp.cli import main; main(['config', 'show']);"
        "print('rich' in sys.modules, file=sys.stderr)"
    )
    piped = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert piped.stderr.strip() == "False"


def test_a_reader_that_goes_away_is_no_failure(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-c",
        "from stitch_mcp.cli import main; raise SystemExit(main())",
        "config",
        "show",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        err = process.stderr.read()
        assert (process.wait(timeout=60), err) == (0, b"")


def cpu_seconds(code: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)


def test_help_costs_little_more_than_importing_click() -> None:
    # 56 ms against 41 ms of CPU where it was written; a heavy import would make it several times as much.
    help_code = "from stitch_mcp.cli import main; main(['--help'])"
    pairs = [(cpu_seconds(help_code), cpu_seconds("import click")) for _ in range(5)]
    assert statistics.median(ours / base for ours, base in pairs) < 2.5
