"""Answers about kernels from their counters: each fault is named first, a healthy kernel has none."""

import pytest

from stitch_tools.models.profile import KernelQuestion
from stitch_tools.profile import ncu_metrics as m
from stitch_tools.profile.kernels import kernel_profiles
from stitch_tools.profile.ncu_report import NcuKernel
from stitch_tools.profile.questions import ALL_METRICS, QUESTIONS, ask
from stitch_tools.profile.source_lines import HotLine, LineFigure
from tests.tools.profile.ncu_tables import launch

SCATTERED = {m.LOAD_SECTORS: 32e6, m.LOAD_SECTOR_USE: 12.5, m.SM: 20.0}
CONFLICTS = {
    m.SHARED_LOADS: 1e6,
    m.SHARED_LOAD_PASSES: 32e6,
    m.SHARED_LOAD_CONFLICTS: 31e6,
    m.DATA_PASSES_ACTIVE: 95.0,
    m.MEMORY: 95.0,
    m.stall_metric("mio_throttle"): 9.0,
}
FEW_WARPS = {
    m.REGISTERS: 168.0,
    m.ISSUE_ACTIVE: 12.0,
    m.SM: 14.0,
    m.MEMORY: 20.0,
    m.WARPS_ACTIVE: 18.0,
    m.stall_metric("long_scoreboard"): 20.0,
}
SPILLED = {m.LOCAL_LOAD_SECTORS: 4e7, m.LOCAL_STORE_SECTORS: 4e7, m.LOCAL_INSTRUCTIONS: 4e6, m.L1: 90.0}
PRODUCT = {
    m.FFMA: 0.85 * 32e7,
    m.SM: 80.0,
    m.MEMORY: 45.0,
    m.FMA_ACTIVE: 78.0,
    m.ISSUE_ACTIVE: 80.0,
    m.REGISTERS: 119.0,
}
DIVERGENT = {m.ACTIVE_THREADS: 4.3, m.UNIFORM_BRANCHES: 30.0, m.MEMORY: 6.0, m.SM: 60.0, m.ISSUE_ACTIVE: 60.0}
IDLE = {m.SM: 3.0, m.MEMORY: 7.0, m.ISSUE_ACTIVE: 20.0}
HALF_EMPTY = {m.SM: 65.0, m.MEMORY: 3.0, m.stall_metric("long_scoreboard"): 0.1}


@pytest.mark.parametrize(
    ("kernel", "question", "verdict"),
    [
        (launch(SCATTERED), "coalescing", "uncoalesced"),
        (launch(CONFLICTS), "bank_conflicts", "loads"),
        (launch(FEW_WARPS, threads=128), "occupancy", "registers"),
        (launch(SPILLED), "spills", "local memory"),
        (launch(PRODUCT), "tensor_cores", "unused"),
        (launch(DIVERGENT), "divergence", "divergent"),
        (launch(IDLE, blocks=8, threads=1024), "grid_size", "tiny"),
        (launch(HALF_EMPTY, blocks=132 * 2 * 17 // 16, threads=1024), "tail_wave", "half empty"),
    ],
)
def test_a_fault_is_named_first_with_evidence_and_an_action(
    kernel: NcuKernel, question: KernelQuestion, verdict: str
) -> None:
    first = ask(kernel)[0]
    assert (first.question, first.verdict, first.is_problem) == (question, verdict, True)
    assert first.evidence
    assert first.action
    assert first.saves_share is not None
    assert 0.2 < first.saves_share <= 1.0


def test_a_healthy_kernel_has_no_problem() -> None:
    answers = ask(launch())
    assert {answer.question for answer in answers} == {question.id for question in QUESTIONS}
    assert [answer.question for answer in answers if answer.is_problem] == []
    assert next(row.verdict for row in answers if row.question == "bound_by") == "memory"


def test_two_faults_are_ordered_by_what_they_cost() -> None:
    half_scattered = {m.STORE_SECTORS: 20e6, m.STORE_SECTOR_USE: 50.0}
    answers = ask(launch({**SPILLED, **half_scattered}))
    costly = [row for row in answers if row.saves_share is not None]
    assert [row.question for row in costly] == ["spills", "coalescing"]
    assert [row.saves_share for row in costly] == sorted(
        (row.saves_share or 0 for row in costly), reverse=True
    )


def test_one_element_for_all_threads_is_no_scattered_access() -> None:
    broadcast = {m.LOAD_SECTORS: 1e6, m.LOAD_SECTOR_USE: 12.5}
    assert next(row for row in ask(launch(broadcast)) if row.question == "coalescing").verdict == "coalesced"


def test_wide_loads_take_several_passes_and_have_no_conflicts() -> None:
    wide = {m.SHARED_LOADS: 1e6, m.SHARED_LOAD_PASSES: 4e6, m.DATA_PASSES_ACTIVE: 80.0}
    answer = next(row for row in ask(launch(wide)) if row.question == "bank_conflicts")
    assert (answer.verdict, answer.is_problem) == ("few", False)


def test_low_occupancy_of_a_busy_kernel_is_no_problem() -> None:
    answer = next(row for row in ask(launch({**PRODUCT, m.REGISTERS: 200.0})) if row.question == "occupancy")
    assert (answer.verdict, answer.is_problem) == ("low, but hidden", False)


def test_many_waves_have_no_tail() -> None:
    answer = next(
        row
        for row in ask(launch(HALF_EMPTY, blocks=132 * 2 * 20 + 5, threads=1024))
        if row.question == "tail_wave"
    )
    assert answer.verdict == "full"


@pytest.mark.parametrize("question", [row.id for row in QUESTIONS])
def test_without_its_metrics_a_question_is_unknown_and_names_them(question: KernelQuestion) -> None:
    answer = ask(launch(without=m.METRICS[question]), [question])[0]
    assert (answer.verdict, answer.is_problem) == ("unknown", False)
    assert answer.reason


def test_the_worst_line_is_named_for_a_problem_only() -> None:
    lines: dict[LineFigure, HotLine] = {"excess_sectors": HotLine("program.cu", 9, "out[i] = in[j]", 0.9)}
    scattered = ask(launch(SCATTERED), ["coalescing"], lines)[0]
    assert (scattered.file, scattered.line) == ("program.cu", 9)
    assert ask(launch(), ["coalescing"], lines)[0].line is None


def test_counters_of_several_questions_are_collected_once() -> None:
    assert len(ALL_METRICS) == len(set(ALL_METRICS))
    assert set(m.METRICS) == {question.id for question in QUESTIONS}
    assert set(m.metrics_of(["divergence"])) == {
        m.DURATION_NS,
        m.ACTIVE_THREADS,
        m.UNIFORM_BRANCHES,
        m.MEMORY,
        *m.LAUNCHED,
    }


def test_launches_of_one_kernel_are_one_profile_with_their_time_together() -> None:
    rows = [
        launch(name="short()"),
        launch({m.DURATION_NS: 150_000.0}, name="often()"),
        launch({m.DURATION_NS: 250_000.0}, name="often()"),
    ]
    profiles = kernel_profiles(rows)
    assert [profile.kernel for profile in profiles] == ["often()", "short()"]
    assert profiles[0].share == pytest.approx(0.8)
    assert profiles[0].duration_us == 250.0
    assert profiles[0].theoretical_occupancy == 1.0
    assert profiles[0].roofline is not None
    assert profiles[0].roofline.bytes == 3e8
