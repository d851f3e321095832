"""One small computation on the first visible GPU: `python bootstrap.py canary`, in any Python, without torch.

A candidate may leave a GPU behind on which nothing ends any more. Whether it still works shows only in a
fresh process that may hang in our place. Speaks to the driver alone: half a second where all is well.
"""

import ctypes

_NAMES = ("libcuda.so.1", "/usr/local/nvidia/lib64/libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1")
_WORDS, _VALUE = 1 << 18, 0x5717C4ED
_OUT_OF_MEMORY = 2


class CanaryError(Exception):
    """The driver refused a step; `code` is its own number, 0 where there is no driver."""

    def __init__(self, step: str, code: int) -> None:
        super().__init__(f"{step}: CUDA error {code}" if code else step)
        self.code = code


def main() -> int:
    """Exit code: 0 where the GPU computed, or has no memory left; else 3, with a printed reason."""
    try:
        compute(load_driver())
    except CanaryError as error:
        # Somebody else's tensors fill it: it answers, and that is what was asked.
        if error.code != _OUT_OF_MEMORY:
            print(error, flush=True)
            return 3
    return 0


def load_driver() -> ctypes.CDLL:
    """The driver library.

    Raises:
        CanaryError: it is not installed.
    """
    for name in _NAMES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise CanaryError("no NVIDIA driver (libcuda.so.1) is installed", 0)


def compute(driver: ctypes.CDLL) -> None:
    """Fill memory on the GPU, copy it there and back, wait, and look at what came.

    Raises:
        CanaryError: a step failed, or something else came back.
    """
    device, context = ctypes.c_int(), ctypes.c_void_p()
    first, second = ctypes.c_uint64(), ctypes.c_uint64()
    host = (ctypes.c_uint32 * _WORDS)()
    size = ctypes.c_size_t(ctypes.sizeof(host))
    steps = (
        ("cuInit", (0,)),
        ("cuDeviceGet", (ctypes.byref(device), 0)),
        ("cuDevicePrimaryCtxRetain", (ctypes.byref(context), device)),
        ("cuCtxSetCurrent", (context,)),
        ("cuMemAlloc_v2", (ctypes.byref(first), size)),
        ("cuMemAlloc_v2", (ctypes.byref(second), size)),
        ("cuMemsetD32_v2", (first, ctypes.c_uint(_VALUE), ctypes.c_size_t(_WORDS))),
        ("cuMemcpyDtoD_v2", (second, first, size)),
        ("cuMemcpyDtoH_v2", (host, second, size)),
        ("cuCtxSynchronize", ()),
    )
    for name, arguments in steps:
        code = getattr(driver, name)(*arguments)
        if code:
            raise CanaryError(name, code)
    if any(word != _VALUE for word in host):
        raise CanaryError("memory on the GPU came back with other values", 0)
