"""What ncu's own rules say: read from the details page, an estimate of time kept apart from one of a unit."""

from hypothesis import given
from hypothesis import strategies as st

from stitch_tools.models.profile import KernelProfile, Profile
from stitch_tools.profile.ncu_rules import MOST_RULES, parse_rules
from stitch_tools.profile.profile_text import answer_question, questions_of, rule_lines
from tests.tools.profile.ncu_tables import rules_page

PAGE = rules_page(
    [
        ("0", "k(int)", "Balanced", "INF", "Nothing to do.", "", ""),
        ("0", "k(int)", "IdlePipes", "OPT", "Pipes are\nhardly used.", "local", "85.2"),
        ("0", "k(int)", "Uncoalesced", "OPT", "28,016 sectors too many.", "global", "41.81"),
        ("0", "k(int)", "Tiny", "OPT", "Hardly anything.", "global", "0.4"),
        ("1", "other(int)", "Stalls", "WRN", "Warps wait.", "", ""),
    ]
)


def test_an_estimate_of_time_comes_before_a_larger_one_of_a_single_unit() -> None:
    rules = parse_rules(PAGE)
    assert [(row.name, row.saves_share, row.unit_share) for row in rules[0]] == [
        ("Uncoalesced", 0.4181, None),
        ("IdlePipes", None, 0.852),
    ]
    assert rules[0][1].text == "Pipes are hardly used."
    # ncu of before 2023 estimates nothing.
    assert [(row.name, row.saves_share, row.unit_share) for row in rules[1]] == [("Stalls", None, None)]


def test_a_kernel_has_few_rules_and_each_once() -> None:
    rows = [("0", "k", f"Rule{number % 9}", "OPT", "Same words.", "global", "10") for number in range(30)]
    (rules,) = parse_rules(rules_page(rows)).values()
    assert len(rules) == MOST_RULES
    assert len({row.name for row in rules}) == MOST_RULES


@given(st.text(max_size=300))
def test_any_text_is_survived(text: str) -> None:
    for body in (text, f'"ID","Rule Name","Rule Type","Estimated Speedup"\n{text}'):
        parse_rules(body)


def test_the_profile_tells_each_estimate_with_its_share_of_the_whole() -> None:
    kernel = KernelProfile(kernel="k(int)", origin="ncu", share=0.5, rules=parse_rules(PAGE)[0])
    fields = {"subject": "program", "subject_id": "a", "task_id": "b", "target": "cuda:sm_90"}
    profile = Profile.model_validate(
        {**fields, "level": "kernel", "status": "profiled", "kernels": (kernel,)}
    )
    first, second = rule_lines(profile)
    assert "Uncoalesced: 28,016 sectors too many." in first
    assert first.endswith("41.8% of this kernel's time, 20.9% of all kernels'.")
    assert "no time" in second
    assert "ncu_rules" in questions_of(profile)
    assert answer_question(profile, "ncu rules") == (first, second)


def test_a_page_without_rules_has_none() -> None:
    assert parse_rules('"ID","Kernel Name","Metric Name","Metric Value"\n"0","k","a__b","1"\n') == {}
    assert parse_rules("==ERROR== no such report") == {}
