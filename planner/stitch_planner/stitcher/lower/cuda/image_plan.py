"""In which order of memory images lie, and which are made inside the images that they are joined to.

Images are N, C, H, W (*first*) or channels-last (*last*). Most operations take either and pass it on, so
that a network falls into components in which one order is kept. cuDNN's convolutions want channels-last
images, the caller's tensors and reshapes want the other. A component takes the order that leaves fewer
bytes to turn.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from stitch_planner.stitcher.lower.graph_index import GraphIndex, ValueKey, argument, value_key
from stitch_planner.stitcher.lower.kernel_ir import View, channels_last, row_major
from stitch_planner.stitcher.lower.lowering import Lowering
from stitch_planner.stitcher.lower.reductions import REDUCTIONS, is_global_average
from stitch_planner.stitcher.lower.scalars import EXPRESSIONS, number
from stitch_planner.stitcher.lower.templates.batch_norm import is_from_batch
from stitch_planner.stitcher.lower.templates.conv import CONV_OPS, ConvShape, conv_shape
from stitch_tools.models.graph import Argument, GraphNode

Order = Literal["first", "last"]
PlanarKind = Literal["product", "depthwise", "direct"]

FEWEST_CHANNELS = 8
"""Below these, a transposed copy has rows too short for tiles; the convolution turns the image itself."""
ALIGNED_ELEMENTS = 4
"""float32 elements in the 16 bytes that tensor cores and our own kernels read at once."""
LARGEST_WINDOW = 7
"""Of depthwise convolutions: beyond it, the taps no longer fit the registers."""
DIRECT_PIXELS = 4
"""Neighbours that a thread of a direct convolution computes."""
MOST_DIRECT_REGISTERS = 112
"""For the pixels that a thread keeps: half of the registers that it may have."""
MOST_DIRECT_WEIGHTS = 8192
"""Elements: 32 KiB of shared memory."""
_NORMS = frozenset(["aten.batch_norm.default", "aten.group_norm.default", "aten.instance_norm.default"])
_JOINS = frozenset(["aten.cat.default", "aten.concat.default", "aten.concatenate.default"])


@dataclass(frozen=True)
class Slice:
    """Where in a wider image a value's channels begin."""

    joined: ValueKey
    channel: int
    direct: bool = True
    """Whether its maker may write it there; else it is copied, and its readers have the dense image."""


@dataclass(frozen=True)
class ImagePlan:
    """What was decided for one graph."""

    orders: Mapping[ValueKey, Order]
    """Of values that are images of more than one pixel, in components with a planar convolution or a join."""
    slices: Mapping[ValueKey, Slice]
    """Operands of joins along the channels, and joins that are a part of others."""

    def is_first(self, key: ValueKey) -> bool:
        """Whether the value is to lie as N, C, H, W."""
        return self.orders.get(key) == "first"

    def target(self, key: ValueKey, lowering: Lowering) -> View | None:
        """The slice of an N, C, H, W image that the value is to be written to; None where it stands alone."""
        if key not in self.slices or not self.slices[key].direct or not self.is_first(key):
            return None
        return self.slice(key, lowering)

    def slice(self, key: ValueKey, lowering: Lowering) -> View:
        """The operand's window on the image that it is joined to."""
        part = self.slices[key]
        whole = self.joined(part.joined, lowering)
        shape = lowering.index.shape(key)
        return View(whole.buffer, shape, whole.strides, whole.offset + part.channel * whole.strides[1])

    def joined(self, key: ValueKey, lowering: Lowering) -> View:
        """Where the result of a join lies."""
        if key in lowering.joined:
            return lowering.joined[key]
        if key in self.slices:
            view = self.slice(key, lowering)
        else:
            shape = lowering.index.shape(key)
            first = self.is_first(key)
            view = lowering.new(key, strides=None if first else channels_last(shape))
            if not first and not view.is_channels_last:
                # An output of the program, which is turned at the end.
                dtype = view.dtype
                view = lowering.scratch(f"{key[0]}_last", shape, dtype, strides=channels_last(shape))
        lowering.joined[key] = view
        return view


class ImagePlans:
    """The plan of the graph at hand, shared by the templates of a program."""

    def __init__(self) -> None:
        self._index: GraphIndex | None = None
        self._plan = ImagePlan({}, {})

    def of(self, index: GraphIndex) -> ImagePlan:
        """The graph's plan; made when it is first asked for."""
        if self._index is not index:
            self._index, self._plan = index, plan_images(index)
        return self._plan


def plan_images(index: GraphIndex) -> ImagePlan:
    """Decides for all images of a graph."""
    orders = _Components(index).orders()
    return ImagePlan(orders, _slices(index, orders))


def planar_kind(node: GraphNode, index: GraphIndex) -> PlanarKind | None:
    """Which kernel computes a convolution of images that stay N, C, H, W; None where there is none."""
    shape = conv_shape(node, index)
    source, result = index.shape(value_key(node.args[0])), node.outputs[0].shape
    if shape is None or len(source) != 4 or shape.transposed or shape.dilation != (1, 1):
        return None
    if node.outputs[0].dtype != "float32" or not index.is_constant(value_key(node.args[1])):
        return None
    return kind_of(shape, source, result)


def kind_of(shape: ConvShape, source: tuple[int, ...], result: tuple[int, ...]) -> PlanarKind | None:
    """The same by numbers: shapes are [N, C, H, W], the convolution neither transposed nor dilated."""
    channels, results = source[1], result[1]
    if shape.groups > 1 and shape.groups == channels == results:
        small = max(shape.kernel) <= LARGEST_WINDOW
        return "depthwise" if small and shape.stride[0] == shape.stride[1] <= 2 else None
    if shape.stride != (1, 1):
        return None
    taps = channels * shape.kernel[0] * shape.kernel[1]
    registers = channels * shape.kernel[0] * (DIRECT_PIXELS + shape.kernel[1] - 1)
    fits = registers <= MOST_DIRECT_REGISTERS and results * taps <= MOST_DIRECT_WEIGHTS
    if shape.groups == 1 and channels <= FEWEST_CHANNELS and fits and result[3] % DIRECT_PIXELS == 0:
        return "direct"
    pixel = shape.kernel == (1, 1) and shape.padding == (0, 0)
    share = channels // shape.groups * (results // shape.groups)
    aligned = source[2] * source[3] % ALIGNED_ELEMENTS == 0
    fits = pixel and aligned and (shape.groups == 1 or share % ALIGNED_ELEMENTS == 0)
    return "product" if fits else None


# ---- orders --------------------------------------------------------------------------------------------


class _Components:
    """Images that are tied to one order of memory, and what speaks for either."""

    def __init__(self, index: GraphIndex) -> None:
        self.index = index
        self.parent: dict[ValueKey, ValueKey] = {}
        self.wishes: dict[tuple[ValueKey, Order], int] = {}
        """Bytes of values that somebody wants in an order: turned once if their component has the other."""
        self.deciding: set[ValueKey] = set()
        """Results of planar convolutions and of joins: in their components the order can be chosen."""

    def orders(self) -> dict[ValueKey, Order]:
        for node in self.index.graph.nodes:
            self._take(node)
        for item in self.index.graph.inputs:
            if item.kind == "user":
                self._wish((item.name, 0), "first")
        for key in [key for key in self.parent if self.index.leaves(key)]:
            self._wish(key, "first")
        costs: Counter[tuple[ValueKey, Order]] = Counter()
        for (key, order), count in self.wishes.items():
            costs[self._find(key), order] += count
        decided = {self._find(key) for key in self.deciding}
        return {
            key: "first" if costs[root, "last"] < costs[root, "first"] else "last"
            for key in self.parent
            if (root := self._find(key)) in decided
        }

    def _take(self, node: GraphNode) -> None:
        images = [key for key in self.index.operands(node) if self._is_image(key)]
        result = (node.name, 0)
        made = [result] if self._is_image(result) else []
        if node.op in CONV_OPS and conv_shape(node, self.index) is not None:
            self._take_convolution(node)
        elif made and joins_channels(node):
            self._tie([*images, *made])
            self.deciding.add(result)
        elif self._takes_either(node):
            shape = self.index.shape(result)
            pooled = "pool" in node.op
            self._tie([*(key for key in images if pooled or self.index.shape(key) == shape), *made])
        else:
            for key in (*images, *made):
                self._wish(key, "first")

    def _takes_either(self, node: GraphNode) -> bool:
        kinds = node.op in EXPRESSIONS or node.op in REDUCTIONS or node.op in _NORMS or "softmax" in node.op
        return kinds or "pool2d" in node.op or "upsample" in node.op or is_global_average(node, self.index)

    def _take_convolution(self, node: GraphNode) -> None:
        source, result = value_key(node.args[0]), (node.name, 0)
        images = [key for key in (source, result) if self._is_image(key)]
        if planar_kind(node, self.index) is not None:
            self._tie(images)
            self.deciding.update(images[-1:])
            return
        for key in images:
            if key == result or self.index.shape(source)[1] >= FEWEST_CHANNELS:
                self._wish(key, "last")

    def _is_image(self, key: ValueKey) -> bool:
        spec = self.index.spec(key)
        shape = spec.shape
        constant = self.index.is_constant(key)
        return not constant and spec.dtype == "float32" and len(shape) == 4 and shape[2] * shape[3] > 1

    def _wish(self, key: ValueKey, order: Order) -> None:
        if self._is_image(key):
            self._find(key)
            self.wishes[key, order] = self.index.spec(key).numel

    def _tie(self, keys: Iterable[ValueKey]) -> None:
        roots = [self._find(key) for key in keys]
        for root in roots[1:]:
            self.parent[self._find(root)] = self._find(roots[0])

    def _find(self, key: ValueKey) -> ValueKey:
        self.parent.setdefault(key, key)
        while self.parent[key] != key:
            self.parent[key] = self.parent[self.parent[key]]
            key = self.parent[key]
        return key


# ---- joins ---------------------------------------------------------------------------------------------


def _slices(index: GraphIndex, orders: Mapping[ValueKey, Order]) -> dict[ValueKey, Slice]:
    """Operands of joins, each of one; the last join first, since growing joins begin with those before."""
    slices: dict[ValueKey, Slice] = {}
    for node in reversed(index.graph.nodes):
        if (node.name, 0) not in orders or not joins_channels(node):
            continue
        keys = join_operands(node)
        if len(set(keys)) < len(keys):
            continue
        result = (node.name, 0)
        begin = _begin_of(keys, index, slices)
        if begin is not None and _reads_slices(result, index):
            slices[result] = begin
            continue
        channel = 0
        for key in keys:
            if key not in slices and orders.get(key) == orders[result]:
                slices[key] = Slice(result, channel, direct=_reads_slices(key, index))
            channel += index.shape(key)[1]
    return slices


def _begin_of(keys: list[ValueKey], index: GraphIndex, slices: Mapping[ValueKey, Slice]) -> Slice | None:
    """Where the operands lie side by side in another join; None where they do not."""
    begin: Slice | None = None
    channel = 0
    for key in keys:
        part = slices.get(key)
        if part is not None and begin is None:
            begin = Slice(part.joined, part.channel - channel)
        if part is None or begin is None:
            return None
        if (part.joined, part.channel) != (begin.joined, begin.channel + channel):
            return None
        channel += index.shape(key)[1]
    return begin


def _reads_slices(key: ValueKey, index: GraphIndex) -> bool:
    """Whether everything that reads the value can read a part of a wider image."""
    if index.leaves(key):
        return False
    return all(
        user.op in _JOINS or (user.op == "aten.batch_norm.default" and is_from_batch(user))
        for user in index.users(key)
    )


def joins_channels(node: GraphNode) -> bool:
    """Whether the node joins images along their channels."""
    images = node.op in _JOINS and len(node.outputs[0].shape) == 4
    return images and int(number(argument(node, 1, "dim", 0))) % 4 == 1


def join_operands(node: GraphNode) -> list[ValueKey]:
    """The values that a cat joins."""
    operands: Argument = node.args[0]
    assert isinstance(operands, tuple)
    return [value_key(item) for item in operands]


def slice_step(view: View, *, first: bool) -> int | None:
    """Elements between an image and the next (`first`) or a pixel and the next; None for other windows."""
    shape, strides = view.shape, view.strides
    if len(shape) != 4:
        return None
    dense = row_major(shape) if first else channels_last(shape)
    step = strides[0] if first else strides[-1]
    if first:
        fits = strides[1:] == dense[1:] and step >= dense[0]
    else:
        wide = channels_last((shape[0], step, *shape[2:]))
        fits = strides == wide and step >= shape[1]
    return step if fits else None
