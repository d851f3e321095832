"""Tensors over memory that is not torch's: a DLPack capsule made by hand, so that nothing else is needed.

`__cuda_array_interface__` would do the same for a GPU, but torch reads that with NumPy's help.
"""

import ctypes
from collections.abc import Callable

import torch
import torch.utils.dlpack

from stitch_tools.worker.runtime.abi import AbiDevice, DataType, DLTensor

CPU, CUDA = 1, 2
_UNSIGNED, _BITS = 1, 8


class _Managed(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = (("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


# What torch knows by address only, until it gives it back.
_held: dict[int, tuple[_Managed, object, Callable[[], None]]] = {}


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _give_back(address: int) -> None:
    _, _, release = _held.pop(address)
    release()


def bytes_at(address: int, nbytes: int, device: tuple[int, int], release: Callable[[], None]) -> torch.Tensor:
    """The bytes from `address` on as a uint8 tensor.

    Args:
        address: of the first byte.
        nbytes: how many.
        device: CPU or CUDA, and its number.
        release: called once neither the tensor nor a view of it exists any more.
    """
    sizes, strides = (ctypes.c_int64 * 1)(nbytes), (ctypes.c_int64 * 1)(1)
    kind = DataType(_UNSIGNED, _BITS, 1)
    tensor = DLTensor(address, AbiDevice(*device), 1, kind, sizes, strides, 0)
    managed = _Managed(tensor, None, ctypes.cast(_give_back, ctypes.c_void_p))
    key = ctypes.addressof(managed)
    _held[key] = (managed, (sizes, strides), release)
    capsule = _new_capsule(key, b"dltensor", None)
    return torch.utils.dlpack.from_dlpack(capsule)


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
