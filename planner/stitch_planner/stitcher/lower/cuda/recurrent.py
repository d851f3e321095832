"""Recurrent layers on GPUs: the facts are those of the CPU's template."""

from stitch_planner.stitcher.lower.graph_index import GraphIndex
from stitch_planner.stitcher.lower.templates.rnn import Rnn
from stitch_tools.models.graph import GraphNode


class CudaRnn(Rnn):
    """LSTM, GRU and plain recurrent layers."""

    def refuses(self, node: GraphNode, index: GraphIndex) -> str | None:
        """None for what a CPU computes as well, where no tensor is empty."""
        general = super().refuses(node, index)
        if general is None and any(index.spec(key).numel == 0 for key in index.operands(node)):
            return "a recurrent layer over nothing has no template"
        return general
