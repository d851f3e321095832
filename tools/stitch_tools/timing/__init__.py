"""Timing of programs and baselines by the controller's clock: blocks, statistics, the bench itself."""

from stitch_tools.timing.bench import BenchOptions, benchmark_program

__all__ = ["BenchOptions", "benchmark_program"]
