"""The captured graph: typed operations with their work, and the device's measured ceilings."""

from typing import TYPE_CHECKING, Literal, TypeAlias

from pydantic import Field
from typing_extensions import TypeAliasType

from stitch_tools.models.base import Fact, retired
from stitch_tools.models.task import TensorSpec


class ValueRef(Fact):
    """Use of one tensor value: output `index` of node or input `name`."""

    ref: str
    """Name of a graph input or node."""
    index: int = 0
    """Which output of a node with several."""


if TYPE_CHECKING:  # pyright follows the recursion in a plain alias only, pydantic in a TypeAliasType only
    Argument: TypeAlias = "ValueRef | bool | int | float | str | tuple[Argument, ...] | None"
else:
    Argument = TypeAliasType("Argument", "ValueRef | bool | int | float | str | tuple[Argument, ...] | None")
"""An operand. Non-finite floats are the strings "inf", "-inf" and "nan", since JSON has no such numbers;
dtypes, devices, layouts and memory formats are torch's names ("torch.float32")."""


class GraphInput(Fact):
    """A value that enters the graph."""

    name: str
    """SSA name."""
    kind: Literal["user", "parameter", "buffer", "constant"]
    target: str = ""
    """Qualified name of the parameter, buffer or lifted constant; position ("0", "1") of a user input."""
    spec: TensorSpec
    data_base64: str | None = None
    """Elements of a lifted constant of at most 1 MiB: contiguous, little-endian; else None."""


class GraphNode(Fact):
    """One operation."""

    name: str
    """SSA name."""
    op: str
    """torch's own name: aten.linear.default, aten.gelu.default, ..."""
    args: tuple[Argument, ...] = ()
    kwargs: dict[str, Argument] = Field(default_factory=dict[str, Argument])
    outputs: tuple[TensorSpec, ...]
    module_path: str = ""
    """Qualified name of the innermost module that called it ("" is the root)."""
    flops: int = 0
    """Floating-point operations: two for a multiply-add, one for each element of other arithmetic."""
    bytes_read: int = 0
    """Bytes of the tensor inputs, each once."""
    bytes_written: int = 0
    min_time_us: float | None = None
    """Lower bound from the ceilings: max(bytes / bandwidth, flops / rate) + launch; None without ceilings."""

    # Graphs before 0.2 say how long the longest sum of a node is.
    _retired = retired("reduction_length")


class GraphOutput(Fact):
    """A value that leaves the graph."""

    value: ValueRef | None
    """None where no node computes it: a statistic that an operation writes on the way."""
    kind: Literal["user", "buffer_mutation", "input_mutation"] = "user"
    target: str = ""
    """Buffer or input that the value is written back to."""


class Graph(Fact):
    """The reference's forward as a list of operations in execution order."""

    source: Literal["export", "fx", "opaque"]
    """How it was captured."""
    reason: str = ""
    """Why the better way failed, in the capturing tool's words."""
    inputs: tuple[GraphInput, ...] = ()
    nodes: tuple[GraphNode, ...] = ()
    outputs: tuple[GraphOutput, ...] = ()
    mode: Literal["train", "eval"] = "train"

    @property
    def flops(self) -> int:
        """Floating-point operations of one forward."""
        return sum(node.flops for node in self.nodes)


class TransferRates(Fact):
    """Bytes per second between host and device, the best of many large copies; None if not measured."""

    to_device_pinned: float | None = None
    to_device_pageable: float | None = None
    to_host_pinned: float | None = None
    to_host_pageable: float | None = None

    def wider(self, other: "TransferRates | None") -> "TransferRates":
        """The higher of both rates in each case."""
        rates = {**dict(self), **{name: rate for name, rate in other or () if rate is not None}}
        known = {name: rate for name, rate in self if rate is not None and rate > rates[name]}
        return TransferRates(**{**rates, **known})


class Ceilings(Fact):
    """Measured limits of one device. Every rate is the best that was seen, not a datasheet figure."""

    device: str
    """Model name."""
    target: str
    copy_bytes_per_s: float
    """Bytes read plus bytes written per second of a large copy."""
    cache_bytes_per_s: float | None = None
    """The same for a copy that stays in the last-level cache."""
    write_bytes_per_s: float | None = None
    """Bytes written per second where nothing is read."""
    last_level_cache_bytes: int
    flops_per_s: dict[str, float]
    """Matrix-product rate by format: fp32, tf32, bf16, fp16."""
    launch_us: float
    """Time of one empty kernel or parallel region."""
    node_us: float | None = None
    """From one short kernel to the next of another kind in a CUDA graph; None on a CPU, or not measured."""
    transfers: TransferRates | None = None
    """Between host and device; None on a CPU."""
    threads: int | None = None
    disturbed: bool = False
    """Whether others kept the device busy meanwhile: rates may be too low, times made from them no bounds."""

    # Ceilings before 0.2 hold their key, and rates that bounded nothing.
    _retired = retired("device_key", "read_bytes_per_s", "pointwise_flops_per_s")
