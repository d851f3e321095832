"""Captures a module's forward as a graph of ATen operations."""
