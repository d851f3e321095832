"""Messages of the worker that holds a candidate, timed or traced. Its replies are claims."""

from typing import Literal

from stitch_tools.protocol.memory import PackEntry
from stitch_tools.protocol.messages import Fd, Message, Operation
from stitch_tools.protocol.messages_reference import WeightsMade


class StepReply(Message):
    """What the worker says of one step; status `ok`, or the program's own trouble."""

    status: str = "ok"
    step: str = ""
    message: str = ""
    generator: bytes = b""
    """The generator state after a `ModelNew`'s forward."""
    held: tuple[str, ...] = ()
    """Outputs that lie in the memory of the inputs."""
    changed: tuple[str, ...] = ()
    """Buffers that no call may change, and that hold something else now."""
    unspoiled: str = ""
    """Why a GPU's shared memory was not full of NaN patterns before the call; "" where it was."""
    loaded: bool = False
    """Whether a `ModelNew` constructed other weights, and was given the reference's by `load_state_dict`."""
    container: str = ""
    """In which other containers than the reference's a `ModelNew` returned its outputs."""
    earlier_inputs: tuple[str, ...] = ()
    """Inputs of earlier calls, in memory that is not this call's, that hold something else now."""
    earlier_outputs: tuple[str, ...] = ()
    """Outputs of earlier calls that hold something else now."""

    @property
    def ok(self) -> bool:
        """Whether the step was done."""
        return self.status == "ok"


class LoadNative(Operation[StepReply], op="load_native"):
    """Load a built library."""

    path: str
    libraries: tuple[str, ...]
    device: str
    threads: int


class LoadPython(Operation[StepReply], op="load_python"):
    """Load a file with `ModelNew`."""

    folder: str
    main: str
    device: str
    matmul_precision: str
    conv_precision: str
    extensions: tuple[Fd, ...]
    """A socket on which extensions that it builds are asked for; () where it builds them itself."""


class InitProgram(Operation[StepReply], op="init"):
    """Give the program its weights."""

    weights: WeightsMade
    kept: tuple[str, ...]
    """Buffers that no call may change."""
    load: bool
    """Whether a `ModelNew` that constructs the same weights otherwise gets the reference's."""
    reset: tuple[str, ...]
    """Buffers and plain attributes that a `ModelNew` finds before each call as its constructor left them."""


class ReloadWeights(Operation[StepReply], op="reload"):
    """Other weights into the same instance, in place; status `not_reloadable` where names do not agree."""

    parameters: list[PackEntry]
    kept: tuple[str, ...]
    fd: Fd


class RunProgram(Operation[StepReply], op="run"):
    """One forward into the output memory."""

    inputs: list[PackEntry]
    structure: object
    layout: list[PackEntry]
    shared: bool
    """Whether forward may write to the memory that the inputs came in."""
    reuse: bool
    """Whether the inputs go into the memory of the inputs before."""
    places: tuple[tuple[int, int], ...]
    again: bool
    """Whether the output memory is that of the call before."""
    output_structure: object
    generator: bytes
    inputs_fd: Fd
    outputs_fd: Fd


class BeginTrace(Operation[StepReply], op="activity_begin"):
    """Start the profiler, before the program is loaded."""

    own: tuple[str, ...]
    """Files and folders: code that is loaded from there is the program's own."""
    source_folder: str | None
    cuda: bool


class RunTraced(Operation[StepReply], op="activity_run"):
    """Some forwards under the profiler, and one more whose outputs are compared."""

    inputs: list[PackEntry]
    structure: object
    layout: list[PackEntry]
    output_structure: object
    calls: int
    """On a GPU; on a CPU as many calls are made as fit into a time."""
    generator: bytes
    inputs_fd: Fd
    outputs_fd: Fd


TracedOwner = Literal["own", "library", "pytorch", "copy", "other"]


class TracedRow(Message):
    """One thing that took time."""

    owner: TracedOwner
    name: str
    calls: float | None
    """Launches per forward (cuda)."""
    weight: int
    """Nanoseconds."""


class TraceReport(Message):
    """What the profiler saw."""

    rows: tuple[TracedRow, ...]
    observations: int
    """Device activities (cuda), or forwards (cpu)."""
    past_dispatcher: tuple[str, ...] = ()
    """Operators whose code the program's binaries can call without a record of it."""
    outside_ns: int = 0
    """Time outside of PyTorch's operators (cpu)."""
    own_code: bool = True
    """Whether compiled code of the program's own is loaded (cpu)."""
    libraries: tuple[str, ...] = ()
    """Libraries that were loaded with the program, whose calls the profiler does not see (cpu)."""
    blocks: tuple[dict[str, float], ...] = ()
    """Launches per forward of each block (cuda)."""
    never: tuple[str, ...] = ()
    """Kernels that the program defines and that never ran (cuda)."""
    lost: int = 0
    """Launches in the blocks that the profiler has no record of (cuda)."""


class EndTrace(Operation[TraceReport], op="activity_end"):
    """End the profiler and say what it saw."""
