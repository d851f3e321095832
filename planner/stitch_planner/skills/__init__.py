"""Recipes for fast programs: a folder each, with SKILL.md, a complete program and its reference."""
