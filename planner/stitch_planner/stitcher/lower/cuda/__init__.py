"""Lowering templates of CUDA programs."""
