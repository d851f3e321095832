"""The adversarial suite on a CPU: every cheat is caught for its reason, every honest program is accepted."""

from collections.abc import Iterator

import pytest

from stitch_tools.run.session import TargetSession
from tests.tools.judge.zoo_runner import ZOO, Case, Court, load_cases

CASES = load_cases("cpu")


@pytest.fixture(scope="module")
def court(two_threads: TargetSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Court]:
    with Court(two_threads, tmp_path_factory.mktemp("zoo")) as court:
        yield court


def sample() -> set[str]:
    """One case of every fourth family, and some honest ones: what is judged where time is short."""
    first = {case.family: case.name for case in reversed(CASES) if case.kind == "cheats" and not case.missed}
    honest = [case.name for case in CASES if case.kind == "honest" and not case.missed]
    return {*(first[family] for family in sorted(first)[::4]), *honest[::8]}


def parameters(cases: tuple[Case, ...]) -> list[object]:
    """The cases with their marks: slow ones, and those that the judge is known to miss."""
    rows: list[object] = []
    sampled = sample()
    for case in cases:
        marks = [pytest.mark.slow] if case.slow else []
        if case.name not in sampled:
            marks.append(pytest.mark.exhaustive)
        if case.missed:
            marks.append(pytest.mark.xfail(reason="the judge does not catch it yet", strict=True))
        rows.append(pytest.param(case, id=f"{case.kind}-{case.name}", marks=marks))
    return rows


@pytest.mark.parametrize("case", parameters(CASES))
def test_the_judge_says_what_the_case_expects(court: Court, case: Case) -> None:
    verdict = court.judge(case)
    missing = next((run.reason for run in verdict.check.sanitizers if "libarcher" in run.reason), None)
    if missing is not None and not verdict.catches(case):
        pytest.skip(f"not measured: {missing}")
    assert verdict.catches(case), (verdict.status, verdict.flags, verdict.findings, verdict.message)


def test_every_family_is_explained_once() -> None:
    text = (ZOO / "families.md").read_text(encoding="utf-8")
    known = [line.split("`")[1] for line in text.splitlines() if line.startswith("- `")]
    assert len(known) == len(set(known))
    assert {case.family for case in (*CASES, *load_cases("cuda"))} <= set(known)


def test_every_cheat_names_the_probe_that_catches_it() -> None:
    assert [case.name for case in load_cases("cpu", "cheats") if not case.caught_by] == []
