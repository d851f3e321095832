"""Messages of the reference server: load, observe, draws, comparison, sensitivity, capture, rings."""

import os
from pathlib import Path

from stitch_tools.protocol.memory import PackEntry
from stitch_tools.protocol.messages import Done, Fd, Message, Operation

DRAW_UNAVAILABLE, DRAW_UNDECIDED = "draw_unavailable", "draw_undecided"
"""Kinds of faults that are answers: a draw does not apply to this task, or decides nothing on it."""


class Scale(Message):
    """How large the values are. Matrices are scaled so that activations stay of order 1 (He et al., 2015)."""

    gain: float = 1.0
    """Factor on matrices and kernels."""
    positive: bool = False
    """Whether vectors (biases, a norm's weight) are positive, for references that take roots of them."""


class ReferenceSource(Message):
    """Where the reference lies and how its parts are found; the fields are those of Task and Contract."""

    folder: str
    main: str
    entry: str = "Model"
    inputs: str = "get_inputs"
    init_inputs: str | None = "get_init_inputs"
    search_path: tuple[str, ...] = ()
    mode: str = ""
    """`train` or `eval`; "": the mode in which the file leaves the module."""
    device: str = "cpu"
    keep_structure: bool = True
    """Whether draws keep what every draw of the input maker has."""

    @property
    def file(self) -> Path:
        """The main file."""
        return Path(self.folder) / self.main


class LoadReference(Operation[Done], op="load"):
    """Execute the user's file, and find entry and input maker in it."""

    source: ReferenceSource
    rtol: float
    atol: float
    matmul_precision: str
    conv_precision: str
    input_low: float | None
    input_high: float | None
    input_writes: bool
    """Whether a program must write to its inputs what the reference does."""


class ObserveReference(Operation[dict[str, object]], op="observe"):
    """Construct the reference and call it on inputs of its own."""

    weights_seed: int
    input_seed: int
    other_input_seed: int
    forward_seed: int


class WeightsMade(Message):
    """A set of weights as it travels to a program. Who receives it closes it, once."""

    parameters: list[PackEntry]
    init: list[PackEntry]
    """The constructor's tensor arguments."""
    init_structure: object
    generator: bytes
    """The generator state before construction."""
    scale: Scale | None
    """How weights of order 1 were made; None: by the task's own initialisers."""
    training: bool
    """Whether the reference with these weights is in training mode."""
    fds: tuple[Fd, Fd]
    """Packs of `parameters` and `init`."""

    def close(self) -> None:
        """Close the descriptors."""
        for fd in self.fds:
            os.close(fd)


class SetWeights(Operation[WeightsMade], op="set_weights"):
    """Construct the reference anew."""

    seed: int
    scale: Scale | None
    """Of weights of order 1; None: by the task's own initialisers."""
    on_device: bool
    """Whether what lies on a GPU travels in its own memory."""


class Construct(Operation[Done], op="construct"):
    """Construct the reference anew for a process that nobody compares: its weights go nowhere."""

    seed: int


class DrawMade(Message):
    """The inputs of one draw as they travel to a program."""

    inputs: list[PackEntry]
    structure: object
    places: tuple[tuple[int, int], ...]
    """Of each input, in whose memory it lies and how many elements behind its start."""
    fds: tuple[Fd]


class MakeDraw(Operation[DrawMade], op="make_draw"):
    """Make the inputs of the next draw; the one before is forgotten."""

    kind: str
    seed: int
    forward_seed: int
    shared: bool
    """Whether the program may write to the memory of its inputs."""
    on_device: bool


class Expectation(Message):
    """What is expected of the current draw, without the values."""

    layout: list[PackEntry]
    """Of the outputs' memory, guards between the outputs included."""
    nbytes: int
    oracle: str
    notes: tuple[str, ...]
    reference_s: float
    generator: bytes
    """The state that forward starts from."""
    structure: object
    held: tuple[str, ...]
    """Outputs that lie in the memory of the inputs."""
    inputs_written: bool
    """Whether the reference changes its inputs."""
    memory_short: bool = False
    """Whether a better oracle, or one beside the reference, had no memory."""


class ExpectOutputs(Operation[Expectation], op="expect"):
    """Run reference and oracle on the current draw."""

    updated_buffers: tuple[str, ...]


class MakeOutputs(Operation[tuple[Fd, ...]], op="make_outputs"):
    """Make memory of the GPU that a program writes its outputs to."""

    nbytes: int


class PrimeOutputs(Operation[Done], op="prime"):
    """Poison the outputs' memory, and put the updated buffers' present values into it."""

    layout: list[PackEntry]
    fd: Fd


class Agreement(Message):
    """What KernelBench's rule says of one call."""

    ok: bool
    tolerance: float
    """Absolute and relative alike; that of the least precise output."""
    largest_difference: float | None
    """None where it is not finite."""


class OutputsCompared(Message):
    """How the outputs of one draw compare."""

    outputs: tuple[dict[str, object], ...]
    """The fields of OutputError."""
    overrun: bool
    """Whether bytes beside the outputs were written to."""
    inputs_intact: bool | None
    same_generator: bool | None
    agreement: Agreement | None
    """What KernelBench's rule says; None on draws that are ours."""
    decided: bool
    """Whether anything was compared; else the reference itself is too far off everywhere."""


class CompareOutputs(Operation[OutputsCompared], op="compare"):
    """Compare what lies in the outputs' memory with the oracle."""

    layout: list[PackEntry]
    generator: bytes
    """The program's generator state after the call; empty where it has none."""
    fd: Fd


class BitsCompared(Message):
    """How two output memories compare."""

    same: bool
    constant: bool
    """Whether each output is one value repeated."""


class CompareBits(Operation[BitsCompared], op="same_bits"):
    """Compare two output memories of one layout bit by bit."""

    layout: list[PackEntry]
    fds: tuple[Fd, Fd]


class MeasureSensitivity(Operation[tuple[dict[str, object], ...]], op="sensitivity"):
    """Find out how the reference reacts to other inputs and weights."""

    weights_seed: int
    other_weights_seed: int
    input_seed: int
    other_input_seed: int
    forward_seed: int


class CaptureGraph(Operation[dict[str, object]], op="capture"):
    """Capture the loaded reference's forward as a graph."""


class RingOpened(Message):
    """A ring of outputs on the GPU, or why there is none."""

    ring: int
    refused: str | None
    fds: tuple[Fd, ...]


class OpenRing(Operation[RingOpened], op="open_ring"):
    """Make poisoned memory of the GPU for the outputs of all slots."""

    outputs: tuple[tuple[str, tuple[int, ...], str], ...]
    """Name, shape and dtype of each."""
    slots: int


class PoisonRing(Operation[Done], op="poison_ring"):
    """Overwrite the outputs of `count` slots from `slot` on."""

    ring: int
    slot: int
    count: int


class SlotRead(Message):
    """A copy of one slot's outputs in memory of the host."""

    manifest: list[PackEntry]
    fd: Fd


class ReadRing(Operation[SlotRead], op="read_ring"):
    """Copy one slot's outputs."""

    ring: int
    slot: int


class CloseRing(Operation[Done], op="close_ring"):
    """Give a ring's memory back."""

    ring: int
