"""How much memory is free is known."""

from stitch_tools.protocol.free_memory import available_bytes


def test_available_memory_is_known() -> None:
    assert available_bytes() > 1 << 20
