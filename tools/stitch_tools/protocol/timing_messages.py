"""Messages of what is timed: a program or a baseline that serves calls over a ring, and a device's rates."""

from dataclasses import replace

from stitch_tools.protocol.memory import PackEntry
from stitch_tools.protocol.messages import Done, Fd, Message, Operation
from stitch_tools.protocol.messages_candidate import StepReply

OutputSpec = tuple[str, list[int], str]
"""Name, shape and type of one output."""


class LoadLoop(Operation[StepReply], op="timed_runner"):
    """Load the C loop, before the program is loaded."""

    library: str
    cuda: bool


class TimeProgram(Operation[StepReply], op="timed_program"):
    """Prepare a ring of calls of the program, and serve them until the controller stops."""

    slots: int
    outputs: list[OutputSpec]
    """Of one slot."""
    inputs: list[list[PackEntry]]
    """By draw; slot i gets draw i modulo their number."""
    unseen: list[list[PackEntry]]
    """Draws that the ring gets once its loop was ended."""
    structure: object
    output_structure: object
    state: list[str]
    """Buffers that calls update."""
    graphed: bool
    """Capture forward in a CUDA graph first."""
    in_place: bool
    """The draws are the slots' inputs themselves, in memory that the controller writes to."""
    outputs_fd: Fd
    draw_fds: tuple[Fd, ...]
    """Packs of `inputs`, then of `unseen`."""
    pipes: tuple[Fd, ...] = ()
    """Requests and replies of the loop; known when the message is sent."""


class TimeBaseline(Operation[Done], op="timed_baseline"):
    """Build one baseline and serve its calls over a ring of these draws until the controller stops."""

    baseline: str
    slots: int
    seeds: list[int]
    pipes: tuple[Fd, ...] = ()
    """As in `TimeProgram`."""


RingRequest = TimeProgram | TimeBaseline


def with_pipes(request: RingRequest, pipes: tuple[int, int]) -> RingRequest:
    """The request with the pipes that its loop is to serve."""
    return replace(request, pipes=tuple(map(Fd, pipes)))


class DeviceRates(Message):
    """What a device reaches by torch."""

    flops_per_s: dict[str, float]
    """Of matrix products by format."""
    copy_bytes_per_s: float
    cache_bytes_per_s: float
    write_bytes_per_s: float
    launch_s: float
    node_s: float | None = None
    """From one short kernel to the next of another kind in a CUDA graph; None on a CPU."""
    transfers: dict[str, float] | None = None
    """Bytes per second between host and device, by the names of `TransferRates`; None on a CPU."""


class MeasureCeilings(Operation[DeviceRates], op="ceilings"):
    """Measure what a device reaches; needs no reference."""

    device: str
    cache_bytes: int
    """Of its last-level cache."""
