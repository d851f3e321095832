"""Profiles of references and accepted programs: where their time goes, by the tools that this machine has."""
