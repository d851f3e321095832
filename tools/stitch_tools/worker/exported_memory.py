"""Memory of a GPU that several processes map: made here, handed on as a descriptor, opened elsewhere.

Plain allocations of the driver (cuMemCreate), each read and written by whoever maps it: a mapping for reading
only would protect nothing, since its holder may change that. The memory lives while a descriptor or a mapping
of it does, whatever becomes of the process that made it. Speaks to the driver alone; needs no torch, but a
current CUDA context.
"""

import contextlib
import ctypes
import functools
from collections.abc import Generator

from stitch_tools.worker.cuda_driver import CudaDriver, DriverError

_DEVICE_ORDINAL, _PLAIN, _READ_WRITE, _AS_DESCRIPTOR = 1, 1, 3, 1
# Attributes of a device: virtual memory management, and its handles as descriptors.
_CAN_MAP, _CAN_EXPORT = 102, 103


class Location(ctypes.Structure):
    """CUmemLocation of the driver."""

    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class Properties(ctypes.Structure):
    """CUmemAllocationProp of the driver."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", Location),
        ("win32", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class AccessDescriptor(ctypes.Structure):
    """CUmemAccessDesc of the driver."""

    _fields_ = (("location", Location), ("flags", ctypes.c_int))


class DeviceMapping:
    """Memory at an address of this process; `close` gives the address back."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.address, self.nbytes = address, nbytes
        """`nbytes` is a whole number of the device's pages."""

    def close(self) -> None:
        """Wait for work that may use it, then unmap. An error of earlier work comes back to who asks next."""
        address, nbytes = ctypes.c_uint64(self.address), ctypes.c_size_t(self.nbytes)
        # Unmapping does not wait for kernels that still write there. Where the context is broken by one,
        # each of these says so again, and the process ends soon.
        for name, arguments in (
            ("cuCtxSynchronize", ()),
            ("cuMemUnmap", (address, nbytes)),
            ("cuMemAddressFree", (address, nbytes)),
        ):
            _status(name, *arguments)


def create(nbytes: int, device: int) -> tuple[int, DeviceMapping]:
    """The descriptor of new zeroed memory, and its mapping here. The caller closes both.

    Raises:
        DriverError: the device has no such memory, or none left.
    """
    wanted = _properties(device)
    size = _whole(nbytes, wanted)
    handle = ctypes.c_uint64()
    _call(
        "cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(size), ctypes.byref(wanted), ctypes.c_uint64(0)
    )
    # The mapping and the descriptor keep the memory; the handle itself is not needed any longer.
    with contextlib.ExitStack() as undo, _released(handle):
        mapping = _map(handle, size, device)
        undo.callback(mapping.close)
        # It may come back from memory that this process has freed, with whatever lay there.
        _call("cuMemsetD8_v2", ctypes.c_uint64(mapping.address), ctypes.c_ubyte(0), ctypes.c_size_t(size))
        fd = ctypes.c_int(-1)
        _call(
            "cuMemExportToShareableHandle",
            ctypes.byref(fd),
            handle,
            ctypes.c_int(_AS_DESCRIPTOR),
            ctypes.c_uint64(0),
        )
        undo.pop_all()
    return fd.value, mapping


def attach(fd: int, nbytes: int, device: int) -> DeviceMapping:
    """A mapping of memory that was made elsewhere with `nbytes`. The descriptor may be closed afterwards.

    Raises:
        DriverError: it is no such memory.
    """
    handle = ctypes.c_uint64()
    _call(
        "cuMemImportFromShareableHandle",
        ctypes.byref(handle),
        ctypes.c_void_p(fd),
        ctypes.c_int(_AS_DESCRIPTOR),
    )
    with _released(handle):
        return _map(handle, _whole(nbytes, _properties(device)), device)


def require_support(device: int) -> None:
    """Go on where the device has memory that can be handed on.

    Raises:
        DriverError: it has not, or there is no driver.
    """
    _call("cuInit", ctypes.c_uint(0))
    for attribute, what in ((_CAN_MAP, "virtual memory management"), (_CAN_EXPORT, "memory as descriptors")):
        has = ctypes.c_int()
        _call("cuDeviceGetAttribute", ctypes.byref(has), ctypes.c_int(attribute), ctypes.c_int(device))
        if not has.value:
            raise DriverError(f"the device has no {what}")


def _map(handle: ctypes.c_uint64, size: int, device: int) -> DeviceMapping:
    address = ctypes.c_uint64()
    _call(
        "cuMemAddressReserve",
        ctypes.byref(address),
        ctypes.c_size_t(size),
        ctypes.c_size_t(0),
        ctypes.c_uint64(0),
        ctypes.c_uint64(0),
    )
    access = AccessDescriptor(Location(_DEVICE_ORDINAL, device), _READ_WRITE)
    with contextlib.ExitStack() as undo:
        undo.callback(_status, "cuMemAddressFree", address, ctypes.c_size_t(size))
        _call("cuMemMap", address, ctypes.c_size_t(size), ctypes.c_size_t(0), handle, ctypes.c_uint64(0))
        undo.callback(_status, "cuMemUnmap", address, ctypes.c_size_t(size))
        _call("cuMemSetAccess", address, ctypes.c_size_t(size), ctypes.byref(access), ctypes.c_size_t(1))
        undo.pop_all()
    return DeviceMapping(address.value, size)


def _properties(device: int) -> Properties:
    return Properties(_PLAIN, _AS_DESCRIPTOR, Location(_DEVICE_ORDINAL, device))


def _whole(nbytes: int, wanted: Properties) -> int:
    """Bytes of the device's pages that hold `nbytes`."""
    page = ctypes.c_size_t()
    _call("cuMemGetAllocationGranularity", ctypes.byref(page), ctypes.byref(wanted), ctypes.c_int(0))
    return -(-max(nbytes, 1) // page.value) * page.value


@contextlib.contextmanager
def _released(handle: ctypes.c_uint64) -> Generator[None]:
    try:
        yield
    finally:
        _status("cuMemRelease", handle)


def _call(name: str, *arguments: object) -> None:
    _driver().call(name, *arguments)


def _status(name: str, *arguments: object) -> int:
    return _driver().status(name, *arguments)


@functools.lru_cache(maxsize=1)
def _driver() -> CudaDriver:
    return CudaDriver()
