"""A reference on a GPU that has no room for it in fp64: the oracle runs on the host (`fp64-cpu`)."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from stitch_tools.judge.check import check_program
from stitch_tools.judge.check_options import CheckOptions
from stitch_tools.judge.trial import Trial
from stitch_tools.models.verdict import Check
from stitch_tools.run.interpreter import find_interpreter
from stitch_tools.run.reference_server import ReferenceServer
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store
from tests.tools.check_support import make_task, model_new

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.whole_gpu,
    pytest.mark.skipif(not Path("/dev/nvidiactl").exists(), reason="no NVIDIA GPU here: not measured"),
]
GIB = 1 << 30
LEFT = 5 * GIB
"""Of the GPU's memory: enough for three contexts and 1 GiB of weights twice, not for them in fp64."""
MODEL = """import torch
from torch import nn


class {name}(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(16384, 16384)
        self.register_buffer("calls", torch.zeros(3))

    def forward(self, x):
        x.mul_(0.5)
        y = self.fc(x)
        return {outputs}
"""
INPUTS = """

def get_inputs():
    return [torch.rand(8, 16384)]


def get_init_inputs():
    return []
"""


@pytest.fixture
def crowded() -> Iterator[None]:
    """The GPU all but full: of another process' memory, as far as the judge can see."""
    free, _ = torch.cuda.mem_get_info()
    ballast = torch.empty(max(0, free - LEFT), dtype=torch.uint8, device="cuda")
    yield
    del ballast
    torch.cuda.empty_cache()


@pytest.mark.usefixtures("crowded")
def test_the_oracle_on_the_host_judges_floats_decisions_buffers_and_written_inputs(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    source = MODEL.format(name="Model", outputs="y, y.argmax(-1)") + INPUTS
    task = make_task(store, source, target="cuda:sm_90")

    def check(outputs: str) -> Check:
        program = model_new(store, MODEL.format(name="ModelNew", outputs=outputs)).model_copy(
            update={"target": "cuda:sm_90"}
        )
        return check_program(
            Trial(
                task=task,
                program=program,
                build=None,
                session=session,
                store=store,
                facts=server.observe(),
                reference=server,
            ),
            CheckOptions(trace=False, structured=False, batch_probe=False, order_one_weights=False),
        )

    with (
        TargetSession(find_interpreter(None, tmp_path), scratch_root=tmp_path / "scratch") as session,
        ReferenceServer(session, task, store) as server,
    ):
        right = check("y, y.argmax(-1)")
        assert (right.status, right.oracle) == ("accepted", "fp64-cpu"), right.message
        wrong = check("y * 1.01, y.argmax(-1)")
        assert (wrong.status, wrong.oracle) == ("incorrect", "fp64-cpu"), wrong.message
        tipped = check("y, (y.argmax(-1) + 1) % 16384")
        assert (tipped.status, tipped.oracle) == ("incorrect", "fp64-cpu"), tipped.message
