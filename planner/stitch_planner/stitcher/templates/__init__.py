"""The ordered list of lowering templates. Adding a family is one file and one line here."""

from stitch_planner.stitcher.templates.base import NOT_MINE, Template

TEMPLATES: tuple[Template, ...] = ()

__all__ = ["NOT_MINE", "TEMPLATES", "Template"]
