"""Static evidence: findings from a program's text alone, by parsers, without running any of it."""

from stitch_tools.judge.source.scan import RULES, scan_program

__all__ = ["RULES", "scan_program"]
