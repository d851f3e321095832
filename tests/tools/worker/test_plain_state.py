"""State in plain attributes: what counts as changed."""

from pathlib import Path

import pytest
import torch

from stitch_tools.worker.plain_state import PlainState


class Recurrent(torch.nn.Module):
    """Moves its state to where its input lies, as KernelBench's recurrent tasks do."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = torch.full((4,), float("nan"))
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.hidden = self.hidden.to(x.device)
        return x


def test_what_forward_writes_is_changed_and_put_back() -> None:
    module = Recurrent()
    state = PlainState(module)
    assert state.changed() == ()
    module.hidden, module.calls = module.hidden.nan_to_num(), 1
    assert state.changed() == ("calls", "hidden")
    state.restore()
    assert state.changed() == ()
    assert bool(module.hidden.isnan().all())


@pytest.mark.gpu
@pytest.mark.skipif(not Path("/dev/nvidiactl").exists(), reason="no NVIDIA GPU here: not measured")
def test_a_tensor_that_is_moved_to_the_device_is_no_other_state() -> None:
    module = Recurrent()
    state = PlainState(module)
    module(torch.zeros(4, device="cuda"))
    assert module.hidden.is_cuda
    assert state.changed() == ()
