"""Certificates as small as they can be, for tests of what is done with them."""

from stitch_tools.models.environment import Environment
from stitch_tools.models.verdict import Bench, Check
from stitch_tools.storage.certificate import Certificate


def draft_certificate(bench: Bench | None = None) -> Certificate:
    """A certificate of an accepted program "p" for a task "t", not sealed yet."""
    return Certificate(
        created_at="2026-01-01T00:00:00+00:00",
        run_id="r",
        task_id="t",
        program_id="p",
        target="cpu",
        check=Check(program_id="p", task_id="t", status="accepted"),
        bench=bench,
        environment=Environment(stitch_version="0", platform="test"),
        files=(),
    )
