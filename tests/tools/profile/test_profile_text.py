"""A profile in words: findings, answers to one question, and what changed between two in 15 lines."""

from typing import Any

from stitch_tools.diagnose.diagnosis import diagnose
from stitch_tools.diagnose.evidence import ProfileEvidence
from stitch_tools.models.profile import (
    HostCall,
    KernelAnswer,
    KernelProfile,
    KernelTime,
    Profile,
    Quantity,
    SystemProfile,
)
from stitch_tools.models.task import Contract
from stitch_tools.profile.profile_text import (
    MOST_COMPARED,
    answer_question,
    compare_profiles,
    finding_lines,
    questions_of,
    system_lines,
)


def profile_of(*kernels: tuple[str, float, float], bank_conflicts: str = "yes", **facts: Any) -> Profile:
    total = sum(row[1] for row in kernels)
    system = SystemProfile.model_validate(
        {
            "origin": "nsys",
            "iterations": 3,
            "wall_us": total + 500,
            "untraced_us": total + 400,
            "busy_us": total,
            "busy_share": 0.5,
            "launches": sum(row[2] for row in kernels),
            "device_activities": sum(row[2] for row in kernels),
            "kernels": tuple(
                KernelTime(name=name, total_us=us, count=count, share=us / total, owner="pytorch")
                for name, us, count in kernels
            ),
            **facts,
        }
    )
    answer = KernelAnswer(
        question="bank_conflicts",
        verdict=bank_conflicts,
        is_problem=bank_conflicts == "yes",
        summary="32 threads read one bank",
        evidence=(Quantity(name="conflicts per request", value=31.0, origin="ncu"),),
        file="program.cu",
        line=7,
    )
    return Profile(
        subject="reference",
        subject_id="a" * 64,
        task_id="a" * 64,
        target="cuda:sm_90",
        level="both",
        status="profiled",
        system=system,
        kernels=(KernelProfile(kernel=kernels[0][0], origin="ncu", share=0.5, answers=(answer,)),),
        diagnosis=diagnose(ProfileEvidence("reference", "cuda:sm_90", system, Contract())),
    )


BEFORE = profile_of(*((f"kernel_{index}", 40.0 + index, 5.0) for index in range(30)))
AFTER = profile_of(
    ("kernel_29", 69.0, 5.0), ("fused", 300.0, 1.0), ("kernel_28", 30.0, 5.0), bank_conflicts="no"
)


def test_what_changed_takes_at_most_fifteen_lines() -> None:
    lines = compare_profiles(BEFORE, AFTER)
    assert len(lines) <= MOST_COMPARED
    text = "\n".join(lines)
    assert "kernels and copies: 150 -> 11 (13.64x less)" in text
    assert "new: fused, 300.0 us" in text
    assert "gone: kernel_27, 67.0 us" in text
    assert "changed: kernel_28" not in text or "68.0 -> 30.0" in text


def test_answers_that_changed_are_named_where_there_is_room() -> None:
    same = profile_of(("kernel_0", 40.0, 5.0))
    other = profile_of(("kernel_0", 20.0, 5.0), bank_conflicts="no")
    lines = compare_profiles(same, other)
    assert "kernel_0: bank_conflicts yes -> no" in lines
    assert "changed: kernel_0, 40.0 -> 20.0 us, 5 -> 5 runs" in lines


def test_a_profile_without_a_system_level_cannot_be_compared_and_says_why() -> None:
    crashed = BEFORE.model_copy(update={"system": None, "status": "crashed"})
    assert compare_profiles(BEFORE, crashed) == ("the second profile has no system level: crashed",)


def test_a_question_is_answered_with_evidence_and_its_origin() -> None:
    (line,) = answer_question(BEFORE, "bank conflicts?")
    assert "kernel_0 [program.cu:7]: bank_conflicts = yes" in line
    assert "conflicts per request 31  (ncu)" in line
    first, *evidence = answer_question(BEFORE, "host_bound")
    assert first.startswith("1. host_bound: ")
    assert any("(benchmark)" in row for row in evidence)
    assert answer_question(BEFORE, "sync-in-loop")[0].startswith("no: ")
    assert answer_question(BEFORE, "who_did_it") == ()
    assert {"host_bound", "bank_conflicts"} <= set(questions_of(BEFORE))


def test_findings_say_gain_with_its_range_and_what_to_do() -> None:
    (first, *_) = finding_lines(BEFORE)
    assert "Gain " in first
    assert " to " in first
    assert "Do: capture the forward in one CUDA graph" in first


def test_the_iteration_says_where_its_numbers_come_from() -> None:
    profile = profile_of(
        ("kernel_0", 100.0, 5.0), syncs=(HostCall(name="cudaStreamSynchronize", count=2, total_us=30.0),)
    )
    assert profile.system is not None
    lines = system_lines(profile.system)
    assert "under nsys, 500.0 us without a profiler" in lines[0]
    assert "wait in the forward: cudaStreamSynchronize x2, 30.0 us" in lines


def test_sums_of_different_tools_are_not_compared() -> None:
    system = BEFORE.system
    assert system is not None
    other = BEFORE.model_copy(update={"system": system.model_copy(update={"origin": "sampled"})})
    lines = compare_profiles(BEFORE, other)
    assert not any(line.startswith("device or operator time") for line in lines)
    assert any("only latencies compare" in line for line in lines)
