"""Samples tasks: a directed acyclic graph of operations over typed tensors, written as a reference file."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stitch_mcp.rl.data.operations import OPERATIONS, Shape
from stitch_tools.models.base import sha256_hex

OP_MIX: Mapping[int, float] = {1: 0.05, 2: 0.35, 3: 0.25, 4: 0.2, 5: 0.1, 6: 0.05}
"""Share of tasks by their number of operations."""
_MOST_ELEMENTS, _LEAST_ELEMENTS = 1 << 21, 1 << 14
"""Of any tensor, and of the largest."""
_MOST_FLOPS = 3e9
_ODD_SHARE = 0.2
"""Tasks whose sizes are no multiples of eight."""
_TRIES = 50


@dataclass(frozen=True)
class SampledNode:
    """One operation of a task."""

    operation: str
    arguments: tuple[int, ...]
    """Numbers of the values that it takes: inputs first, then earlier nodes."""
    shape: Shape
    call: str
    modules: str
    flops: float
    heavy: bool


@dataclass(frozen=True)
class SampledTask:
    """A task before it was run."""

    inputs: tuple[Shape, ...]
    nodes: tuple[SampledNode, ...]

    @property
    def operations(self) -> tuple[str, ...]:
        """Names of its operations in order."""
        return tuple(node.operation for node in self.nodes)

    @property
    def family(self) -> str:
        """Hash of the operations whatever their order and shapes: a split keeps families together."""
        return family_of(self.operations)

    @property
    def level(self) -> int:
        """Difficulty, 1 to 3: by the number of operations, and whether products stand among them."""
        return level_of(len(self.nodes) + sum(node.heavy for node in self.nodes))

    @property
    def source(self) -> str:
        """The reference file, in KernelBench's style."""
        return _source(self)

    @property
    def name(self) -> str:
        """Its operations and a hash of its source."""
        return f"{'_'.join(self.operations)[:60]}_{sha256_hex(self.source.encode())[:8]}"


def family_of(operations: Sequence[str]) -> str:
    """Hash of a task's operations, whatever their order."""
    return sha256_hex(" ".join(sorted(operations)).encode())[:16]


def level_of(score: int) -> int:
    """Difficulty, 1 to 3, by the number of operations; those that count double are counted twice."""
    return 1 if score <= 2 else 2 if score <= 4 else 3


def sample_task(rng: random.Random) -> SampledTask:
    """A random task whose sizes are within the limits."""
    while True:
        task = _sample(rng)
        if task is not None:
            return task


def _sample(rng: random.Random) -> SampledTask | None:
    count = rng.choices(list(OP_MIX), weights=list(OP_MIX.values()))[0]
    inputs: list[Shape] = [_input_shape(rng)]
    nodes: list[SampledNode] = []
    for _ in range(count):
        node = _next_node(inputs, nodes, rng)
        if node is None:
            return None
        nodes.append(node)
    task = SampledTask(tuple(inputs), tuple(nodes))
    largest = max(map(_elements, (*task.inputs, *(node.shape for node in nodes))))
    fits = _LEAST_ELEMENTS <= largest <= _MOST_ELEMENTS and sum(n.flops for n in nodes) <= _MOST_FLOPS
    return task if fits else None


def _next_node(inputs: list[Shape], nodes: Sequence[SampledNode], rng: random.Random) -> SampledNode | None:
    """The next operation on the newest value; a second argument is an earlier value or a new input."""
    newest = nodes[-1].shape if nodes else inputs[0]
    for _ in range(_TRIES):
        fitting = [row for row in OPERATIONS if len(newest) in row.ranks]
        operation = rng.choices(fitting, weights=[row.weight for row in fitting])[0]
        applied = operation.apply(newest, rng)
        if applied is None or _elements(applied.shape) > _MOST_ELEMENTS:
            continue
        # Inputs that are added later come behind all nodes' numbers: values are named, not counted.
        first = -len(nodes) if nodes else 1
        arguments = (first,) if operation.inputs == 1 else (first, _second(newest, inputs, nodes, rng))
        return SampledNode(
            operation.name,
            arguments,
            applied.shape,
            applied.call,
            applied.modules,
            applied.flops,
            operation.heavy,
        )
    return None


def _second(shape: Shape, inputs: list[Shape], nodes: Sequence[SampledNode], rng: random.Random) -> int:
    """A value of that shape other than the newest: positive numbers are inputs, negative ones nodes."""
    newest = -len(nodes) if nodes else 1
    known = [number for number, given in enumerate(inputs, 1) if given == shape and number != newest]
    known += [-number for number, node in enumerate(nodes, 1) if node.shape == shape and -number != newest]
    if known and rng.random() < 0.7:
        return rng.choice(known)
    inputs.append(shape)
    return len(inputs)


def _input_shape(rng: random.Random) -> Shape:
    odd = rng.random() < _ODD_SHARE

    def size(*sizes: int) -> int:
        return rng.choice(sizes) - (rng.choice((1, 3)) if odd else 0)

    rank = rng.choices((2, 3, 4), weights=(4, 3, 4))[0]
    if rank == 2:
        return (size(64, 128, 256, 512, 1024), size(64, 128, 256, 512, 768, 1024))
    if rank == 3:
        return (rng.choice((1, 2, 4, 8)), size(32, 64, 128, 256), rng.choice((32, 64, 128, 256)))
    return (rng.choice((1, 2, 4, 8)), rng.choice((4, 8, 16, 32)), size(16, 32, 56, 64), size(16, 32, 56, 64))


def _elements(shape: Shape) -> int:
    product = 1
    for side in shape:
        product *= side
    return product


def _value(number: int) -> str:
    return f"x{number}" if number > 0 else f"v{-number}"


def _source(task: SampledTask) -> str:
    modules = [
        f"        self.m{number} = {node.modules}"
        for number, node in enumerate(task.nodes, 1)
        if node.modules
    ]
    lines = [
        f"        v{number} = "
        + node.call.replace("{name}", f"m{number}")
        .replace("{0}", _value(node.arguments[0]))
        .replace("{1}", _value(node.arguments[-1]))
        for number, node in enumerate(task.nodes, 1)
    ]
    names = ", ".join(_value(number) for number in range(1, len(task.inputs) + 1))
    made = ", ".join(f"torch.randn{shape}" for shape in task.inputs)
    return "\n".join(
        [
            f'"""{" -> ".join(task.operations)}."""',
            "",
            "import torch",
            "import torch.nn.functional as F",
            "from torch import nn",
            "",
            "",
            "class Model(nn.Module):",
            "    def __init__(self):",
            "        super().__init__()",
            *modules,
            "",
            f"    def forward(self, {names}):",
            *lines,
            f"        return v{len(task.nodes)}",
            "",
            "",
            "def get_inputs():",
            f"    return [{made}]",
            "",
            "",
            "def get_init_inputs():",
            "    return []",
            "",
        ]
    )
