"""Static evidence: findings from a program's text alone, by parsers, without running any of it."""

from stitch_tools.judge.source.scan import scan_program
from stitch_tools.judge.source.table import RULES

__all__ = ["RULES", "scan_program"]
