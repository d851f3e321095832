"""LSTM, GRU and plain recurrent layers: the input's share by oneDNN, the recurrence by a fused tile."""

from collections.abc import Sequence
from typing import Literal

from stitch_planner.stitcher.lower.comments import site
from stitch_planner.stitcher.lower.graph_index import GraphIndex, ValueKey, argument, value_key
from stitch_planner.stitcher.lower.kernel_ir import View
from stitch_planner.stitcher.lower.lowering import Lowering
from stitch_planner.stitcher.lower.operations import RnnOp
from stitch_planner.stitcher.lower.scalars import number
from stitch_planner.stitcher.lower.templates.base import NOT_MINE, LibraryTemplate
from stitch_tools.models.graph import Argument, GraphNode

_CELLS: dict[str, Literal["lstm", "gru", "tanh", "relu"]] = {
    "aten.lstm.input": "lstm",
    "aten.gru.input": "gru",
    "aten.rnn_tanh.input": "tanh",
    "aten.rnn_relu.input": "relu",
}
# Arguments: x, first state(s), weights, has_biases, layers, dropout, train, bidirectional, batch_first
_ZEROS = frozenset(["aten.zeros.default", "aten.zeros_like.default", "aten.new_zeros.default"])


class Rnn(LibraryTemplate):
    """Recurrent layers of torch.nn."""

    family = "rnn"

    def refuses(self, node: GraphNode, index: GraphIndex) -> str | None:
        """None for batched fp32 layers without dropout and projections."""
        if node.op not in _CELLS:
            return NOT_MINE
        if len(index.shape(value_key(node.args[0]))) != 3:
            return "only batched sequences have a recurrent template"
        if any(index.spec(key).dtype != "float32" for key in index.operands(node)):
            return "recurrent layers are computed in float32 only"
        if argument(node, 6, "train") is True and number(argument(node, 5, "dropout", 0.0)) > 0:
            return (
                "dropout between recurrent layers has no template; for inference write"
                ' mode = "eval" under [contract] in the task file'
            )
        weights = _keys(node.args[2])
        if not all(index.is_constant(key) for key in weights):
            return "only constant recurrent weights have a template"
        if len(weights) != _weights_each(node) * _layers(node) * _directions(node):
            return "LSTM with projections has no template"
        return None

    def gather(self, node: GraphNode, index: GraphIndex) -> tuple[GraphNode, ...]:
        """The node, with first states of zeros that nobody else reads."""
        zeros = [index.producer(key) for key in dict.fromkeys(_states(node))]
        own = [z for z in zeros if z is not None and z.op in _ZEROS and index.sole_user(z) is node]
        return (*own, node)

    def lower(self, nodes: Sequence[GraphNode], lowering: Lowering) -> None:
        """One call for all layers, directions and steps."""
        node = nodes[-1]
        x = lowering.dense(value_key(node.args[0]))
        batch_first = argument(node, 8, "batch_first") is True
        batch, time = x.shape[:2] if batch_first else (x.shape[1], x.shape[0])
        weights = tuple(lowering.dense(key) for key in _keys(node.args[2]))
        hidden = lowering.index.shape(_keys(node.args[2])[1])[1]
        gathered = {item.name for item in nodes[:-1]}
        starts = [_start(key, gathered, lowering) for key in _states(node)]
        result = lowering.new((node.name, 0))
        lasts = [_last((node.name, k), len(node.outputs), lowering) for k in (1, 2)]
        cell = _CELLS[node.op]
        lowering.call(
            f"rnn_{site(node)}",
            f"{site(node)}: {cell}, {time} steps of {batch} sequences, "
            f"{_layers(node)} x {_directions(node)} x {hidden} units",
            nodes,
            RnnOp(
                weights=weights,
                source=x,
                hidden=starts[0],
                cell=starts[1] if len(starts) > 1 else None,
                out=result,
                last_hidden=lasts[0],
                last_cell=lasts[1],
                kind=cell,
                steps=time,
                batch=batch,
                features=x.shape[2],
                units=hidden,
                layers=_layers(node),
                directions=_directions(node),
                batch_first=batch_first,
                has_bias=_weights_each(node) == 4,
            ),
        )


def _keys(value: Argument) -> list[ValueKey]:
    assert isinstance(value, tuple)
    return [value_key(item) for item in value]


def _states(node: GraphNode) -> list[ValueKey]:
    return _keys(node.args[1]) if isinstance(node.args[1], tuple) else [value_key(node.args[1])]


def _start(key: ValueKey, gathered: set[str], lowering: Lowering) -> View | None:
    return None if key[0] in gathered else lowering.dense(key)


def _last(key: ValueKey, outputs: int, lowering: Lowering) -> View | None:
    """Where the state after the last step goes, if anyone wants it."""
    index = lowering.index
    wanted = key[1] < outputs and (index.users(key) or index.leaves(key))
    return lowering.new(key) if wanted else None


def _layers(node: GraphNode) -> int:
    return int(number(argument(node, 4, "num_layers", 1)))


def _directions(node: GraphNode) -> int:
    return 2 if argument(node, 7, "bidirectional") is True else 1


def _weights_each(node: GraphNode) -> int:
    return 4 if argument(node, 3, "has_biases") is True else 2
