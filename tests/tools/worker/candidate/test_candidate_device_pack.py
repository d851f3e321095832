"""Outputs on a device come back with what lies beside them; a second CPU allocation stands for the device."""

import os
from collections.abc import Iterator

import pytest

from stitch_tools.protocol import memory
from stitch_tools.protocol.layout import GUARD
from stitch_tools.protocol.memory import PackEntry
from stitch_tools.worker.candidate.device_pack import DevicePack

GUARD_BYTES, FLOATS = 4096, 5
Pack = tuple[int, list[PackEntry]]


@pytest.fixture
def pack() -> Iterator[Pack]:
    guard = (GUARD, (GUARD_BYTES,), None, "uint8")
    rows = [guard, ("y", (FLOATS,), None, "float32"), guard, ("empty", (0, 3), None, "int64"), guard]
    layout, nbytes = memory.lay_out(rows)
    fd = memory.create(nbytes)
    memory.poison(fd, 0xA5)
    yield fd, [entry for entry in layout if entry["name"] != GUARD]
    os.close(fd)


def written(fd: int) -> list[int]:
    """Offsets of the bytes that are not poison."""
    data = os.pread(fd, os.fstat(fd).st_size, 0)
    return [place for place, byte in enumerate(data) if byte != 0xA5]


def test_nothing_is_in_the_pack_before_it_is_copied_back(pack: Pack) -> None:
    fd, entries = pack
    device = DevicePack(fd, "cpu")
    (y, empty) = device.views(entries)
    assert (tuple(y.shape), tuple(empty.shape)) == ((FLOATS,), (0, 3))
    y.fill_(1.0)
    assert written(fd) == []
    device.copy_back()
    start = entries[0]["offset"]
    assert set(written(fd)) <= set(range(start, start + 4 * FLOATS))
    assert written(fd) != []


@pytest.mark.parametrize("beyond", [0, 700, -1000])
def test_a_write_beside_an_output_comes_back_too(pack: Pack, beyond: int) -> None:
    fd, entries = pack
    device = DevicePack(fd, "cpu")
    (y, _) = device.views(entries)
    first = y.as_strided((1,), (1,), y.storage_offset() + (FLOATS + beyond if beyond >= 0 else beyond))
    first.fill_(1.0)
    device.copy_back()
    start = entries[0]["offset"]
    assert not set(written(fd)) & set(range(start, start + 4 * FLOATS))
    assert written(fd) != []


def test_poison_is_put_in_again_for_another_call_in_the_same_memory(pack: Pack) -> None:
    fd, entries = pack
    device = DevicePack(fd, "cpu")
    (y, _) = device.views(entries)
    y.fill_(1.0)
    device.copy_in()
    device.copy_back()
    assert written(fd) == []
