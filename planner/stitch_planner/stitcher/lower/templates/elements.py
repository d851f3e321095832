"""Fused groups of expressions and reductions: pointwise chains, norms, softmax and their surroundings."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from math import prod
from typing import Literal

from stitch_planner.stitcher.lower import reductions, scalars
from stitch_planner.stitcher.lower.copies import WORTH_TILES, innermost
from stitch_planner.stitcher.lower.fusion_rules import RESHAPES, classify, group_frame
from stitch_planner.stitcher.lower.graph_index import GraphIndex, ValueKey, value_key
from stitch_planner.stitcher.lower.kernel_ir import (
    Access,
    Body,
    ColumnKernel,
    PointwiseKernel,
    RowKernel,
    Scalar,
    View,
    row_major,
)
from stitch_planner.stitcher.lower.lowering import Lowering, UnloweredError
from stitch_planner.stitcher.lower.reductions import REDUCTIONS, ReductionFrame, RowSite
from stitch_planner.stitcher.lower.scalar_bodies import BodyBuilder
from stitch_planner.stitcher.lower.scalars import EXPRESSIONS, Site
from stitch_planner.stitcher.lower.split_reductions import Splitter, split_reduction
from stitch_planner.stitcher.lower.templates.base import NOT_MINE
from stitch_planner.stitcher.lower.templates.windows import MOVES
from stitch_planner.stitcher.lower.views import collapse, expand, reshape
from stitch_tools.models.graph import GraphNode, ValueRef

SHORT_ROW = 16
"""Below this many contiguous elements, a row is too short to fill vectors: another dim is vectorised."""

SHORT_LOOP = 8
"""Below this many elements the last loop dim of a pointwise kernel is exchanged for a longer one."""


class Elements:
    """Expressions and reductions."""

    family = "pointwise"
    kind: Literal["view", "element", "library"] = "element"

    def __init__(self, split: Splitter = split_reduction, *, crosses: bool = False) -> None:
        """Templates whose reductions over long rows are cut by `split`.

        `crosses`: whether it also sees to results that lie in another order of memory than the operands.
        """
        self.split = split
        self.crosses = crosses

    def refuses(self, node: GraphNode, index: GraphIndex) -> str | None:
        """None for an operation of the tables in scalars.py and reductions.py."""
        if node.op in EXPRESSIONS:
            return scalars.refusal(node)
        return reductions.refusal(node, index) if node.op in REDUCTIONS else NOT_MINE

    def gather(self, node: GraphNode, index: GraphIndex) -> tuple[GraphNode, ...]:
        """The node alone: the planner fuses element nodes by its own rules."""
        return (node,)

    def absorbs(self, nodes: Sequence[GraphNode], candidate: GraphNode, index: GraphIndex) -> bool:
        """False: see `gather`."""
        return False

    def lower(self, nodes: Sequence[GraphNode], lowering: Lowering) -> None:
        """One kernel for the whole group."""
        _Group(nodes, lowering, self).lower()


class _Group:
    """One fused group on its way to a kernel."""

    def __init__(self, nodes: Sequence[GraphNode], lowering: Lowering, template: Elements) -> None:
        frame = group_frame(nodes, lowering.index)
        spreads = classify(nodes, lowering.index)
        if frame is None or spreads is None:
            raise UnloweredError("the nodes share no iteration space")
        self.nodes = nodes
        self.lowering = lowering
        self.index = lowering.index
        self.template = template
        self.frame: ReductionFrame = frame
        self.spreads = spreads
        self.builder = BodyBuilder()
        self.made: dict[ValueKey, int] = {}
        self.full_loads: list[Access] = []
        self.turned: dict[ValueKey, View] = {}
        """Operands as the kernel reads them."""
        self.fills_output = any(key in lowering.output_of and spreads[key] == "element" for key in spreads)
        """Whether an output of the program, which is row-major, is written element by element."""

    def lower(self) -> None:
        for node in self.nodes:
            self.made[node.name, 0] = self._instructions(node)
        stores: list[Access] = []
        results: list[int] = []
        reshaped = self._reshaped_leaving()
        for key, value in self.made.items():
            if self._leaves(key, also=set(reshaped.values())) and key not in reshaped:
                stores.append(self._target(key))
                results.append(value)
        body = Body(tuple(self.builder.instrs), tuple(results))
        if prod(self.frame.full):
            self._emit(body, stores)
        # A view of a stored value needs no store of its own.
        for key, source in reshaped.items():
            self._bind_reshaped(key, source)

    def _reshaped_leaving(self) -> dict[ValueKey, ValueKey]:
        """Views made inside that something outside reads, and the stored value that each shows."""
        reshaped: dict[ValueKey, ValueKey] = {}
        for node in self.nodes:
            key = (node.name, 0)
            if node.op in RESHAPES and self._leaves(key):
                source = value_key(node.args[0])
                reshaped[key] = reshaped.get(source, source)
        return reshaped

    def _bind_reshaped(self, key: ValueKey, source: ValueKey) -> None:
        moved = MOVES[self.index.nodes[key[0]].op](self.index.nodes[key[0]], self.lowering.view(source))
        if moved is None:
            raise UnloweredError("a per-row value cannot be viewed in another shape")
        self.lowering.bind(key, moved[0])

    def _instructions(self, node: GraphNode) -> int:
        if node.op in REDUCTIONS:
            site = RowSite(
                self.builder,
                node,
                self.frame,
                lambda ref: self._value(ref, self.frame.full),
                self._spread_value,
            )
            return REDUCTIONS[node.op].build(site)
        shape = node.outputs[0].shape
        if node.op in EXPRESSIONS:
            value = EXPRESSIONS[node.op](
                Site(self.builder, node, lambda ref: self._operand(ref, node, shape))
            )
            return self.builder.cast(value, node.outputs[0].dtype)  # pyright: ignore[reportArgumentType]
        return self.made[value_key(node.args[0])]

    def _operand(self, ref: ValueRef, node: GraphNode, shape: tuple[int, ...]) -> int:
        channel_wise = node.op in ("aten.batch_norm.default", "aten.prelu.default") and ref != node.args[0]
        if channel_wise and self.index.shape((ref.ref, ref.index)) != (1,):
            return self._spread_value(ref, 1)
        return self._value(ref, shape)

    def _value(self, ref: ValueRef, shape: tuple[int, ...]) -> int:
        key = (ref.ref, ref.index)
        if key in self.made:
            return self.made[key]
        if key not in self.turned:
            self.turned[key] = self._turned(self.lowering.view(key), key)
        return self._load(expand(self.turned[key], shape), shape)

    def _turned(self, view: View, key: ValueKey) -> View:
        """The operand as rows of memory, where the result is such and the group reduces; else as it lies.

        A kernel with reductions walks in one order: with the operand in another than the result, one of both
        would be touched element by element. A pointwise kernel turns tiles itself.
        """
        numel = prod(view.shape)
        if (
            view.shape != self.frame.full
            or not self.fills_output
            or numel < WORTH_TILES
            or not self.frame.reduced
            or (self.template.crosses and self._agrees(view))
        ):
            return view
        turned = _covers(view.strides, view.shape) and innermost(view) != len(view.shape) - 1
        return self.lowering.copy(view, row_major(view.shape), key[0]) if turned else view

    def _agrees(self, view: View) -> bool:
        """Whether all operands of the full shape lie in the order of this one."""
        inside = {node.name for node in self.nodes}
        keys = {key for node in self.nodes for key in self.index.operands(node) if key[0] not in inside}
        views = [self.lowering.view(key) for key in keys]
        return all(innermost(other) == innermost(view) for other in views if other.shape == view.shape)

    def _spread_value(self, ref: ValueRef, dim: int) -> int:
        """A vector's value where it runs along `dim` of the full space."""
        view = self.lowering.view((ref.ref, ref.index))
        ones = tuple(view.shape[0] if d == dim else 1 for d in range(len(self.frame.full)))
        strides = tuple(view.strides[0] if d == dim else 0 for d in range(len(self.frame.full)))
        return self._load(
            expand(replace(view, shape=ones, strides=strides), self.frame.full), self.frame.full
        )

    def _load(self, view: View, shape: tuple[int, ...]) -> int:
        access = Access(view.buffer, self._frame_strides(view, shape), view.offset)
        # Activations decide the order of the loops; a weight that broadcasts would say little about it.
        if shape == self.frame.full and view.buffer.role != "param":
            self.full_loads.append(access)
        return self.builder.load(access)

    def _frame_strides(self, view: View, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Strides of a window of `shape` over the loop dims."""
        if shape == self.frame.full:
            reshaped = reshape(view, self.frame.shape)
            if reshaped is None:
                raise UnloweredError("an operand cannot be split into groups in place")
            return reshaped.strides
        if len(shape) == len(self.frame.shape):
            return view.strides
        strides = list(view.strides)
        # Without keepdim the reduced dims are missing: along them the value does not move.
        for dim in self.frame.reduced:
            strides.insert(dim, 0)
        return tuple(strides)

    def _leaves(self, key: ValueKey, also: Collection[ValueKey] = ()) -> bool:
        inside = {node.name for node in self.nodes}
        outside = any(user.name not in inside for user in self.index.users(key))
        return outside or key in also or self.index.leaves(key)

    def _target(self, key: ValueKey) -> Access:
        """A fresh buffer for a value that leaves; full ones keep the memory order of the main operand."""
        shape = self.index.shape(key)
        if self.spreads[key] == "row" or shape != self.frame.full:
            view = self.lowering.new(key)
        else:
            view = self.lowering.new(key, strides=self._preferred_strides(shape))
        return Access(view.buffer, self._frame_strides(expand(view, shape), shape), view.offset)

    def _preferred_strides(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        lead = next((a for a in self.full_loads if _covers(a.strides, self.frame.shape)), None)
        if lead is None or self.frame.shape != shape:
            lead_view = next((v for v in self._operands() if len(v.shape) == 4 and v.is_channels_last), None)
            return (
                lead_view.strides if lead_view is not None and lead_view.shape == shape else row_major(shape)
            )
        # The result keeps the operand's order of memory (channels last, say), so that the next kernel reads
        # it in a line.
        order = sorted(range(len(shape)), key=lambda d: (-lead.strides[d], d))
        dense = row_major(tuple(shape[d] for d in order))
        strides = [0] * len(shape)
        for place, dim in enumerate(order):
            strides[dim] = dense[place]
        return tuple(strides)

    def _operands(self) -> list[View]:
        keys = [key for node in self.nodes for key in self.index.operands(node) if key not in self.made]
        return [self.lowering.view(key) for key in dict.fromkeys(keys)]

    def _emit(self, body: Body, stores: list[Access]) -> None:
        names = tuple(node.name for node in self.nodes)
        comment = _comment(self.nodes)
        walks = [*stores, *self.builder.loads]
        count = len(stores)
        if not self.frame.reduced:
            # Where they differ, operands are turned in tiles rather than results: to write memory in order
            # matters more than to read it so.
            lead = self._lead([*stores, *self.full_loads])
            space, strides = _ordered(self.frame.shape, range(len(self.frame.shape)), lead, walks)
            space, strides = _widest_last(space, strides)
            moved = [replace(w, strides=s) for w, s in zip(walks, strides, strict=True)]
            name = self.lowering.unique(f"k_{names[-1]}")
            self.lowering.add(
                PointwiseKernel(name, comment, names, space, tuple(moved[count:]), body, tuple(moved[:count]))
            )
            return
        lead = self._lead([*self.full_loads, *stores])
        kept = [d for d in range(len(self.frame.shape)) if d not in self.frame.reduced]
        outer, outer_strides = _ordered(self.frame.shape, kept, lead, walks)
        inner, inner_strides = _ordered(self.frame.shape, self.frame.reduced, lead, walks)
        moved = [
            replace(w, strides=a + b) for w, a, b in zip(walks, outer_strides, inner_strides, strict=True)
        ]
        name = self.lowering.unique(f"k_{names[-1]}")
        loads, stored = tuple(moved[count:]), tuple(moved[:count])
        # Both kernel families compute the same; they differ in the dim along which vectors run.
        by_columns = _by_columns(outer, inner, moved, count)
        kind = ColumnKernel if by_columns else RowKernel
        kernel = kind(name, comment, names, outer, inner, loads, body, stored)
        for part in self.template.split(kernel, lambda count, dtype: self._partial(name, count, dtype)):
            self.lowering.add(part)

    def _partial(self, name: str, count: int, dtype: Scalar) -> View:
        """Room for the partial results of a reduction that is cut into chunks."""
        return self.lowering.scratch(f"{name}_partial", (count,), dtype)

    def _lead(self, walks: Sequence[Access]) -> tuple[int, ...]:
        """Strides that decide the loop order: those of the first operand that varies everywhere."""
        for walk in walks:
            if _covers(walk.strides, self.frame.shape):
                return walk.strides
        return row_major(self.frame.shape)


def _covers(strides: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    return all(stride > 0 or size == 1 for stride, size in zip(strides, shape, strict=True))


def _ordered(
    shape: tuple[int, ...], dims: Sequence[int], lead: tuple[int, ...], walks: list[Access]
) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """The dims from outermost to innermost in memory, collapsed, and every walk's strides over them."""
    order = sorted(dims, key=lambda d: (-lead[d], d))
    sizes, strides = collapse([shape[d] for d in order], [[w.strides[d] for d in order] for w in walks])
    return tuple(sizes), [tuple(s) for s in strides]


def _widest_last(
    space: tuple[int, ...], strides: list[tuple[int, ...]]
) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """The loop dims with a longer one moved to the inside where the last is too short to fill a vector.

    Its elements are then some distance apart, which costs less than a loop of three steps.
    """
    longest = max(range(len(space)), key=lambda d: space[d])
    if space[-1] >= SHORT_LOOP or space[longest] < 8 * SHORT_LOOP:
        return space, strides
    order = [d for d in range(len(space)) if d != longest] + [longest]
    return tuple(space[d] for d in order), [tuple(s[d] for d in order) for s in strides]


def _by_columns(outer: tuple[int, ...], inner: tuple[int, ...], walks: list[Access], stores: int) -> bool:
    """Whether the last kept dim makes better vectors than the last reduced one."""
    if outer[-1] < SHORT_ROW or len(walks) == stores:
        return False
    lead = max(walks[stores:], key=lambda w: sum(s > 0 for s in w.strides))
    inner_contiguous = lead.strides[-1] == 1
    outer_contiguous = lead.strides[len(outer) - 1] == 1
    return outer_contiguous or (inner_contiguous and inner[-1] < SHORT_ROW)


def _comment(nodes: Sequence[GraphNode]) -> str:
    paths = dict.fromkeys(node.module_path for node in nodes if node.module_path)
    text = ", ".join(node.op.split(".")[1] for node in nodes)
    return f"{text} ({', '.join(paths)})" if paths else text
