"""A question decides what is recorded, before anything runs."""

import pytest

from stitch_tools.errors import UsageError
from stitch_tools.profile.asking import options_for
from stitch_tools.profile.profile_work import ProfileOptions

GPU = "cuda:sm_90"
SYSTEM, KERNEL, BOTH = (ProfileOptions(level=level) for level in ("system", "kernel", "both"))


def test_a_question_about_kernels_collects_its_own_counters_alone() -> None:
    options = options_for(SYSTEM, "Bank conflicts?", GPU)
    assert (options.level, options.questions) == ("kernel", ("bank_conflicts",))
    assert options_for(BOTH, "bank_conflicts", GPU) == BOTH


def test_ncus_own_rules_need_the_kernel_level_with_all_its_sections() -> None:
    assert options_for(SYSTEM, "ncu_rules", GPU) == KERNEL


def test_a_cause_needs_the_system_level() -> None:
    assert options_for(SYSTEM, "host_bound", GPU) == SYSTEM
    assert options_for(KERNEL, "host_bound", GPU) == BOTH


def test_on_a_cpu_one_recording_answers_all() -> None:
    assert options_for(SYSTEM, "hot_function", "cpu") == SYSTEM
    assert options_for(SYSTEM, "", GPU) == SYSTEM


def test_a_question_that_nobody_answers_is_refused_with_those_that_can_be_asked() -> None:
    with pytest.raises(UsageError, match="who_did_it") as caught:
        options_for(SYSTEM, "who_did_it", GPU)
    assert "tail_wave" in caught.value.hint
    assert "host_bound" in caught.value.hint
