"""The ordered list of lowering templates. Adding a family is one file and one line here."""

from stitch_planner.stitcher.templates.base import NOT_MINE, LibraryTemplate, Template
from stitch_planner.stitcher.templates.elements import Elements
from stitch_planner.stitcher.templates.gemm import Gemm
from stitch_planner.stitcher.templates.windows import Windows

TEMPLATES: tuple[Template, ...] = (Windows(), Gemm(), Elements())

__all__ = ["NOT_MINE", "TEMPLATES", "LibraryTemplate", "Template"]
