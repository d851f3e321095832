"""The machine and the tools that a result was made with."""

from stitch_tools.models.base import Fact


class Environment(Fact):
    """What must be known to repeat a result. None: not there, or not found out."""

    stitch_version: str
    platform: str
    """Operating system and kernel release."""
    cpu: str | None = None
    """CPU model."""
    cpu_count: int | None = None
    """Cores that this process may use."""
    gpu: str | None = None
    gpu_driver: str | None = None
    python: str | None = None
    """Version of the target interpreter."""
    torch: str | None = None
    """torch in the target interpreter."""
    compiler: str | None = None
    """Version line of the compiler that built the program."""
    sandbox: str | None = None
    """Isolation level of this machine."""
    plane: str | None = None
    """How tensors on a GPU travelled: `device` or `host`."""
