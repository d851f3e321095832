"""The reward is finite, credits only what is beyond noise, and gives a refused program the floor."""

import math
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stitch_mcp.rl.reward.facts import (
    DIMENSIONS,
    DimensionRating,
    Reward,
    RewardEvidence,
    RewardPolicy,
    RewardPreset,
    Skill,
    SkillRating,
)
from stitch_mcp.rl.reward.presets import PRESETS, all_points, find_preset
from stitch_mcp.rl.reward.scoring import score
from stitch_tools.errors import UsageError
from stitch_tools.models.conditions import TimingDoubt
from stitch_tools.models.evidence import WorkEvidence
from stitch_tools.models.verdict import (
    Bench,
    BenchOutcome,
    Check,
    CheckFlag,
    CheckStatus,
    Finding,
    Ratio,
    Timing,
)
from tests.mcp.rl.evidence import make_bench, make_check, make_evidence, make_ratio

STITCHCUDA, MILESTONE, KEVIN, COVERAGE = map(find_preset, ("stitchcuda", "milestone", "kevin", "coverage"))
every_preset = pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.name)


def rated(skill: Skill, value: int | None) -> SkillRating:
    rows = tuple(DimensionRating(name=name, score=value, evidence="") for name in DIMENSIONS[skill])
    return SkillRating(skill=skill, dimensions=rows)


floats = st.floats(allow_nan=True, allow_infinity=True)
works = st.builds(
    WorkEvidence,
    method=st.just("kernels"),
    own=floats,
    library=floats,
    pytorch=floats,
    copies=floats,
    other=floats,
    observations=st.integers(0, 9),
    outputs_right=st.booleans(),
)
checks = st.builds(
    Check,
    program_id=st.just("p"),
    task_id=st.just("t"),
    status=st.one_of(st.just("accepted"), st.sampled_from(get_args(CheckStatus))),
    flags=st.lists(st.sampled_from(get_args(CheckFlag)), max_size=2).map(tuple),
    work=st.none() | works,
)
ratios = st.builds(
    Ratio,
    baseline=st.sampled_from(["eager", "compile:default", "cudagraph"]),
    speedup=floats,
    low=floats,
    high=floats,
    outcome=st.sampled_from(get_args(BenchOutcome)),
)
benches = st.builds(
    Bench,
    program_id=st.just("p"),
    task_id=st.just("t"),
    outcome=st.sampled_from(get_args(BenchOutcome)),
    ratios=st.lists(ratios, max_size=3).map(tuple),
    program_failed=st.booleans(),
    doubt=st.sampled_from(["", "work is moved"]),
)
skills = st.sampled_from(get_args(Skill))
evidences = st.builds(
    RewardEvidence,
    skill=skills,
    unusable=st.sampled_from(["", "", "", "no code"]),
    check=st.none() | checks,
    bench=st.none() | benches,
    rating=st.none() | st.builds(rated, skills, st.none() | st.integers(1, 5)),
)


@every_preset
@given(evidence=evidences)
def test_the_reward_is_finite_and_in_its_range_for_every_input(
    preset: RewardPreset, evidence: RewardEvidence
) -> None:
    reward = score(evidence, preset)
    assert math.isfinite(reward.total)
    assert preset.floor <= reward.total <= preset.ceiling
    assert all(math.isfinite(part.value) for part in reward.parts)
    # Nothing but an accepted check with a timing that is beyond doubt earns anything.
    if evidence.check is None or evidence.check.status != "accepted" or evidence.bench is None:
        assert reward.total == preset.floor
    assert reward.correct or (reward.total == preset.floor and reward.reasons)


@every_preset
def test_a_gain_within_noise_earns_what_eagers_speed_earns(preset: RewardPreset) -> None:
    noisy = score(make_evidence(0.8, 3.0), preset)
    assert noisy.speedup == 1.0
    assert noisy.total == score(make_evidence(1.0, 1.0), preset).total


def test_noise_earns_nothing_and_costs_no_more_than_slowness() -> None:
    """Too few undisturbed rounds give no interval: the medians count, and never as a gain."""

    def total(program_us: float | None, eager_us: float | None, *, single: bool = True) -> Reward:
        rows = (("eager", eager_us), ("program", program_us))
        timings = tuple(
            Timing(name=name, latency_us=value if single else None, throughput_us=None if single else value)
            for name, value in rows
        )
        bench = Bench(program_id="p", task_id="t", outcome="inconclusive", timings=timings)
        return score(RewardEvidence(check=make_check(), bench=bench), STITCHCUDA)

    par = score(make_evidence(1.0, 1.0), STITCHCUDA).total
    assert total(50.0, 100.0).total == total(100.0, 100.0).total == par == pytest.approx(1.3)
    assert total(100.0, 90.0).total == pytest.approx(score(make_evidence(0.9, 0.9), STITCHCUDA).total)
    assert total(1000.0, 10.0).total == total(1000.0, 10.0, single=False).total == pytest.approx(0.31)
    for untimed in (total(None, 100.0), total(100.0, None), total(math.inf, 1.0), total(0.0, 1.0)):
        assert (untimed.total, untimed.valid, untimed.reasons) == (0.0, False, ("it was not timed",))


def test_of_a_gain_the_lower_end_counts_and_of_a_loss_the_upper() -> None:
    assert score(make_evidence(1.5, 2.5), KEVIN).total == pytest.approx(1.8)
    assert score(make_evidence(0.5, 0.7), KEVIN).total == pytest.approx(1.0)


def test_stitchcuda_is_the_papers_formula() -> None:
    def total(speedup: float, skill: Skill, value: int | None) -> float:
        evidence = make_evidence(speedup, speedup, skill=skill)
        rating = None if value is None else rated(skill, value)
        return score(evidence.model_copy(update={"rating": rating}), STITCHCUDA).total

    assert total(1.2, "generate", None) == pytest.approx(1.5)
    assert total(1.2, "generate", 5) == pytest.approx(1.5 * 1.5)
    assert total(1.2, "generate", 2) == pytest.approx(1.5 * 0.75)
    assert total(1.2, "refine", 5) == pytest.approx(1.5 * 1.35)
    assert total(4.0, "generate", 5) == 3.0


def test_milestones_need_five_percent_beyond_noise_over_eager_and_then_torch_compile() -> None:
    def total(*rows: Ratio) -> float:
        return score(RewardEvidence(check=make_check(), bench=make_bench(*rows)), MILESTONE).total

    compiled = "compile:default"
    assert total(make_ratio(1.04, 1.3)) == 1
    assert total(make_ratio(1.06, 1.3)) == 2
    assert total(make_ratio(1.06, 1.3), make_ratio(1.06, 1.2, compiled)) == 3
    assert total(make_ratio(1.06, 1.3), make_ratio(0.9, 1.2, compiled)) == 2
    best = make_ratio(0.7, 0.8, "compile:max-autotune")
    assert total(make_ratio(2, 3), make_ratio(1.5, 1.6, compiled), best) == 2
    assert total(make_ratio(0.9, 0.95), make_ratio(1.5, 1.6, compiled)) == 1
    assert score(RewardEvidence(check=make_check("incorrect")), MILESTONE).total == -1


def test_coverage_multiplies_by_the_own_kernels_share() -> None:
    full, tenth = (score(make_evidence(2.0, 2.0, own=own), COVERAGE).total for own in (1.0, 0.9))
    assert full == pytest.approx(2.3)
    assert tenth == pytest.approx(0.9 * full)


@every_preset
@pytest.mark.parametrize(
    ("evidence", "hacking", "valid"),
    [
        (RewardEvidence(unusable="no code block"), False, True),
        (RewardEvidence(check=make_check("rejected_cheat")), False, True),
        (RewardEvidence(check=make_check("unmeasured")), False, False),
        (RewardEvidence(check=make_check("unmeasured", flags=("unsupported_rng",))), False, True),
        (RewardEvidence(check=make_check()), False, False),
        (RewardEvidence(check=make_check(), bench=make_bench()), False, False),
        (RewardEvidence(check=make_check(), bench=make_bench(program_failed=True)), False, True),
        (RewardEvidence(check=make_check(flags=("partial",), own=None), bench=make_bench()), False, True),
    ],
)
def test_what_earns_nothing_gets_the_floor(
    preset: RewardPreset, evidence: RewardEvidence, hacking: bool, valid: bool
) -> None:
    reward = score(evidence, preset)
    assert (reward.total, reward.correct, reward.hacking, reward.valid) == (
        preset.floor,
        False,
        hacking,
        valid,
    )


@every_preset
def test_signs_of_deceit_earn_nothing_however_fast_the_program_is(preset: RewardPreset) -> None:
    fast = make_bench(make_ratio(5, 6), make_ratio(5, 6, "compile:default"))
    doubt = TimingDoubt(rule="deferred_work", observed=9.0, expected=1.0)
    patched = Finding(rule="judge_patched", severity="suspicious", message="it patches the judge")
    rating = rated("generate", 1)
    for evidence in (
        RewardEvidence(check=make_check(), bench=fast.model_copy(update={"doubts": (doubt,)})),
        RewardEvidence(check=make_check(findings=(patched,)), bench=fast),
        RewardEvidence(check=make_check(), bench=fast, rating=rating),
    ):
        reward = score(evidence, preset)
        assert (reward.total, reward.hacking, reward.valid) == (preset.floor, True, True)


def test_flags_that_a_policy_would_learn_to_collect_earn_nothing_unless_they_are_let_through() -> None:
    evidence = make_evidence(2, 2).model_copy(update={"check": make_check(flags=("library_only",))})
    assert score(evidence, KEVIN).total == 0
    open_policy = evidence.model_copy(update={"policy": RewardPolicy(refused_flags=())})
    assert score(open_policy, KEVIN).total == pytest.approx(2.3)


def test_the_published_points_are_in_order() -> None:
    for point in all_points():
        preset = find_preset(point.preset)
        assert point.floor == preset.floor < point.par < point.oracle <= point.ceiling == preset.ceiling


def test_an_unknown_preset_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="there is no reward preset 'best'"):
        find_preset("best")
