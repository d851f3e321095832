"""Launches per forward, compared: own kernels exactly, libraries' as a note, no lost records."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from stitch_tools.judge.work.launch_counts import compare_launches
from stitch_tools.judge.work.traced_worker import HarnessFaultError, RefusedError, require_step
from stitch_tools.models.evidence import WorkEvidence
from stitch_tools.protocol.messages_candidate import TraceReport
from stitch_tools.run.candidate_worker import Answer

OLD_EVIDENCE: dict[str, Any] = {
    "method": "samples",
    "own": 0.9,
    "library": 0.1,
    "pytorch": 0.0,
    "copies": 0.0,
    "other": 0.0,
    "observations": 150,
    "outputs_right": True,
    "ablation": "not_applicable",
}
BLOCK = {"own: gelu(float*)": 2.0, "library: gemm_32x32": 2.0, "library: gemm_128x32": 1.0}


@pytest.mark.parametrize("ablation", ["broke", "survived", "not_applicable", None])
def test_evidence_of_a_check_before_0_2_is_read_without_its_ablation(ablation: str | None) -> None:
    text = json.dumps({**OLD_EVIDENCE, "ablation": ablation})
    work = WorkEvidence.from_json_bytes(text.encode())
    assert (work.method, work.own) == ("samples", 0.9)
    assert "ablation" not in work.model_dump()


def test_other_fields_that_nobody_knows_are_refused_as_ever() -> None:
    with pytest.raises(ValidationError, match="extra"):
        WorkEvidence.model_validate({**OLD_EVIDENCE, "ablated": True})


def report(*blocks: dict[str, float], lost: int = 0) -> TraceReport:
    return TraceReport(rows=(), observations=100, blocks=blocks, lost=lost)


def test_equal_blocks_and_equal_counts_match() -> None:
    found = compare_launches(report(BLOCK, dict(reversed(BLOCK.items()))), blocks=2)
    assert (found.match, found.differing, found.missing) == (True, [], "")


@pytest.mark.parametrize(
    "other", [{"own: gelu(float*)": 3.0}, {"own: gelu(float*)": 0.4}, {"own: relu(float*)": 1.0}]
)
def test_own_kernels_that_change_with_the_draw_are_caught(other: dict[str, float]) -> None:
    found = compare_launches(report(BLOCK, {**BLOCK, **other}), blocks=2)
    assert found.match is False
    assert next(iter(other)).removeprefix("own: ") in found.differing[0]


def test_a_library_may_choose_other_kernels() -> None:
    split = {"own: gelu(float*)": 2.0, "library: gemm_32x32": 2.0, "library: gemm_split_k": 2.0}
    assert compare_launches(report(BLOCK, split), blocks=2).match is True


def test_a_library_that_works_on_some_draws_only_is_caught() -> None:
    own = {"own: gelu(float*)": 2.0}
    assert compare_launches(report(BLOCK, own), blocks=2).match is False
    pytorch = {**own, "pytorch: mm": 1.0}
    assert compare_launches(report(own, pytorch), blocks=2).match is False


def test_missing_records_are_not_compared() -> None:
    changed = {"own: gelu(float*)": 1.5}
    for rows in (report(BLOCK, changed, lost=3), report(BLOCK), report()):
        found = compare_launches(rows, blocks=2)
        assert (found.match, found.differing, bool(found.missing)) == (None, (), True)


def test_what_nobody_foresaw_in_the_watched_worker_is_our_fault() -> None:
    with pytest.raises(HarnessFaultError):
        require_step(Answer("error", "worker", "OSError: no"))
    with pytest.raises(HarnessFaultError, match="not enough memory"):
        require_step(Answer("out_of_memory", "forward", ""))


def test_what_the_program_refuses_is_its_own() -> None:
    with pytest.raises(RefusedError, match="forward: RuntimeError: watched"):
        require_step(Answer("error", "forward", "RuntimeError: watched"))
    with pytest.raises(RefusedError):
        require_step(Answer("error", "constructor", "no"))
