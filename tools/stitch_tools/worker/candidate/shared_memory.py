"""Spoils the shared memory of a GPU before a call, so that what a kernel never wrote there is not zero.

No tool that everyone has looks at reads of shared memory that nobody wrote, and a device on which no other
kernel used it holds zeros: a program that takes it to be zero is right until the day that it is not alone.
"""

import ctypes

from stitch_tools.worker.cuda_driver import CudaDriver, DriverError
from stitch_tools.worker.plain_calls import wait_for_device

KERNEL = b"stitch_spoil_shared"
PTX = b"""
.version 6.3
.target sm_70
.address_size 64

.extern .shared .align 16 .b8 memory[];

// Every word of the block's dynamic shared memory becomes NaN, -1 in integers. Then the block stays for a
// while: else one multiprocessor would take two blocks after each other, and another one none.
.visible .entry stitch_spoil_shared(.param .u32 words, .param .u64 cycles)
{
  .reg .pred %p<3>;
  .reg .b32 %r<6>;
  .reg .b64 %rd<5>;

  ld.param.u32 %r1, [words];
  ld.param.u64 %rd1, [cycles];
  mov.u32 %r2, %tid.x;
  mov.u32 %r3, %ntid.x;
  mov.u32 %r4, memory;
fill:
  setp.ge.u32 %p1, %r2, %r1;
  @%p1 bra filled;
  mad.lo.u32 %r5, %r2, 4, %r4;
  st.volatile.shared.u32 [%r5], 0xFFFFFFFF;
  add.u32 %r2, %r2, %r3;
  bra fill;
filled:
  bar.sync 0;
  mov.u64 %rd2, %clock64;
stay:
  mov.u64 %rd3, %clock64;
  sub.u64 %rd4, %rd3, %rd2;
  setp.lt.u64 %p2, %rd4, %rd1;
  @%p2 bra stay;
  ret;
}
"""
_CYCLES = 40_000
_THREADS = 64
_MOST_BLOCKS = 32  # of one multiprocessor
_RESERVED = 1 << 10  # of each block, by the system
# Bytes a block, None: the most that one may have. How much of a multiprocessor's memory is shared depends on
# the kernel, so that blocks of several sizes are needed; the last ones leave it as small kernels use it.
_SIZES = (None, 48 << 10, 16 << 10, 4 << 10, 1 << 10)
_MULTIPROCESSORS, _SHARED_OF_MULTIPROCESSOR, _SHARED_OF_BLOCK = 16, 81, 97  # of CUdevice_attribute
_DYNAMIC_SHARED = 8  # of CUfunction_attribute


class SharedMemory:
    """The shared memory of the current device. Make it before the program is loaded; it binds the driver."""

    def __init__(self) -> None:
        self.reason = ""
        """Why it could not be spoiled; "" where it was, or was not tried yet."""
        self._function = ctypes.c_void_p()
        self._attributes: dict[int, int] = {}
        self._driver: CudaDriver | None = None
        try:
            self._driver = CudaDriver()
        except DriverError as error:
            self.reason = str(error)

    def spoil(self, stream: int) -> None:
        """Fill what can be reached with NaN patterns, in order on `stream`; `reason` says why where not."""
        driver = self._driver
        if driver is None or self.reason:
            return
        try:
            if not self._function:
                self._load(driver)
            self._fill_all(driver, stream)
            # Streams of the program's own do not wait for this one.
            wait_for_device()
            # Another process' kernels may have come in while the device was idle; behind work that is still
            # queued they come in only between time slices.
            self._fill_all(driver, stream)
        except DriverError as error:
            # After a fault of the program's every call fails; its own next one says so better.
            self.reason = str(error)

    def _load(self, driver: CudaDriver) -> None:
        module, device = ctypes.c_void_p(), ctypes.c_int()
        driver.call("cuCtxGetDevice", ctypes.byref(device))
        for name in (_MULTIPROCESSORS, _SHARED_OF_MULTIPROCESSOR, _SHARED_OF_BLOCK):
            value = ctypes.c_int()
            driver.call("cuDeviceGetAttribute", ctypes.byref(value), ctypes.c_int(name), device)
            self._attributes[name] = value.value
        driver.call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(PTX))
        function = ctypes.c_void_p()
        driver.call("cuModuleGetFunction", ctypes.byref(function), module, ctypes.c_char_p(KERNEL))
        most = ctypes.c_int(self._attributes[_SHARED_OF_BLOCK])
        driver.call("cuFuncSetAttribute", function, ctypes.c_int(_DYNAMIC_SHARED), most)
        self._function = function

    def _fill_all(self, driver: CudaDriver, stream: int) -> None:
        for size in _SIZES:
            self._fill(driver, size or self._attributes[_SHARED_OF_BLOCK], stream)

    def _fill(self, driver: CudaDriver, size: int, stream: int) -> None:
        room = self._attributes[_SHARED_OF_MULTIPROCESSOR] // (size + _RESERVED)
        blocks = self._attributes[_MULTIPROCESSORS] * max(1, min(room, _MOST_BLOCKS))
        words, cycles = ctypes.c_uint32(size // 4), ctypes.c_uint64(_CYCLES)
        arguments = (ctypes.c_void_p * 2)(ctypes.addressof(words), ctypes.addressof(cycles))
        shape = [ctypes.c_uint(value) for value in (blocks, 1, 1, _THREADS, 1, 1, size)]
        driver.call(
            "cuLaunchKernel", self._function, *shape, ctypes.c_void_p(stream), arguments, ctypes.c_void_p()
        )
