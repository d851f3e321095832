"""Builds: compilers found, commands, the cache, diagnostics."""

from stitch_tools.compile.build import compile_program

__all__ = ["compile_program"]
