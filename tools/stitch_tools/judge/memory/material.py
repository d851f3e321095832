"""What a program is run on: one set of weights and one draw, as packs of shared memory."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from stitch_tools.errors import TaskError
from stitch_tools.judge.trial import Trial
from stitch_tools.models import Task
from stitch_tools.protocol.messages_reference import WeightsMade
from stitch_tools.run.reference_server import DrawUnavailable, Inputs, ReferenceServer

OWN = "own-1"
SMALLER = "batch-probe"


@dataclass(frozen=True)
class Material:
    """Weights and inputs; the descriptors belong to `drawn`."""

    weights: WeightsMade
    inputs: Inputs
    updated: tuple[str, ...]
    """Buffers that cross the ABI as state."""

    @property
    def kind(self) -> str:
        """The draw's name."""
        return self.inputs.kind

    @property
    def fds(self) -> tuple[int, int]:
        """The packs of weights and inputs."""
        return self.weights.fds[0], self.inputs.fds[0]


@contextmanager
def drawn(reference: ReferenceServer, trial: Trial, kind: str) -> Generator[Material | None]:
    """Fresh weights and a draw of `kind`, which hosts of tools map; None where the task has no such draw.

    Raises:
        TaskError: the reference itself fails.
    """
    reference.revive()
    weights = reference.set_weights(on_host=True)
    try:
        try:
            inputs = reference.make_draw(kind, on_host=True)
        except (DrawUnavailable, TaskError):
            if kind == OWN:
                raise
            yield None
            return
        try:
            yield Material(weights, inputs, trial.updated)
        finally:
            inputs.close()
    finally:
        weights.close()


def kinds_for(task: Task) -> tuple[str, ...]:
    """The draws to try: on a CPU the task's own first, on a GPU the smaller one where the contract permits.

    A sanitizer makes a GPU tens of times slower; a CPU can afford the shapes that the program was made for.
    """
    if task.contract.shape_policy != "batch-probe":
        return (OWN,)
    return (OWN, SMALLER) if task.target == "cpu" else (SMALLER, OWN)
