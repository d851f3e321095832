"""What one child may use."""

from dataclasses import dataclass

from stitch_tools.confine.free_memory import available_bytes
from stitch_tools.protocol.messages_session import ChildLimits

_GIB = 1 << 30
_SHARE_OF_FREE = 0.9


@dataclass(frozen=True)
class Limits:
    """Upper bounds of one child and everything that it starts."""

    memory_bytes: int | None = None
    """Memory beyond what the zygote gave it; None: nine tenths of what is free when it starts."""
    scratch_bytes: int = 2 * _GIB
    """Size of its scratch folder (and of its /dev/shm), which count as memory at level full."""
    output_bytes: int = 16 << 20
    """Printed bytes, both streams together; more is a flood."""
    processes: int = 64
    shadow_memory: bool = False
    """Whether a sanitizer's shadow memory is reserved: terabytes of addresses that RLIMIT_DATA would count.
    The watchdog over resident memory then bounds it alone."""

    def as_message(self) -> ChildLimits:
        """The limits as plain numbers for the zygote."""
        return ChildLimits(
            memory_bytes=self.memory_bytes or int(available_bytes() * _SHARE_OF_FREE),
            scratch_bytes=self.scratch_bytes,
            output_bytes=self.output_bytes,
            processes=self.processes,
            shadow_memory=self.shadow_memory,
        )
