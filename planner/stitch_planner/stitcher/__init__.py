"""The stitcher, a Coder without a language model: captured graph -> plan -> typed kernel IR -> text."""

from stitch_planner.stitcher.stitch import Stitched, StitchFailedError, stitch

__all__ = ["StitchFailedError", "Stitched", "stitch"]
