"""How much memory is free is known."""

from stitch_tools.worker.meminfo import available_bytes


def test_available_memory_is_known() -> None:
    assert available_bytes() > 1 << 20
