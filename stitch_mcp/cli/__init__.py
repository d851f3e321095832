"""Command line: one command a module."""
