"""What a person sees of a table whose texts come from compilers and programs."""

import io
import re

import pytest

from stitch_mcp.certificates import CertificateView
from stitch_mcp.printed_commands import bench_command
from stitch_mcp.views.fact_tables import (
    certificate_sections,
    check_sections,
    demo_sections,
    graph_sections,
    plan_sections,
    solve_sections,
)
from stitch_mcp.views.table import ReportSection, one_line, print_sections, render_text
from stitch_planner.loop import SolveResult
from stitch_planner.plan import Plan
from stitch_tools.judge.memory import apply_sanitizers
from stitch_tools.judge.memory.case import not_checked
from stitch_tools.judge.memory.cpu import CPU_TOOLS
from stitch_tools.models.acceptance import AcceptPolicy
from stitch_tools.models.graph import Ceilings, Graph, GraphNode
from stitch_tools.models.verdict import Bench, BenchOutcome, Check, CheckStatus


def test_a_message_of_several_lines_is_one_row_of_a_table() -> None:
    message = "model.py:5: no such name\n    self.fc = nn.Liner(4)\nTraceback"
    table = ReportSection("", ("run", "how it ended"), (("one", one_line(message)), ("two", "accepted")))
    lines = render_text(table).splitlines()
    assert lines[2:] == ["one  model.py:5: no such name", "two  accepted"]


def test_a_long_message_ends_in_dots_and_a_short_one_stays() -> None:
    assert one_line("ab " * 40) == "ab " * 25 + "ab..."
    assert one_line("x" * 80) == "x" * 80
    assert one_line("x" * 90) == "x" * 77 + "..."


def test_a_long_message_is_cut_behind_a_word() -> None:
    assert one_line("matrix multiplication of tiles", 20) == "matrix..."


class TerminalStream(io.StringIO):
    def isatty(self) -> bool:
        return True


RUN = "20261121T104221.397-gated_mlp-d7cc9a1d"


def on_a_terminal(section: ReportSection, columns: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    stream = TerminalStream()
    print_sections([section], stream)
    return [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in stream.getvalue().splitlines()]


def test_a_list_keeps_one_line_a_run_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    row = (RUN, "cuda", "accepted", "inconclusive", "correct, inconclusive: 1.00x eager " + "x" * 40)
    columns = ("run", "target", "status", "outcome", "how it ended")
    *_, line = on_a_terminal(ReportSection("", columns, (row,), cut=True), 80, monkeypatch)
    assert line.split()[:4] == list(row[:4])
    assert line.endswith("\N{HORIZONTAL ELLIPSIS}")


def test_a_long_name_is_folded_where_it_would_leave_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    name = RUN.replace("gated_mlp", "n" * 40)
    lines = on_a_terminal(ReportSection("", ("run", "status"), ((name, "accepted"),)), 60, monkeypatch)
    assert all(len(line) <= 60 for line in lines)
    assert "".join(line.split()[0] for line in lines[2:]) == name
    assert lines[2].endswith("accepted")


def test_what_was_not_checked_has_one_label() -> None:
    check = Check(program_id="a" * 64, task_id="b" * 64, status="accepted")
    check = apply_sanitizers(check, [not_checked(tool, "no time left") for tool in CPU_TOOLS])
    sections = check_sections(check)
    assert "not checked: memory and races (asan, ubsan, init, tsan): no time left" in sections[-1].notes
    assert [section.title for section in sections] == [""]


def test_what_was_not_checked_for_the_same_reason_stands_in_one_line() -> None:
    reasons = (
        "draw spikes: it is too large",
        "draw peaks: it is too large",
        "draw zeros: it is flat",
        "gradients",
        "races",
    )
    check = Check(program_id="a" * 64, task_id="b" * 64, status="accepted", not_checked=reasons)
    notes = check_sections(check)[-1].notes
    assert [note for note in notes if note.startswith("not checked")] == [
        "not checked: draws spikes, peaks: it is too large",
        "not checked: draw zeros: it is flat",
        "not checked: gradients",
        "not checked: races",
    ]


CERTIFICATE = CertificateView(
    path="c.stitch.zip",
    certificate_id="c" * 64,
    created_at="2026-11-27",
    run_id="r",
    task_id="b" * 64,
    program_id="a" * 64,
    target="cpu",
    status="accepted",
    flags=(),
    counts=True,
    policy=AcceptPolicy(),
    outcome="faster",
    speedup=2.0,
    device="a CPU",
    files=9,
    claim="",
    not_checked=("gradients",),
)


def test_what_a_certificate_left_out_is_told_from_what_running_it_again_does() -> None:
    assert certificate_sections(CERTIFICATE)[0].notes[-1] == "not checked: gradients"
    again = certificate_sections(CERTIFICATE, rerun=True)
    assert again[0].notes[-1] == "not checked when certified: gradients"


@pytest.mark.parametrize(("status", "words"), [("crashed", "--sanitize"), ("incorrect", "--json")])
def test_a_program_that_failed_gets_a_next_step(status: CheckStatus, words: str) -> None:
    check = Check(program_id="a" * 64, task_id="b" * 64, status=status)
    (note,) = [note for note in check_sections(check)[-1].notes if note.startswith("next: ")]
    assert words in note


def solved(outcome: BenchOutcome, *, disturbed: bool | None = None) -> SolveResult:
    """The end of a run whose timing said this."""
    bench = Bench(program_id="a" * 64, task_id="b" * 64, outcome=outcome, disturbed=disturbed)
    return SolveResult(
        run_id="r",
        run_folder="runs/r",
        task="mlp",
        target="cpu",
        status="accepted",
        outcome=outcome,
        program_id=None,
        certificate=None,
        speedup=2.0,
        min_speedup=None,
        message="",
        bench=bench,
    )


def test_a_demonstration_says_that_it_was_a_quick_run() -> None:
    (note,) = demo_sections(solved("faster"), "stitch-mcp demo")[-1].notes
    assert note.startswith("a quick run: fewest rounds, no sanitizers")


def test_where_others_disturbed_a_run_its_last_line_is_the_command_that_times_it_again() -> None:
    disturbed = solved("inconclusive", disturbed=True)
    again = "only time it again when it is quieter: "
    command = bench_command("m.py", "r", overrides=("rtol=1e-4",), workspace="a b")
    assert command.endswith("bench --quick m.py r --set rtol=1e-4 --workspace 'a b'")
    assert solve_sections(disturbed, command)[-1].notes[-1].endswith(again + command)
    assert solve_sections(disturbed)[-1].notes[-1].endswith("bench --quick REFERENCE r")
    others = (
        solved("inconclusive", disturbed=False),
        solved("inconclusive"),
        solved("faster", disturbed=True),
    )
    for other in others:
        assert not any(again in note for note in solve_sections(other, "x")[-1].notes)


@pytest.mark.parametrize(
    ("disturbed", "column", "graph_note", "plan_note"),
    [
        (False, "at least us", "lower bound, one operation", "at least 2.00 us in all"),
        (True, "estimate us", "estimate, one operation", "about 2.00 us in all"),
    ],
)
def test_times_from_a_busy_device_are_called_estimates(
    disturbed: bool, column: str, graph_note: str, plan_note: str
) -> None:
    ceilings = Ceilings(
        device="a CPU",
        target="cpu",
        copy_bytes_per_s=1e10,
        last_level_cache_bytes=1 << 20,
        flops_per_s={"fp32": 1e11},
        launch_us=1.0,
        disturbed=disturbed,
    )
    node = GraphNode(
        name="relu",
        op="aten.relu.default",
        outputs=(),
        min_time_us=2.0,
    )
    graph = Graph(source="export", nodes=(node,))
    (shown,) = graph_sections(graph, ceilings)
    assert column in shown.columns
    assert any(note.startswith(graph_note) for note in shown.notes)
    plan = Plan(target="cpu", steps=(), predicted_us=2.0)
    (shown,) = plan_sections(plan, ceilings)
    assert column in shown.columns
    assert plan_note in shown.notes[0]
