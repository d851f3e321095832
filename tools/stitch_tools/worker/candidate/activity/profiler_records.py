"""The records of PyTorch's profiler (kineto), as torch 2.6 to 2.13 give them."""

from collections.abc import Callable
from typing import Protocol, cast

MARK = "stitch::block-"
"""Begin of the name of a block of calls that counts."""

# Namespaces and names of PyTorch's own operators; "## Call" and others are compiled code's.
_PYTORCH = (
    "aten::",
    "prims::",
    "c10d::",
    "mkldnn::",
    "quantized::",
    "inductor::",
    "Torch-Compiled",
    "CompiledFx",
    "## Call",
)


class ProfilerEvent(Protocol):
    """One record of the profiler."""

    def name(self) -> str:
        """Operator, runtime call, kernel, or mark."""
        ...

    def start_ns(self) -> int:
        """On the clock that all records share."""
        ...

    def duration_ns(self) -> int:
        """From begin to end."""
        ...

    def device_type(self) -> object:
        """`DeviceType.CPU` for the host's records."""
        ...

    def correlation_id(self) -> int:
        """Joins a kernel to the call that launched it."""
        ...

    def linked_correlation_id(self) -> int:
        """Joins a kernel, or a runtime call, to the operator around it."""
        ...


def is_on_host(event: ProfilerEvent) -> bool:
    """Whether this is a record of the host and not of the device."""
    return str(event.device_type()).rpartition(".")[2] == "CPU"


def kind_of(event: ProfilerEvent) -> str | None:
    """The kind of activity, None where this torch does not say it."""
    kind = _optional(event, "activity_type")
    if kind is not None:
        return str(kind())
    annotation = _optional(event, "is_user_annotation")
    return "user_annotation" if annotation is not None and annotation() else None


def is_operator(event: ProfilerEvent) -> bool:
    """Whether this is an operator's record."""
    kind = kind_of(event)
    if kind is not None:
        return kind == "cpu_op"
    return "::" in event.name() and is_on_host(event)


def metadata_of(event: ProfilerEvent) -> str:
    """Further facts as JSON text, "" where there are none."""
    metadata = _optional(event, "metadata_json")
    return "" if metadata is None else str(metadata() or "")


def is_pytorch(operator: str) -> bool:
    """Whether an operator is PyTorch's own, by its name."""
    return operator.startswith(_PYTORCH)


def _optional(event: ProfilerEvent, name: str) -> Callable[[], object] | None:
    return cast("Callable[[], object] | None", getattr(event, name, None))
