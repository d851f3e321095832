"""einsum of two tensors as one batched matrix product."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import cast

from stitch_planner.stitcher.lower.graph_index import GraphIndex, ValueKey, value_key
from stitch_planner.stitcher.lower.image_shapes import is_fp32
from stitch_planner.stitcher.lower.kernel_ir import View, row_major
from stitch_planner.stitcher.lower.lowering import Lowering
from stitch_planner.stitcher.lower.templates.base import NOT_MINE, LibraryTemplate
from stitch_planner.stitcher.lower.templates.gemm import lower_product
from stitch_planner.stitcher.lower.views import permute, reshape
from stitch_tools.models.graph import GraphNode


@dataclass(frozen=True)
class _Letters:
    """What the dims of both operands are to the product, as letters."""

    a: str
    b: str
    out: str

    @property
    def batch(self) -> str:
        """In all three."""
        return "".join(c for c in self.out if c in self.a and c in self.b)

    @property
    def rows(self) -> str:
        """Of the left side alone."""
        return "".join(c for c in self.out if c in self.a and c not in self.b)

    @property
    def columns(self) -> str:
        """Of the right side alone."""
        return "".join(c for c in self.out if c in self.b and c not in self.a)

    @property
    def depth(self) -> str:
        """What is summed over."""
        return "".join(c for c in self.a if c in self.b and c not in self.out)


def _letters(equation: object) -> _Letters | None:
    """The dims, where the equation is a matrix product."""
    if not isinstance(equation, str):
        return None
    sides, arrow, out = equation.replace(" ", "").partition("->")
    operands = sides.split(",")
    if len(operands) != 2 or not sides.replace(",", "").isalpha():
        return None
    a, b = operands
    if not arrow:  # what occurs once, in the order of the alphabet
        out = "".join(sorted(c for c in {*a, *b} if (a + b).count(c) == 1))
    letters = _Letters(a, b, out)
    once = all(len(set(term)) == len(term) for term in (a, b, out))
    used = letters.batch + letters.rows + letters.columns + letters.depth
    return letters if once and letters.depth and set(used) == {*a, *b} else None


class Einsum(LibraryTemplate):
    """einsum that multiplies two matrices, or batches of them."""

    family = "gemm"

    def refuses(self, node: GraphNode, index: GraphIndex) -> str | None:
        """None for products of two float32 tensors that sum over a dim."""
        if node.op != "aten.einsum.default":
            return NOT_MINE
        letters = _letters(node.args[0])
        if letters is None or not is_fp32(node, index):
            return "only einsum that is a matrix product in float32 has a template"
        sizes = _sizes(node, letters, index)
        return None if sizes is not None else "einsum that broadcasts has no template"

    def lower(self, nodes: Sequence[GraphNode], lowering: Lowering) -> None:
        """One product; the result is a window on it where its dims stand in another order."""
        node = nodes[0]
        letters = _letters(node.args[0])
        assert letters is not None
        sizes = _sizes(node, letters, lowering.index)
        assert sizes is not None
        first, second = _operands(node)
        a = _matrices(lowering, first, letters.a, (letters.batch, letters.rows, letters.depth))
        b = _matrices(lowering, second, letters.b, (letters.batch, letters.depth, letters.columns))
        made = letters.batch + letters.rows + letters.columns
        shape = tuple(sizes[c] for c in made)
        key = (node.name, 0)
        if made == letters.out:
            target = lowering.new(key)
        else:
            target = lowering.scratch(f"{node.name}_product", shape, "float32")
            lowering.bind(key, permute(target, [made.index(c) for c in letters.out]))
        batch = tuple(sizes[c] for c in letters.batch)
        product = reshape(target, (*batch, a.shape[-2], b.shape[-1]))
        assert product is not None
        self.multiply(nodes, (a, first), (b, second), product, lowering)

    def multiply(
        self,
        nodes: Sequence[GraphNode],
        a: tuple[View, ValueKey],
        b: tuple[View, ValueKey],
        target: View,
        lowering: Lowering,
    ) -> None:
        """Adds the kernels that compute a @ b into `target`, given which value each side is a window on."""
        lower_product(nodes, a, b, target, lowering)


def _operands(node: GraphNode) -> tuple[ValueKey, ValueKey]:
    given = node.args[1]
    assert isinstance(given, tuple)
    first, second = given
    return value_key(first), value_key(second)


def _sizes(node: GraphNode, letters: _Letters, index: GraphIndex) -> dict[str, int] | None:
    """The size of each dim; None where an operand has 1 instead."""
    sizes: dict[str, int] = {}
    for key, term in zip(_operands(node), (letters.a, letters.b), strict=True):
        for letter, size in zip(term, index.shape(key), strict=True):
            if sizes.setdefault(letter, size) != size:
                return None
    return sizes


def _matrices(lowering: Lowering, key: ValueKey, term: str, order: tuple[str, str, str]) -> View:
    """An operand as [batch..., rows, columns], copied where its dims cannot be joined in place."""
    batch, rows, columns = order
    view = permute(lowering.view(key), [term.index(c) for c in "".join(order)])
    lead = view.shape[: len(batch)]
    middle = view.shape[len(batch) : len(batch) + len(rows)]
    shape = (*lead, prod(middle), prod(view.shape[len(batch) + len(rows) :]))
    del columns
    joined = reshape(view, shape)
    if joined is None:
        joined = reshape(lowering.copy(view, row_major(view.shape), key[0]), shape)
    return cast("View", joined)
