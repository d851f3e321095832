"""Runs the steps of a `ModelNew` as one CUDA graph once they have run for the same weights before.

Stands alone beside `native.py`: the stitcher copies it into the CUDA programs that it writes in Python.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

import torch

Steps = Callable[[dict[str, torch.Tensor]], Sequence[torch.Tensor]]
"""From the call's tensors by path to the values that leave the forward."""
LARGEST_BYTES = 32 << 20
"""Inputs and outputs together beyond which copying them costs more than launches do."""


class GraphReplay:
    """One captured graph, with its own memory for inputs and outputs.

    The first call with some weights runs the steps as they are, the second captures them, later ones replay
    the graph: each call runs every step once, so that buffers which the steps update are right.
    """

    def __init__(self) -> None:
        self._seen: object = None
        """Weights of the last call that ran without a graph."""
        self._captured: object = None
        """Weights that the graph's kernels read."""
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: dict[str, torch.Tensor] = {}
        self._outputs: tuple[torch.Tensor, ...] = ()
        self._refused = False

    def __reduce__(self) -> tuple[type["GraphReplay"], tuple[()]]:
        # A graph reads the memory of one module: a copy of the module begins without one.
        return GraphReplay, ()

    def __call__(
        self,
        steps: Steps,
        given: dict[str, torch.Tensor],
        state: Mapping[str, torch.Tensor],
        updated: Collection[str] = (),
    ) -> Sequence[torch.Tensor]:
        """The steps' values for `given`.

        Args:
            steps: runs on the current stream, and draws no random numbers.
            given: tensors of one shape for all calls, by path.
            state: parameters and buffers that the steps read, by name.
            updated: names of buffers that the steps write themselves.
        """
        if self._refused or torch.cuda.is_current_stream_capturing():
            return steps(given)
        # An optimiser or load_state_dict writes in place: segments have then to pack their weights again.
        weights = tuple(
            (value.data_ptr(), 0 if name in updated else value._version) for name, value in state.items()
        )
        if self._graph is None or weights != self._captured:
            if weights != self._seen:
                self._seen = weights
                self._graph = None
                return self._measured(steps, given)
            if not self._capture(steps, given):
                return steps(given)
            self._captured = weights
        assert self._graph is not None
        for path, value in self._inputs.items():
            value.copy_(given[path])
        self._graph.replay()
        return [value.clone() for value in self._outputs]

    def _measured(self, steps: Steps, given: dict[str, torch.Tensor]) -> Sequence[torch.Tensor]:
        """Runs the steps, and refuses graphs from now on where the copies would be too large."""
        values = steps(given)
        count = sum(value.numel() * value.element_size() for value in (*given.values(), *values))
        self._refused = count > LARGEST_BYTES
        return values

    def _capture(self, steps: Steps, given: dict[str, torch.Tensor]) -> bool:
        """Whether the steps could be captured; nothing of them has run then."""
        self._inputs = {path: torch.empty_like(value) for path, value in given.items()}
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self._outputs = tuple(steps(self._inputs))
        except RuntimeError:
            # An operation waits for the device, or takes memory in a way that a graph cannot.
            self._refused = True
            self._inputs, self._outputs = {}, ()
            return False
        self._graph = graph
        return True


def replay_of(module: torch.nn.Module) -> GraphReplay:
    """The module's own replay, made with its first call."""
    held = module.__dict__.get("_stitch_replay")
    if not isinstance(held, GraphReplay):
        held = module.__dict__["_stitch_replay"] = GraphReplay()
    return held
