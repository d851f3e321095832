"""What all processes of one timing share, and the weights and draws that they are given."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path

from stitch_tools.judge.timing.ring import RingShape
from stitch_tools.machine.device_lock import shared_device, shared_key
from stitch_tools.models.task import ReferenceFacts, Task
from stitch_tools.protocol.messages_reference import WeightsMade
from stitch_tools.run.reference_server import Inputs, ReferenceServer
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store


@dataclass(frozen=True)
class Setup:
    """What program and baselines of one timing share."""

    session: TargetSession
    task: Task
    store: Store
    facts: ReferenceFacts
    shape: RingShape
    seeds: tuple[int, ...]
    """Of the draws; the program never sees them."""
    cache_dir: Path | None
    judge: ReferenceServer
    """Makes draws and judges outputs. On a GPU it owns those of programs, where both can map them."""
    renews_inputs: bool = False
    """Whether single calls get inputs that never came before."""
    not_renewed: str = ""
    """What was not checked since they do not."""
    alone: Callable[[], AbstractContextManager[None]] = nullcontext
    """The GPU for the block alone: for a program that is made ready, which may choose by timing what it
    tries, and for what a probe times in the stage `finished`."""

    @property
    def cuda(self) -> bool:
        """Whether the calls run on a GPU."""
        return self.task.target != "cpu"

    def sharing_device(self) -> AbstractContextManager[None]:
        """No other timing runs on the GPU meanwhile, for what is prepared on it."""
        return shared_device(shared_key(self.task.target), purpose="preparing a timing")

    @property
    def shares_memory(self) -> bool:
        """Whether program and judge can map the same memory of the GPU."""
        return self.judge.plane == "device"

    @property
    def slot_bytes(self) -> int:
        """Inputs and outputs of one slot together."""
        return self.shape.nbytes // self.shape.slots


def make_draws(
    stack: ExitStack, judge: ReferenceServer, seeds: Sequence[int]
) -> tuple[WeightsMade, tuple[Inputs, ...]]:
    """Fresh weights, which `judge` then has too, and one draw of the task's own inputs per seed."""
    weights = judge.set_weights()
    stack.callback(weights.close)
    return weights, own_draws(stack, judge, seeds)


def own_draws(stack: ExitStack, judge: ReferenceServer, seeds: Sequence[int]) -> tuple[Inputs, ...]:
    """One draw of the task's own inputs per seed, closed with the stack."""
    draws: list[Inputs] = []
    for number, seed in enumerate(seeds, 1):
        draws.append(judge.make_draw(f"own-{number}", seed=seed))
        stack.callback(draws[-1].close)
    return tuple(draws)
