"""Tensors travel through shared memory unchanged, and nobody can change what was sealed."""

import fcntl
import os
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stitch_tools.protocol import memory
from stitch_tools.run.interpreter import find_interpreter
from stitch_tools.worker.tensors import map_pack, write_pack

DTYPES = sorted(memory.ITEM_BYTES)


def sample(dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7)
    numbers = torch.randint(0, 100, shape, generator=generator)
    return numbers.to(getattr(torch, dtype))


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    alike = (left.shape, left.stride(), left.dtype) == (right.shape, right.stride(), right.dtype)
    return alike and torch.equal(left.to(torch.complex128), right.to(torch.complex128))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_comes_back(dtype: str) -> None:
    tensor = sample(dtype, (3, 5))
    fd, manifest = write_pack([("x", tensor)])
    assert same(map_pack(fd, manifest)[0], tensor)
    os.close(fd)


@given(
    shapes=st.lists(st.lists(st.integers(0, 4), max_size=4), min_size=1, max_size=5),
    step=st.integers(1, 3),
    flip=st.booleans(),
)
def test_strides_and_empty_tensors_come_back(shapes: list[list[int]], step: int, flip: bool) -> None:
    tensors: list[tuple[str, torch.Tensor]] = []
    for index, shape in enumerate(shapes):
        tensor = sample("float32", (*shape, 4))[..., ::step]
        tensors.append((f"t{index}", tensor.movedim(0, -1) if flip else tensor))
    fd, manifest = write_pack(tensors)
    for (_, sent), entry, got in zip(tensors, manifest, map_pack(fd, manifest), strict=True):
        assert same(got, sent)
        assert entry["offset"] % memory.ALIGNMENT_BYTES == 0
    os.close(fd)


def test_broadcast_and_conjugated_tensors_come_back() -> None:
    tensors = [("e", sample("int64", (1, 3)).expand(4, 3)), ("c", sample("complex64", (3,)).conj())]
    fd, manifest = write_pack(tensors)
    assert all(same(got, sent) for got, (_, sent) in zip(map_pack(fd, manifest), tensors, strict=True))
    os.close(fd)


def test_what_lies_between_the_elements_does_not_travel() -> None:
    secret = torch.full((4, 2), 42.0)
    fd, manifest = write_pack([("x", secret[:, 0])])
    assert manifest[0]["stride"] == [2]
    assert os.pread(fd, 4, 4) == bytes(4)
    os.close(fd)


def test_a_sealed_pack_cannot_be_changed_but_its_private_copy_can() -> None:
    fd, manifest = write_pack([("x", torch.ones(4))])
    assert fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_WRITE
    with pytest.raises(PermissionError):
        os.pwrite(fd, b"x", 0)
    with pytest.raises(PermissionError):
        map_pack(fd, manifest, writable=True, private=False)
    (mine,) = map_pack(fd, manifest, writable=True, private=True)
    mine.add_(1)
    assert torch.equal(map_pack(fd, manifest)[0], torch.ones(4))
    os.close(fd)


def test_shared_outputs_are_seen_by_both_and_start_poisoned() -> None:
    manifest, nbytes = memory.lay_out([("y", (3,), None, "float32"), ("i", (2,), None, "int64")])
    fd = memory.create(nbytes)
    memory.poison(fd)
    ours = map_pack(fd, manifest, private=False)
    theirs = map_pack(fd, manifest, writable=True, private=False)
    assert ours[0].isnan().all()
    assert (ours[1] == -1).all()
    theirs[0].fill_(3)
    assert ours[0].tolist() == [3, 3, 3]
    with pytest.raises(PermissionError):
        os.ftruncate(fd, 0)
    os.close(fd)


def test_a_manifest_that_does_not_fit_is_refused() -> None:
    fd, manifest = write_pack([("x", torch.ones(64))])
    for change in ({"offset": 256}, {"offset": -4}, {"shape": [65]}, {"stride": [2]}):
        with pytest.raises(ValueError, match="does not fit"):
            map_pack(fd, [{**manifest[0], **change}])  # type: ignore[typeddict-item]
    os.close(fd)


def test_a_sparse_tensor_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="weights"):
        write_pack([("weights", torch.eye(3).to_sparse())])


def test_packs_need_no_torch_in_the_controller(tmp_path: Path) -> None:
    import subprocess

    modules = "sys, stitch_tools.run.session, stitch_tools.protocol.memory"
    code = f"import {modules}; print('torch' in sys.modules)"
    python = find_interpreter(None, tmp_path).path
    assert (
        subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
    )


def test_a_pack_holds_no_lock_or_descriptor_after_closing() -> None:
    before = sorted(Path("/proc/self/fd").iterdir())
    fd, _ = write_pack([("x", torch.ones(4))])
    assert fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    os.close(fd)
    assert sorted(Path("/proc/self/fd").iterdir()) == before


@pytest.mark.parametrize("seals", [fcntl.F_SEAL_WRITE, 0x10, fcntl.F_SEAL_SEAL])
def test_whoever_gets_memory_to_write_to_cannot_take_it_from_us(seals: int) -> None:
    # 0x10: F_SEAL_FUTURE_WRITE, which the module does not name in every version
    written, _ = write_pack([("x", torch.ones(3))], sealed=False)
    for fd in (memory.create(64), written):
        with pytest.raises(PermissionError):
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
        assert os.pwrite(fd, b"12", 0) == 2
        os.close(fd)
