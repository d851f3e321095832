"""Timing of programs and baselines by the controller's clock: blocks, statistics, the bench itself."""

from stitch_tools.judge.timing.bench import benchmark_program
from stitch_tools.judge.timing.options import BenchOptions

__all__ = ["BenchOptions", "benchmark_program"]
