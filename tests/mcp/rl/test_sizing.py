"""Sizes of training runs follow their unit costs."""

from pathlib import Path

import pytest

from stitch_mcp.rl.sizing import ClusterShape, ModelShape, RunShape, UnitCosts, size_run
from tests.mcp.cli_support import call

QWEN3_32B = ModelShape(weights_billion=32.8, layers=64, width=5120, kv_heads=8, head_width=128)


def test_a_32b_model_with_adapters_fits_four_large_gpus_and_full_training_does_not() -> None:
    adapters = size_run(QWEN3_32B)
    assert adapters.memory_parts_gb["weights"] == pytest.approx(32.8 * 2 / 4)
    assert QWEN3_32B.kv_bytes_per_token == 2 * 64 * 8 * 128 * 2
    assert adapters.fits
    full = size_run(QWEN3_32B, RunShape(lora_rank=0))
    assert full.memory_parts_gb["trained"] == pytest.approx(32.8 * 14 / 4)
    assert not full.fits


def test_a_model_that_does_not_even_leave_room_for_one_sequence_does_not_fit() -> None:
    small = size_run(QWEN3_32B, cluster=ClusterShape(gpu_memory_gb=16.0))
    assert (small.sequences_at_once, small.fits) == (0, False)


def test_the_judge_takes_as_long_as_its_scarcest_part() -> None:
    run, costs = RunShape(group_size=10, prompts_per_step=10, repeated_share=0.0), UnitCosts()
    few = size_run(QWEN3_32B, run, costs, ClusterShape(judge_gpus=1, judge_cpu_cores=1))
    assert few.judge_s == few.judge_parts_s["build"] == 80 * costs.build_cpu_s
    many = size_run(QWEN3_32B, run, costs, ClusterShape(judge_gpus=1, judge_cpu_cores=1000))
    assert many.judge_s == many.judge_parts_s["time"] == 40 * costs.time_gpu_s
    more = size_run(QWEN3_32B, run, costs, ClusterShape(judge_gpus=4, judge_cpu_cores=1000))
    assert more.judge_s == pytest.approx(many.judge_s / 4)


def test_hours_and_gpu_hours_add_up() -> None:
    sizing = size_run(QWEN3_32B, RunShape(steps=100), cluster=ClusterShape(train_gpus=8, judge_gpus=2))
    assert sizing.step_s == pytest.approx(sizing.generate_s + sizing.judge_s + sizing.train_s)
    assert sizing.hours == pytest.approx(sizing.step_s * 100 / 3600)
    assert (sizing.train_gpu_hours, sizing.judge_gpu_hours) == (
        pytest.approx(sizing.hours * 8),
        pytest.approx(sizing.hours * 2),
    )
    assert sizing.rollouts_per_hour == pytest.approx(128 * 3600 / sizing.step_s)


def test_a_number_that_cannot_be_is_refused_by_the_name_of_its_option(tmp_path: Path) -> None:
    code, answer = call(tmp_path, "rl", "sizing", "--train-gpus", "0")
    assert (code, "--train-gpus 0" in answer["error"]["message"]) == (2, True)
