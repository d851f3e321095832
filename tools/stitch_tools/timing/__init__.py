"""Timing of programs and baselines by the controller's clock: blocks, statistics, the bench itself."""
