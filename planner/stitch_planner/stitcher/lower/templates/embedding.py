"""Rows of a table chosen by index, alone or pooled."""

from collections.abc import Sequence

from stitch_planner.stitcher.lower.comments import site
from stitch_planner.stitcher.lower.graph_index import GraphIndex, argument, value_key
from stitch_planner.stitcher.lower.lowering import Lowering
from stitch_planner.stitcher.lower.operations import EmbeddingBagOp, EmbeddingOp
from stitch_planner.stitcher.lower.scalars import number
from stitch_planner.stitcher.lower.templates.base import NOT_MINE, LibraryTemplate
from stitch_tools.models.graph import GraphNode

_INDEX_TYPES = ("int64", "int32")
_BAG = "aten.embedding_bag.padding_idx"
_MODES = ("sum", "mean")
"""Of embedding_bag, by number; the third is max."""


class Embedding(LibraryTemplate):
    """embedding of a float32 table."""

    family = "embedding"

    def refuses(self, node: GraphNode, index: GraphIndex) -> str | None:
        """None for float32 tables and whole-number indices."""
        if node.op != "aten.embedding.default":
            return NOT_MINE
        return _refused_types(node, index)

    def lower(self, nodes: Sequence[GraphNode], lowering: Lowering) -> None:
        """One call."""
        node = nodes[0]
        table, index = lowering.dense(value_key(node.args[0])), lowering.dense(value_key(node.args[1]))
        target = lowering.new((node.name, 0))
        lowering.call(
            f"embed_{node.name}",
            f"{site(node)}: {index.numel} rows of {table.shape[1]}",
            (node,),
            EmbeddingOp(index, table, target),
        )


class EmbeddingBag(LibraryTemplate):
    """embedding_bag that sums or averages."""

    family = "embedding"

    def refuses(self, node: GraphNode, index: GraphIndex) -> str | None:
        """None for unweighted sums and means whose by-products nobody reads."""
        if node.op != _BAG:
            return NOT_MINE
        plain = (
            argument(node, 6, "per_sample_weights") is None
            and argument(node, 7, "include_last_offset") is False
        )
        if not plain or int(number(argument(node, 4, "mode", 0))) >= len(_MODES):
            return "only unweighted sums and means of embeddings have a template"
        if any(index.users((node.name, k)) or index.leaves((node.name, k)) for k in (1, 2, 3)):
            return "by-products of embedding_bag have no template"
        if index.spec(value_key(node.args[1])).dtype != index.spec(value_key(node.args[2])).dtype:
            return "indices and offsets of different types have no template"
        return _refused_types(node, index)

    def gather(self, node: GraphNode, index: GraphIndex) -> tuple[GraphNode, ...]:
        """The node, with offsets of equal bags that nobody else reads."""
        offsets = index.producer(value_key(node.args[2]))
        if offsets is not None and index.sole_user(offsets) is node and _equal_bags(offsets, node, index):
            return (offsets, node)
        return (node,)

    def lower(self, nodes: Sequence[GraphNode], lowering: Lowering) -> None:
        """One call."""
        node = nodes[-1]
        table, index = lowering.dense(value_key(node.args[0])), lowering.dense(value_key(node.args[1]))
        offsets = None if len(nodes) > 1 else lowering.dense(value_key(node.args[2]))
        target = lowering.new((node.name, 0))
        mean = int(number(argument(node, 4, "mode", 0))) == _MODES.index("mean")
        padding = argument(node, 8, "padding_idx")
        lowering.call(
            f"bag_{node.name}",
            f"{site(node)}: {target.shape[0]} bags of {index.numel} rows",
            nodes,
            EmbeddingBagOp(
                index=index,
                offsets=offsets,
                table=table,
                out=target,
                mean=mean,
                padding=None if padding is None else int(number(padding)) % table.shape[0],
            ),
        )


def _refused_types(node: GraphNode, index: GraphIndex) -> str | None:
    table, which = (index.spec(value_key(item)).dtype for item in node.args[:2])
    return None if table == "float32" and which in _INDEX_TYPES else f"no embedding of {table} by {which}"


def _equal_bags(offsets: GraphNode, node: GraphNode, index: GraphIndex) -> bool:
    """Whether `offsets` counts 0, n, 2 n, ... to the number of indices."""
    if offsets.op != "aten.arange.start_step" or len(offsets.args) < 3 or offsets.args[0] != 0:
        return False
    count, bags = index.spec(value_key(node.args[1])).numel, offsets.outputs[0].numel
    return bags > 0 and count % bags == 0 and offsets.args[2] == count // bags
