"""What a timing asks of the processes that make its calls: one frozen dataclass for each operation.

Needs no torch; used at both ends. Descriptors travel beside a message, in the order that each class names.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeVar

from stitch_tools.protocol.memory import PackEntry

OutputSpec = tuple[str, list[int], str]
"""Name, shape and type of one output."""
Tree = object
"""The JSON description of nested values (`trees.unflatten`), whose kind only that module looks at."""


@dataclass(frozen=True)
class LoadLoop:
    """Load the C loop, before the program is loaded."""

    op: ClassVar[str] = "timed_runner"
    library: str
    cuda: bool


@dataclass(frozen=True)
class TimeProgram:
    """Prepare a ring of calls of the program, serve them. Descriptors: requests, replies, outputs, draws."""

    op: ClassVar[str] = "timed_program"
    slots: int
    outputs: list[OutputSpec]
    """Of one slot."""
    inputs: list[list[PackEntry]]
    """By draw; slot i gets draw i modulo their number."""
    unseen: list[list[PackEntry]]
    """Draws that the ring gets once its loop was ended; their descriptors follow those of `inputs`."""
    structure: Tree
    output_structure: Tree
    state: list[str]
    """Buffers that calls update."""
    graphed: bool
    """Capture forward in a CUDA graph first."""
    in_place: bool
    """The draws are the slots' inputs themselves, in memory that the controller writes to."""


@dataclass(frozen=True)
class TimeBaseline:
    """Build one baseline and serve its calls over a ring of these draws. Descriptors: requests, replies."""

    op: ClassVar[str] = "timed_baseline"
    baseline: str
    slots: int
    seeds: list[int]


TimingRequest = LoadLoop | TimeProgram | TimeBaseline
Kind = TypeVar("Kind", LoadLoop, TimeProgram, TimeBaseline)


def to_message(request: TimingRequest) -> dict[str, object]:
    """The message as it is sent."""
    return {"op": request.op, **{field.name: getattr(request, field.name) for field in fields(request)}}


def read_message(kind: type[Kind], message: Mapping[str, Any]) -> Kind:
    """The request that a message holds; it comes from the controller, which is trusted."""
    return kind(**{field.name: message[field.name] for field in fields(kind)})
