"""Draws of a check: which are made, how each is run, and what its result means."""
