"""A process for references and programs; and what tests leave behind, and should not."""

import sys
from collections.abc import Iterator

import pytest

from stitch_tools.run.session import TargetSession

_PROGRAMS = ("stitch_reference", "stitch_candidate", "stitch_runtime")


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
    yield
    # What a fixture of the module loaded before the test, too: who has the program holds what it needs of it.
    for name in list(sys.modules):
        if name.partition(".")[0] in _PROGRAMS:
            del sys.modules[name]
