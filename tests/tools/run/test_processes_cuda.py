"""CUDA works in a confined worker at every level, and a kernel that never ends dies with it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from stitch_tools.protocol import memory
from stitch_tools.run.child_outcome import ChildTimeout
from stitch_tools.run.interpreter import find_interpreter
from stitch_tools.run.session import TargetSession

HANDLERS = Path(__file__).with_name("processes_handlers.py")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not Path("/dev/nvidiactl").exists(), reason="no NVIDIA GPU here: not measured"),
]


@pytest.fixture(scope="module", params=["full", "fs+net", "process"])
def session(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TargetSession]:
    with TargetSession(
        find_interpreter(None, tmp_path_factory.mktemp("w")), at_most=request.param
    ) as session:
        if session.sandbox_level != request.param:
            pytest.skip(f"level {request.param} does not work here: {session.sandbox_reason}")
        yield session


@pytest.mark.parametrize("role", ["worker", "reference"])
def test_a_child_computes_on_the_gpu(session: TargetSession, role: str) -> None:
    manifest, nbytes = memory.lay_out([("x", (64, 64), None, "float32")])
    inputs, outputs = memory.create(nbytes), memory.create(nbytes)
    assert role in ("worker", "reference")
    with session.spawn(role, serve_file=HANDLERS) as child:
        answer = child.request(
            {"op": "use_gpu", "manifest": manifest}, fds=(inputs, outputs), timeout_s=120
        ).message
    print(session.sandbox_level, role, answer)
    assert answer["ok"], answer["error"]
    assert answer["pinned"] == 0
    assert os.pread(outputs, nbytes, 0) == bytes(nbytes)
    os.close(inputs)
    os.close(outputs)


def test_a_kernel_that_never_ends_dies_with_its_process(session: TargetSession) -> None:
    with session.spawn("worker", serve_file=HANDLERS) as child, pytest.raises(ChildTimeout):
        child.request({"op": "spin_gpu"}, timeout_s=5)
    test_a_child_computes_on_the_gpu(session, "worker")
