"""A process for references and programs; and what tests leave behind, and should not."""

import sys
from collections.abc import Iterator

import pytest

from stitch_tools.run.session import TargetSession
from tests.planner.loaded_programs import programs_forgotten


@pytest.fixture(scope="module")
def session(two_threads: TargetSession) -> TargetSession:
    """Two threads in the interpreter that runs these tests."""
    return two_threads


@pytest.fixture(autouse=True)
def _no_program_stays_loaded(  # pyright: ignore[reportUnusedFunction]  # pytest calls it
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[None]:
    # A Python program and its reference are imported under names of their own choice, in a process that a
    # worker has for itself.
    monkeypatch.setattr(sys, "path", list(sys.path))
    with programs_forgotten():
        yield
