"""Remembers: what the documentation on this machine says, and notes of ours on when a technique pays."""
