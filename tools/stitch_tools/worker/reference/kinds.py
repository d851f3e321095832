"""Names of draws; free of torch, so that the controller can read them, too."""

STRUCTURED = ("signed", "scaled", "outliers", "constants", "zeros", "near-constant", "permuted")
"""Kinds beside `own-N` and `batch-probe`, in the order in which a check makes them."""
