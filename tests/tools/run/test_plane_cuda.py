"""Tensors in memory of a GPU that two processes map: they arrive whole, nothing else does, nothing stays."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from stitch_tools.judge.timing.device_ring import DeviceRing
from stitch_tools.protocol import memory
from stitch_tools.protocol.messages_session import ProbeStep
from stitch_tools.run.child_outcome import ChildDied
from stitch_tools.run.data_plane import SETTING, started_pair
from stitch_tools.run.interpreter import find_interpreter
from stitch_tools.run.reference_server import ReferenceServer
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store
from stitch_tools.worker import exported_memory
from stitch_tools.worker.cuda_driver import DriverError
from stitch_tools.worker.tensors import create_on_device, export_pack, map_pack, map_whole, write_pack
from tests.tools.check_support import linear_relu_task

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not Path("/dev/nvidiactl").exists(), reason="no NVIDIA GPU here: not measured"),
]
LEVELS = ("full", "fs+net", "process")
MB = 1 << 20


@pytest.fixture(scope="module", params=LEVELS)
def session(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TargetSession]:
    root = tmp_path_factory.mktemp("plane")
    with (
        pytest.MonkeyPatch.context() as patch,
        TargetSession(
            find_interpreter(None, root), at_most=request.param, scratch_root=root / "scratch"
        ) as session,
    ):
        patch.setenv(SETTING, "device")
        if session.sandbox_level != request.param:
            pytest.skip(f"level {request.param} does not work here: {session.sandbox_reason}")
        yield session


def test_tensors_stay_on_the_gpu_at_every_level_of_isolation(session: TargetSession) -> None:
    plane = session.plane()
    assert (plane.kind, plane.reason) == ("device", "")


def test_a_program_that_dies_leaves_the_judges_memory_alone(session: TargetSession) -> None:
    with started_pair(session, "device") as pair:
        sent = pair.judge.call(ProbeStep("send", on_device=True, nbytes=5 * MB))
        manifest, inputs = sent.manifest, sent.fds
        outputs = pair.judge.call(ProbeStep("poison", on_device=True, manifest=manifest)).fds
        pair.program.call(ProbeStep("take", manifest=manifest, fds=inputs))
        pair.program.call(ProbeStep("give", manifest=manifest, fds=outputs))
        pair.program.kill()
        with pytest.raises(ChildDied):
            pair.program.call(ProbeStep("take", manifest=manifest, fds=inputs))
        assert pair.judge.call(ProbeStep("read", manifest=manifest, fds=outputs)).right is True
        for fd in (*inputs, *outputs):
            os.close(fd)


@pytest.mark.parametrize("dtype", sorted(memory.ITEM_BYTES))
def test_every_dtype_and_stride_comes_back(dtype: str) -> None:
    numbers = torch.randint(0, 2, (6, 8)).to(getattr(torch, dtype)).cuda()
    sent = [numbers, numbers[:, ::2], numbers.T, numbers[:1].expand(4, 8), numbers[:0]]
    fd, manifest = export_pack([(str(index), tensor) for index, tensor in enumerate(sent)])
    assert memory.is_on_device(fd)
    for tensor, got in zip(sent, map_pack(fd, manifest), strict=True):
        assert (got.shape, got.stride(), got.dtype, got.is_cuda) == (
            tensor.shape,
            tensor.stride(),
            tensor.dtype,
            True,
        )
        assert torch.equal(got.to(torch.complex128), tensor.to(torch.complex128))
    os.close(fd)


def test_nothing_that_lay_in_the_memory_before_or_between_the_elements_travels() -> None:
    secret = torch.full((64 * MB,), 42, dtype=torch.uint8, device="cuda")
    fd, manifest = export_pack([("x", secret.view(torch.float32)[:100].reshape(50, 2)[:, 0])])
    del secret
    torch.cuda.empty_cache()
    whole = map_whole(fd, memory.end_of(manifest))
    assert whole.numel() >= 2 * MB
    assert int((whole == 42).sum()) == 50 * 4
    new = create_on_device(64 * MB)
    assert int((map_whole(new, 64 * MB) != 0).sum()) == 0
    os.close(fd)
    os.close(new)


def test_what_one_mapping_writes_the_other_reads_and_the_master_stays() -> None:
    master = torch.arange(1000.0, device="cuda")
    fd, manifest = export_pack([("x", master)])
    (ours,), (theirs,) = map_pack(fd, manifest), map_pack(fd, manifest)
    os.close(fd)
    theirs.zero_()
    torch.cuda.synchronize()
    assert int(ours.count_nonzero()) == 0
    assert int(master.count_nonzero()) == 999


@pytest.mark.whole_gpu  # whatever others take or give back counts, too
def test_many_evaluations_leave_neither_memory_nor_descriptors_behind() -> None:
    x = torch.ones(10 * MB, dtype=torch.uint8, device="cuda")

    def once() -> None:
        fd, manifest = export_pack([("x", x)])
        (copy,) = (tensor.clone() for tensor in map_pack(fd, manifest))
        assert int(copy.sum()) == 10 * MB
        os.close(fd)

    once()
    gc.collect()
    torch.cuda.synchronize()
    free, open_files = torch.cuda.mem_get_info()[0], len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(200):
        once()
    assert torch.cuda.mem_get_info()[0] == free
    assert len(list(Path("/proc/self/fd").iterdir())) == open_files


@pytest.mark.whole_gpu  # it takes all there is
def test_where_the_gpu_has_no_memory_left_tensors_travel_by_the_host() -> None:
    x = torch.ones(512 * MB, dtype=torch.uint8, device="cuda")
    hog: list[tuple[int, exported_memory.DeviceMapping]] = []

    def take_all() -> None:
        while True:
            hog.append(exported_memory.create(256 * MB, torch.cuda.current_device()))

    try:
        with pytest.raises(DriverError, match="cuMemCreate"):
            take_all()
        fd, manifest = write_pack([("x", x)], on_device=True)
    finally:
        for held, mapping in hog:
            mapping.close()
            os.close(held)
    assert not memory.is_on_device(fd)
    assert int(map_pack(fd, manifest)[0].sum()) == 512 * MB
    os.close(fd)


def test_a_ring_is_poisoned_and_read_by_the_judge_alone(session: TargetSession, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    with ReferenceServer(session, linear_relu_task(store, target="cuda:sm_90"), store) as judge:
        specs = judge.observe().outputs
        judge.set_weights().close()
        ring = DeviceRing(judge, specs, 3)
        assert memory.is_on_device(ring.fd)
        poison = b"\xff" * (specs[0].nbytes)
        layout, _ = memory.lay_out([(spec.name, spec.shape, None, spec.dtype) for spec in specs] * 3)
        theirs = map_pack(ring.fd, layout)
        assert [ring.take(slot) for slot in range(3)] == [(poison,)] * 3
        theirs[1].fill_(1.0)
        torch.cuda.synchronize()
        assert ring.take(1) == (theirs[1].cpu().numpy().tobytes(),)
        assert ring.take(2) == (poison,)
        ring.poison(2, 3)
        assert ring.take(1) == (poison,)
        ring.close()
