"""Tensors over memory that is not torch's live as long as a view of them does."""

import ctypes
import gc

import pytest
import torch

from stitch_tools.worker import dlpack


def test_a_tensor_is_the_memory_and_gives_it_back_with_its_last_view() -> None:
    memory = (ctypes.c_ubyte * 1024)()
    given_back: list[str] = []
    whole = dlpack.bytes_at(
        ctypes.addressof(memory), 1024, (dlpack.CPU, 0), lambda: given_back.append("memory")
    )
    assert (whole.dtype, whole.shape, whole.device.type) == (torch.uint8, (1024,), "cpu")
    numbers = whole[256:320].view(torch.float32).as_strided((2, 3), (8, 1))
    numbers.copy_(torch.arange(6.0).reshape(2, 3))
    assert ctypes.c_float.from_buffer(memory, 256 + 4 * 8).value == 3.0
    del whole
    gc.collect()
    assert given_back == []
    del numbers
    gc.collect()
    assert given_back == ["memory"]


@pytest.mark.parametrize("count", [1, 50])
def test_tensors_over_one_memory_are_given_back_one_by_one(count: int) -> None:
    memory = (ctypes.c_ubyte * 64)()
    given_back: list[int] = []
    tensors = [
        dlpack.bytes_at(
            ctypes.addressof(memory), 64, (dlpack.CPU, 0), lambda number=number: given_back.append(number)
        )
        for number in range(count)
    ]
    while tensors:
        tensors.pop()
    assert given_back == list(reversed(range(count)))
