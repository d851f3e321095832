"""What evidence amounts to: which programs are accepted, and which of those count."""

import itertools
from collections.abc import Sequence
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stitch_tools.errors import UsageError
from stitch_tools.judge.verdict import settle_status, verdict_of
from stitch_tools.models.acceptance import SHORTCOMINGS, AcceptPolicy, weighing_kind
from stitch_tools.models.evidence import WorkEvidence
from stitch_tools.models.finding_kinds import FINDING_KINDS
from stitch_tools.models.sanitizer import SanitizerFinding, SanitizerRun, Severity
from stitch_tools.models.verdict import Bench, BenchOutcome, Check, CheckFlag, CheckStatus, Finding

STRICT = AcceptPolicy()
STATUSES: tuple[CheckStatus, ...] = get_args(CheckStatus)
FLAGS: tuple[CheckFlag, ...] = get_args(CheckFlag)
RULES = (*sorted(FINDING_KINDS), "asan.heap-buffer-overflow", "a_rule_of_tomorrow")


def check_of(
    status: CheckStatus = "accepted",
    *,
    flags: Sequence[CheckFlag] = (),
    findings: Sequence[Finding] = (),
    work: WorkEvidence | None = None,
    sanitizers: Sequence[SanitizerRun] = (),
) -> Check:
    return Check(
        program_id="p",
        task_id="t",
        status=status,
        flags=tuple(flags),
        findings=tuple(findings),
        work=work,
        sanitizers=tuple(sanitizers),
        message="why" if status != "accepted" else "20 draws agree",
    )


def finding(rule: str, severity: Severity = "suspicious") -> Finding:
    return Finding(rule=rule, severity=severity, message=f"{rule} was seen")


def bench_of(
    *findings: Finding, outcome: BenchOutcome = "faster", program_failed: bool = False, message: str = ""
) -> Bench:
    return Bench(
        program_id="p",
        task_id="t",
        outcome=outcome,
        findings=findings,
        program_failed=program_failed,
        message=message,
    )


def work_of(pytorch: float, own: float) -> WorkEvidence:
    return WorkEvidence(
        method="samples",
        own=own,
        library=0.0,
        pytorch=pytorch,
        copies=0.0,
        other=1.0 - own - pytorch,
        observations=500,
        outputs_right=True,
    )


def memory_of(severity: Severity, *, in_library: bool = False) -> SanitizerRun:
    row = SanitizerFinding(
        rule="heap-buffer-overflow", severity=severity, message="reads past the end", file="a.cpp", line=7
    )
    found, library = ((), (row,)) if in_library else ((row,), ())
    return SanitizerRun(tool="asan", status="findings", findings=found, library_findings=library)


PARTIAL = check_of(flags=["partial"], findings=[finding("pytorch_share", "note")], work=work_of(0.6, 0.4))

findings_strategy = st.lists(
    st.builds(finding, st.sampled_from(RULES), st.sampled_from(get_args(Severity))), max_size=4
)
work_strategy = st.none() | st.builds(work_of, st.floats(0, 0.5), st.floats(0, 0.5))
memory_strategy = st.lists(
    st.builds(memory_of, st.sampled_from(get_args(Severity)), in_library=st.booleans()), max_size=2
)
check_strategy = st.builds(
    check_of,
    st.sampled_from(STATUSES),
    flags=st.lists(st.sampled_from(FLAGS), unique=True, max_size=4),
    findings=findings_strategy,
    work=work_strategy,
    sanitizers=memory_strategy,
)
bench_strategy = st.none() | st.builds(
    lambda rows, outcome, failed: bench_of(*rows, outcome=outcome, program_failed=failed),
    findings_strategy,
    st.sampled_from(get_args(BenchOutcome)),
    st.booleans(),
)
policy_strategy = st.builds(AcceptPolicy.of, st.lists(st.sampled_from(SHORTCOMINGS), unique=True))


@given(check_strategy, bench_strategy, policy_strategy)
def test_a_verdict_is_total_pure_and_consistent(
    check: Check, bench: Bench | None, policy: AcceptPolicy
) -> None:
    seen = verdict_of(check, bench, policy)
    assert seen == verdict_of(check, bench, policy)
    assert seen.counts == (not seen.reasons)
    assert not seen.counts or seen.status == "accepted"
    assert seen.flags == check.flags
    assert seen.policy == policy
    assert all(row.message for row in (*seen.reasons, *seen.excused))
    assert all(row.accept in policy.names for row in seen.excused)
    assert not any(row.accept in policy.names for row in seen.reasons)
    assert bool(seen.why_not) == (not seen.counts)


@given(check_strategy, bench_strategy, policy_strategy)
def test_a_looser_policy_changes_no_status_and_takes_no_count_away(
    check: Check, bench: Bench | None, policy: AcceptPolicy
) -> None:
    strict, loose = (verdict_of(check, bench, choice) for choice in (STRICT, policy))
    assert strict.status == loose.status
    assert loose.counts or not strict.counts
    assert sorted(map(repr, strict.reasons)) == sorted(map(repr, (*loose.reasons, *loose.excused)))


@given(check_strategy, bench_strategy, policy_strategy)
def test_accepting_what_a_verdict_names_makes_the_program_count(
    check: Check, bench: Bench | None, policy: AcceptPolicy
) -> None:
    seen = verdict_of(check, bench, policy)
    wider = AcceptPolicy.of((*policy.names, *seen.accept))
    assert verdict_of(check, bench, wider).counts == (seen.counts or bool(seen.accept))


@given(check_strategy, memory_strategy)
def test_a_settled_status_settles_to_itself(check: Check, memory: list[SanitizerRun]) -> None:
    status, _ = settle_status(check.status, check.message, check.findings, memory)
    assert settle_status(status, check.message, check.findings, memory)[0] == status


@pytest.mark.parametrize("status", [name for name in STATUSES if name != "accepted"])
def test_a_program_that_is_not_accepted_never_counts(status: CheckStatus) -> None:
    seen = verdict_of(check_of(status), policy=AcceptPolicy.of(SHORTCOMINGS))
    assert (seen.status, seen.counts, seen.accept) == (status, False, ())
    assert [(row.source, row.rule, row.message) for row in seen.reasons] == [("check", status, "why")]
    assert seen.why_not == "why"


@pytest.mark.parametrize("ended", STATUSES)
def test_a_fatal_finding_of_check_or_timing_rejects_however_the_draws_ended(ended: CheckStatus) -> None:
    fatal = finding("judge_patched", "fatal")
    for seen in (verdict_of(check_of(ended, findings=[fatal])), verdict_of(check_of(ended), bench_of(fatal))):
        assert (seen.status, seen.counts, seen.accept) == ("rejected_cheat", False, ())
        assert [(row.source, row.rule) for row in seen.reasons] == [("finding", "judge_patched")]


def test_a_fatal_memory_error_makes_an_accepted_program_incorrect() -> None:
    seen = verdict_of(check_of(sanitizers=[memory_of("fatal")]), policy=AcceptPolicy.of(SHORTCOMINGS))
    assert (seen.status, seen.counts) == ("incorrect", False)
    assert seen.why_not == "asan.heap-buffer-overflow: asan: a.cpp:7: reads past the end"


@pytest.mark.parametrize(
    "run", [memory_of("suspicious"), memory_of("note"), memory_of("fatal", in_library=True)], ids=str
)
def test_other_findings_of_sanitizers_change_nothing(run: SanitizerRun) -> None:
    assert verdict_of(check_of(sanitizers=[run])).counts


def test_a_program_of_clean_evidence_counts() -> None:
    seen = verdict_of(check_of(work=work_of(0.0, 0.9)), bench_of())
    assert (seen.status, seen.counts, seen.reasons, seen.excused) == ("accepted", True, (), ())


@pytest.mark.parametrize("flag", ["library_only", "relaxed", "specialized", "incomplete"])
def test_flags_that_only_inform_do_not_keep_a_program_from_counting(flag: CheckFlag) -> None:
    seen = verdict_of(check_of(flags=[flag]))
    assert (seen.counts, seen.flags) == (True, (flag,))


@pytest.mark.parametrize("outcome", get_args(BenchOutcome))
def test_speed_does_not_decide_whether_a_program_counts(outcome: BenchOutcome) -> None:
    assert verdict_of(check_of(), bench_of(outcome=outcome)).counts


def test_pytorch_beyond_the_allowance_does_not_count() -> None:
    seen = verdict_of(PARTIAL)
    assert (seen.accepted, seen.counts, seen.accept) == (True, False, ("partial",))
    assert seen.why_not == "partial: 60% of the work is PyTorch's, beyond the contract's allowance"


def test_a_partial_program_within_the_allowance_counts_with_its_flag() -> None:
    seen = verdict_of(check_of(flags=["partial"], work=work_of(0.05, 0.9)))
    assert (seen.counts, seen.flags) == (True, ("partial",))


def test_a_partial_program_whose_share_is_unknown_does_not_count() -> None:
    seen = verdict_of(check_of(flags=["partial"]))
    assert (seen.counts, seen.accept) == (False, ("partial",))


def test_a_weak_pass_does_not_count() -> None:
    seen = verdict_of(check_of(flags=["weak"]))
    assert (seen.accepted, seen.counts, seen.accept) == (True, False, ("weak",))


@pytest.mark.parametrize(
    "rule",
    [
        "reference_copied",
        "reference_in_forward",
        "result_cached",
        "native_early_return",
        "caller_inspected",
        "library_patched",
        "judge_patched",
        "addresses_reviewer",
    ],
)
def test_a_suspicious_finding_of_a_named_kind_does_not_count(rule: str) -> None:
    seen = verdict_of(check_of(findings=[finding(rule)], work=work_of(0.0, 0.9)))
    assert (seen.accepted, seen.counts, seen.accept) == (True, False, (weighing_kind(rule),))
    assert [(row.source, row.rule) for row in seen.reasons] == [("finding", rule)]
    assert verdict_of(check_of(findings=[finding(rule, "note")])).counts
    timed = verdict_of(check_of(), bench_of(finding(rule)))
    assert not timed.counts


def test_suspicious_findings_of_other_kinds_count() -> None:
    others = [rule for rule in RULES if weighing_kind(rule) is None]
    assert "work_not_joined" in others
    seen = check_of(findings=[finding(rule) for rule in others], work=work_of(0.0, 0.9))
    assert verdict_of(seen).counts


def test_a_program_that_computes_with_pytorch_does_not_count_where_nobody_saw_who_did_the_work() -> None:
    seen = verdict_of(check_of(findings=[finding("torch_op_in_forward")]))
    assert (seen.accepted, seen.counts, seen.accept) == (True, False, ("partial",))


IDLE = finding("kernel_not_launched")


def test_an_idle_kernel_does_not_count_where_pytorch_is_seen_to_work() -> None:
    for check in (
        check_of(findings=[IDLE, finding("pytorch_share", "note")], work=work_of(0.6, 0.4)),
        check_of(findings=[IDLE], work=work_of(0.6, 0.2)),
    ):
        assert verdict_of(check).accept == ("kernel_never_launched",)
    untraced = check_of(findings=[IDLE, finding("torch_op_in_forward")])
    assert verdict_of(untraced).accept == ("partial", "kernel_never_launched")


def test_an_idle_kernel_counts_where_the_program_works_itself_or_nobody_says_that_pytorch_does() -> None:
    for check in (
        check_of(findings=[IDLE, finding("torch_op_in_forward")], work=work_of(0.0, 0.9)),
        check_of(findings=[IDLE]),
        check_of(findings=[IDLE, finding("torch_op_in_forward", "note")]),
    ):
        assert verdict_of(check).counts


def test_a_program_that_fails_under_the_clock_does_not_count() -> None:
    failed = bench_of(outcome="unmeasured", program_failed=True, message="it answered before it was asked")
    seen = verdict_of(check_of(), failed, AcceptPolicy.of(SHORTCOMINGS))
    assert (seen.status, seen.counts, seen.accept) == ("accepted", False, ())
    assert seen.why_not == "failed_when_timed: it answered before it was asked"


def test_a_policy_excuses_what_it_names_openly_and_nothing_else() -> None:
    check = check_of(
        flags=["partial", "weak"], findings=[finding("pytorch_share", "note"), finding("library_patched")]
    )
    everything = ("partial", "weak", "library_patched")
    for number in range(len(everything) + 1):
        for names in itertools.combinations(everything, number):
            seen = verdict_of(check, policy=AcceptPolicy.of(names))
            assert {row.accept for row in seen.excused} == set(names)
            assert set(seen.accept) == set(everything) - set(names)
            assert seen.counts == (set(names) == set(everything))


def test_a_policy_is_made_from_names_and_says_which_there_are() -> None:
    policy = AcceptPolicy.of(["library_patched", "weak", "weak", "partial"])
    assert policy.names == ("partial", "weak", "library_patched")
    assert AcceptPolicy.from_json_bytes(policy.canonical_json()) == policy
    with pytest.raises(UsageError, match="'relaxed'") as caught:
        AcceptPolicy.of(["relaxed"])
    assert caught.value.hint == f"name one of: {', '.join(SHORTCOMINGS)}"
