"""Prints, as JSON, the GPUs that the CUDA driver sees. Run as a script in a child process of its own.

A child, because initialising the driver starts threads and takes locks that must not be in a process that
forks, and because a broken driver may crash or hang whoever asks. Standard library only.
"""

import ctypes
import json
from collections.abc import Callable

LIBRARY_NAMES = (
    "libcuda.so.1",
    "/usr/local/nvidia/lib64/libcuda.so.1",
    "/usr/lib/wsl/lib/libcuda.so.1",
    "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
)

# CUdevice_attribute numbers of cuda.h
_MULTIPROCESSORS = 16
_L2_BYTES = 38
_MAJOR, _MINOR = 75, 76
_SHARED_OPT_IN = 97

_REASONS = {
    3: "the CUDA driver is not initialised",
    34: "the CUDA library found is a stub without a driver",
    100: "the driver sees no GPU",
    101: "the GPU was refused by the driver",
    802: "the GPU is not ready yet (its fabric manager is not running)",
    803: "driver library and kernel module have different versions: reboot, or reinstall the driver",
    804: "the driver is older than this CUDA library needs",
}


class DriverError(Exception):
    """The driver answered with an error; the text is for people."""


def load_driver() -> ctypes.CDLL:
    """The driver library.

    Raises:
        DriverError: it is not installed.
    """
    for name in LIBRARY_NAMES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise DriverError("no NVIDIA driver (libcuda.so.1) is installed")


def query() -> dict[str, object]:
    """`{"gpus": [...], "driver_cuda": 13000}`.

    Raises:
        DriverError: there is no driver or no GPU.
    """
    driver = load_driver()
    _call(driver.cuInit, 0)
    count, cuda = ctypes.c_int(), ctypes.c_int()
    _call(driver.cuDriverGetVersion, ctypes.byref(cuda))
    _call(driver.cuDeviceGetCount, ctypes.byref(count))
    return {"gpus": [_gpu(driver, index) for index in range(count.value)], "driver_cuda": cuda.value}


def _gpu(driver: ctypes.CDLL, index: int) -> dict[str, object]:
    device = ctypes.c_int()
    _call(driver.cuDeviceGet, ctypes.byref(device), index)
    name = ctypes.create_string_buffer(256)
    _call(driver.cuDeviceGetName, name, len(name), device)
    uuid = (ctypes.c_ubyte * 16)()
    _call(driver.cuDeviceGetUuid, ctypes.byref(uuid), device)
    memory = ctypes.c_size_t()
    _call(driver.cuDeviceTotalMem_v2, ctypes.byref(memory), device)

    def attribute(number: int) -> int:
        value = ctypes.c_int()
        _call(driver.cuDeviceGetAttribute, ctypes.byref(value), number, device)
        return value.value

    return {
        "index": index,
        "name": name.value.decode("utf-8", "replace"),
        "uuid": _uuid_text(bytes(uuid)),
        "arch": f"sm_{attribute(_MAJOR)}{attribute(_MINOR)}",
        "memory_bytes": memory.value,
        "multiprocessors": attribute(_MULTIPROCESSORS),
        "l2_bytes": attribute(_L2_BYTES),
        "shared_opt_in_bytes": attribute(_SHARED_OPT_IN),
    }


def _uuid_text(raw: bytes) -> str:
    """The UUID as nvidia-smi writes it."""
    text = raw.hex()
    return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _call(function: Callable[..., int], *args: object) -> None:
    code = function(*args)
    if code != 0:
        raise DriverError(_REASONS.get(code, f"the CUDA driver answered with error {code}"))


def main() -> None:
    """Print the answer, `{"problem": text}` when there is none to give."""
    try:
        answer = query()
    except (DriverError, AttributeError) as error:
        answer = {"problem": str(error)}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
