"""Rows of a table chosen by index."""

from collections.abc import Sequence

from stitch_planner.stitcher.index import GraphIndex, value_key
from stitch_planner.stitcher.ir import LibraryCall, Pointer
from stitch_planner.stitcher.lowering import Lowering
from stitch_planner.stitcher.templates.base import NOT_MINE, LibraryTemplate
from stitch_tools.models.graph import GraphNode

_INDEX = {"int64": "int64_t", "int32": "int32_t"}


class Embedding(LibraryTemplate):
    """embedding of a float32 table."""

    family = "embedding"

    def refuses(self, node: GraphNode, index: GraphIndex) -> str | None:
        """None for float32 tables and whole-number indices."""
        if node.op != "aten.embedding.default":
            return NOT_MINE
        table, which = (index.spec(value_key(item)).dtype for item in node.args[:2])
        return None if table == "float32" and which in _INDEX else f"no embedding of {table} by {which}"

    def lower(self, nodes: Sequence[GraphNode], lowering: Lowering) -> None:
        """One call."""
        node = nodes[0]
        table, index = lowering.dense(value_key(node.args[0])), lowering.dense(value_key(node.args[1]))
        target = lowering.new((node.name, 0))
        lowering.add(
            LibraryCall(
                lowering.unique(f"embed_{node.name}"),
                f"{node.module_path or node.name}: {index.numel} rows of {table.shape[1]}",
                (node.name,),
                "stitch/cpu/embedding.h",
                f"stitch::cpu::Embedding<{_INDEX[index.dtype]}>",
                (str(table.shape[0]), str(table.shape[1])),
                (str(index.numel), Pointer(index), Pointer(table), Pointer(target, write=True), "threads"),
            )
        )
