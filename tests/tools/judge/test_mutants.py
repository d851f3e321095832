"""Faults in correct programs are noticed: the operators, the originals, and a sample of the mutants."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from stitch_tools.run.interpreter import find_interpreter
from stitch_tools.run.session import TargetSession
from tests.tools.judge.mutants import (
    HAND_WRITTEN,
    STITCHED,
    Mutant,
    MutantBench,
    Original,
    mutants,
    originals,
    rate,
    spread,
)
from tests.tools.judge.mutation_operators import OPERATORS, ROUNDED, Operator, SourceBody, edits, text

SOURCE = b"""
void other(float* y) { y[0] = 1.0f; }
void scale(const float* x, const float* bias, float* y, long rows, long width) {
  for (long row = 0; row < rows; ++row) {
    float sum = 0.0f, top = x[row * width];
    for (long i = 0; i < width; ++i) top = std::max(top, x[row * width + i]);
    for (long i = 0; i < width; ++i) sum += std::exp(x[row * width + i] - top);
    if (row % 2 < 1 && rows > 1) y[row] = sum * 0.125f + bias[row] / (sum + 1e-5f);
  }
}
"""
SAMPLE = 24


@pytest.fixture(scope="module")
def programs() -> list[Original]:
    return list(originals())


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MutantBench]:
    root = tmp_path_factory.mktemp("mutants")
    session = TargetSession(find_interpreter(None, root), threads=1, scratch_root=root / "scratch")
    with session, MutantBench(session, root) as bench:
        yield bench


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.__name__)
def test_each_operator_finds_a_place_and_changes_only_that(operator: Operator) -> None:
    found = list(operator(SourceBody(SOURCE, ("scale",))))
    assert found
    for edit in found:
        changed = edit.apply(SOURCE).removeprefix(ROUNDED.encode())
        assert changed != SOURCE
        assert changed.startswith(SOURCE[: edit.start])
        assert changed.endswith(SOURCE[edit.end :])
        assert edit.start > SOURCE.index(b"void scale")


def test_faults_stay_in_the_functions_that_compute() -> None:
    assert [text(node) for node in SourceBody(SOURCE, ("other",)).of("number_literal")] == ["0", "1.0f"]
    assert list(edits(SOURCE, (), 5)) == []


def test_there_are_200_faults_of_ten_programs_and_the_same_each_time(programs: list[Original]) -> None:
    found = [row for original in programs for row in mutants(original)]
    assert len(programs) == len(HAND_WRITTEN) + len(STITCHED) >= 10
    assert len(found) >= 200
    assert {row.operator for row in found} == {operator.__name__ for operator in OPERATORS}
    assert len({(row.original.name, row.source) for row in found}) == len(found)
    again = [row.source for original in originals() for row in mutants(original)]
    assert [row.source for row in found] == again


@pytest.mark.exhaustive
def test_the_originals_are_accepted(bench: MutantBench, programs: list[Original]) -> None:
    assert [row.name for row in programs if bench.status_of(row) != "accepted"] == []


@pytest.mark.exhaustive
def test_of_a_sample_every_fault_that_anything_shows_is_noticed(
    bench: MutantBench, programs: list[Original]
) -> None:
    found = [row for original in programs for row in mutants(original)]
    rows = spread(found, SAMPLE)
    results = list(bench.judge(rows))
    assert len(results) >= SAMPLE - 2  # one or the other may not compile
    assert [row for row in results if row.outcome == "missed"] == []
    assert rate(results) == 1.0
    assert sum(row.outcome == "equivalent" for row in results) <= SAMPLE // 10


def test_a_program_without_a_fault_is_called_equivalent(bench: MutantBench, programs: list[Original]) -> None:
    original = programs[0]
    source = original.files[original.main]
    (same,) = bench.judge([Mutant(original, "none", 1, "", "", source)])
    assert (same.outcome, same.evidence) == ("equivalent", "the same machine code")
    # Other machine code, and no other result.
    renamed = source.replace(b", bias.data(),", b", &bias[0],")
    assert renamed != source
    (other,) = bench.judge([Mutant(original, "none", 1, "", "", renamed)])
    assert other.outcome == "equivalent"


@pytest.mark.exhaustive
def test_the_search_blames_no_mutant_for_what_last_bits_of_the_inputs_do(
    bench: MutantBench, programs: list[Original]
) -> None:
    original = next(row for row in programs if row.name == "stitched layer_norm")
    # The mean is off by a thousandth, and the mean of the differences to it is taken off again: only in rows
    # whose spread is thousands of times smaller than their mean are the digits others than the original's.
    slipped = next(row for row in mutants(original) if (row.before, row.after) == ("256.0f", "256.256f"))
    assert b"row.v3 = row.v1 / 256.256f;" in slipped.source
    taken_off = b"const float v13 = v4 - row.v6;"
    assert slipped.source.count(taken_off) == 1
    left = replace(slipped, source=slipped.source.replace(taken_off, b"const float v13 = v4;"))
    for mutant, outcome in ((slipped, "equivalent"), (left, "missed")):
        _, build = bench.build(original, mutant.source)
        assert bench.search(mutant, build)[0] == outcome


def test_the_search_finds_a_fault_that_the_judge_may_have_missed(
    bench: MutantBench, programs: list[Original]
) -> None:
    original = next(row for row in programs if row.name == "threads_from_environment")
    source = original.files[original.main]
    hidden = source.replace(b"int threads) {", b"int threads) {\n  if (rows == 17) return;")
    assert hidden != source
    mutant = Mutant(original, "none", 1, "", "", hidden)
    _, build = bench.build(original, hidden)
    outcome, evidence = bench.search(mutant, build)
    assert (outcome, evidence.partition(":")[0]) == ("missed", "different")
