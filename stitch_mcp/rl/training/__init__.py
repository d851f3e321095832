"""GRPO on rewards from real builds and timings. torch, transformers, trl and peft are the extra `rl`."""
