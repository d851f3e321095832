"""Decisions: the plan, the stitcher and the loop that drives the instruments below."""
