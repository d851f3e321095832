"""The CUDA driver: how it is found and called, everywhere. Standard library only, in any Python.

Run as a script it asks the driver in a process of its own: `python cuda_driver.py gpus` prints as JSON which
GPUs it sees, `python cuda_driver.py canary` ends with 0 where the first one computes. A process of its own,
because initialising the driver starts threads and takes locks that must not be in a process that forks, and
because a broken driver may crash or hang whoever asks.
"""

import ctypes
import json
import sys
from collections.abc import Sequence

# Beside the loader's own search: where containers, WSL and Debian put it.
DRIVER_NAMES = (
    "libcuda.so.1",
    "/usr/local/nvidia/lib64/libcuda.so.1",
    "/usr/lib/wsl/lib/libcuda.so.1",
    "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
)

# CUdevice_attribute numbers of cuda.h
_L2_BYTES = 38
_MAJOR, _MINOR = 75, 76

_OUT_OF_MEMORY = 2
_REASONS = {
    3: "the CUDA driver is not initialised",
    34: "the CUDA library found is a stub without a driver",
    100: "the driver sees no GPU",
    101: "the GPU was refused by the driver",
    802: "the GPU is not ready yet (its fabric manager is not running)",
    803: "driver library and kernel module have different versions: reboot, or reinstall the driver",
    804: "the driver is older than this CUDA library needs",
}
_CANARY_WORDS, _CANARY_VALUE = 1 << 18, 0x5717C4ED


class DriverError(Exception):
    """There is no driver, or it refused a step; the text is for people, `code` its own number or 0."""

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


def load_library(names: Sequence[str]) -> ctypes.CDLL | None:
    """The first library of these names that can be loaded."""
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


class CudaDriver:
    """The driver's library in this process."""

    def __init__(self, names: Sequence[str] = DRIVER_NAMES) -> None:
        """Load the first of these names.

        Raises:
            DriverError: it is not installed.
        """
        library = load_library(names)
        if library is None:
            raise DriverError("no NVIDIA driver (libcuda.so.1) is installed")
        self._library = library

    def status(self, name: str, *arguments: object) -> int:
        """Call a function; the driver's number, 0 for success.

        Raises:
            DriverError: this driver has no such function.
        """
        # By name at each call: drivers differ in what they have, and an old one must not fail at the start.
        function = getattr(self._library, name, None)
        if function is None:
            raise DriverError(f"the CUDA driver has no {name}: it is too old")
        return int(function(*arguments))

    def call(self, name: str, *arguments: object) -> None:
        """Call a function that must succeed.

        Raises:
            DriverError: it did not.
        """
        code = self.status(name, *arguments)
        if code:
            raise DriverError(_REASONS.get(code, f"{name}: CUDA error {code}"), code)


def find_gpus(driver: CudaDriver) -> dict[str, object]:
    """`{"gpus": [...], "driver_cuda": 13000}`.

    Raises:
        DriverError: the driver does not start, or sees no GPU.
    """
    driver.call("cuInit", 0)
    count, cuda = ctypes.c_int(), ctypes.c_int()
    driver.call("cuDriverGetVersion", ctypes.byref(cuda))
    driver.call("cuDeviceGetCount", ctypes.byref(count))
    return {"gpus": [_gpu(driver, index) for index in range(count.value)], "driver_cuda": cuda.value}


def _gpu(driver: CudaDriver, index: int) -> dict[str, object]:
    device = ctypes.c_int()
    driver.call("cuDeviceGet", ctypes.byref(device), index)
    name = ctypes.create_string_buffer(256)
    driver.call("cuDeviceGetName", name, len(name), device)
    uuid = (ctypes.c_ubyte * 16)()
    driver.call("cuDeviceGetUuid", ctypes.byref(uuid), device)
    memory = ctypes.c_size_t()
    driver.call("cuDeviceTotalMem_v2", ctypes.byref(memory), device)

    def attribute(number: int) -> int:
        value = ctypes.c_int()
        driver.call("cuDeviceGetAttribute", ctypes.byref(value), number, device)
        return value.value

    return {
        "index": index,
        "name": name.value.decode("utf-8", "replace"),
        "uuid": _uuid_text(bytes(uuid)),
        "arch": f"sm_{attribute(_MAJOR)}{attribute(_MINOR)}",
        "memory_bytes": memory.value,
        "l2_bytes": attribute(_L2_BYTES),
    }


def _uuid_text(raw: bytes) -> str:
    """The UUID as nvidia-smi writes it."""
    text = raw.hex()
    return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def compute(driver: CudaDriver) -> None:
    """Fill memory on the first GPU, copy it there and back, wait, and look at what came.

    Raises:
        DriverError: a step failed, or something else came back.
    """
    device, context = ctypes.c_int(), ctypes.c_void_p()
    first, second = ctypes.c_uint64(), ctypes.c_uint64()
    host = (ctypes.c_uint32 * _CANARY_WORDS)()
    size, words = ctypes.c_size_t(ctypes.sizeof(host)), ctypes.c_size_t(_CANARY_WORDS)
    driver.call("cuInit", 0)
    driver.call("cuDeviceGet", ctypes.byref(device), 0)
    # The context that every program's runtime uses, made as that makes it.
    driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    driver.call("cuCtxSetCurrent", context)
    driver.call("cuMemAlloc_v2", ctypes.byref(first), size)
    driver.call("cuMemAlloc_v2", ctypes.byref(second), size)
    driver.call("cuMemsetD32_v2", first, ctypes.c_uint(_CANARY_VALUE), words)
    driver.call("cuMemcpyDtoD_v2", second, first, size)
    driver.call("cuMemcpyDtoH_v2", host, second, size)
    # Errors of work that runs behind the host's back come here at the latest.
    driver.call("cuCtxSynchronize")
    if any(word != _CANARY_VALUE for word in host):
        raise DriverError("memory on the GPU came back with other values")


def main(question: str, names: Sequence[str] = DRIVER_NAMES) -> int:
    """Print the GPUs, or `{"problem": text}`; of the canary exit code 3 and the reason where it fails."""
    try:
        driver = CudaDriver(names)
        if question == "gpus":
            print(json.dumps(find_gpus(driver)))
        else:
            compute(driver)
    except DriverError as error:
        if question == "gpus":
            print(json.dumps({"problem": str(error)}))
        # Somebody else's tensors may fill the GPU: it answers, and that is what was asked.
        elif error.code != _OUT_OF_MEMORY:
            print(error, flush=True)
            return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
