"""Answers readings of one GPU's state as JSON lines: `python bootstrap.py gpu_state UUID [LIBRARY]`.

One reading for each line on its input. A process of its own, for the driver's library must not be in one that
forks, and may hang. It only reads: no clock, limit or mode is ever set. Standard library only.
"""

import ctypes
import json
import sys
from collections.abc import Sequence

from stitch_tools.worker.cuda_driver import load_library

NVML_NAMES = (
    "libnvidia-ml.so.1",
    "/usr/local/nvidia/lib64/libnvidia-ml.so.1",
    "/usr/lib/wsl/lib/libnvidia-ml.so.1",
)
_OK = 0
_SM = 1  # nvmlClockType_t
REASONS = {
    0x2: "application_clocks",
    0x4: "power_cap",
    0x8: "hardware_slowdown",
    0x10: "sync_boost",
    0x20: "thermal",
    0x40: "hardware_thermal",
    0x80: "power_brake",
    0x100: "display_clocks",
}
"""nvmlClocksEventReasons; 0x1, an idle GPU, is none."""


class GpuState:
    """One GPU behind NVML; every reading that the driver refuses is None."""

    def __init__(self, library: ctypes.CDLL, uuid: str) -> None:
        """Find the device.

        Raises:
            OSError: NVML does not start, or knows no such device.
        """
        self._library = library
        self._device = ctypes.c_void_p()
        if library.nvmlInit_v2() != _OK:
            raise OSError("NVML does not start")
        if library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(self._device)) != _OK:
            raise OSError(f"NVML knows no {uuid}")

    def reading(self) -> dict[str, object]:
        """The state now, by the names of GpuConditions' units."""
        return {
            "sm_clock_mhz": self._number("nvmlDeviceGetClockInfo", _SM),
            "power_mw": self._number("nvmlDeviceGetPowerUsage"),
            "throttled": self._throttled(),
            "memory": self._memory(),
        }

    def _call(self, name: str, *arguments: object) -> int | None:
        """The status, None where this library has no such function."""
        function = getattr(self._library, name, None)
        return None if function is None else int(function(self._device, *arguments))

    def _number(self, name: str, *arguments: int) -> int | None:
        value = ctypes.c_uint()
        return value.value if self._call(name, *arguments, ctypes.byref(value)) == _OK else None

    def _memory(self) -> list[int] | None:
        """Bytes in all, and free ones."""
        sizes = (ctypes.c_ulonglong * 3)()  # nvmlMemory_t: total, free, used
        return list(sizes)[:2] if self._call("nvmlDeviceGetMemoryInfo", ctypes.byref(sizes)) == _OK else None

    def _throttled(self) -> list[str] | None:
        bits = ctypes.c_ulonglong()
        # The newer name came with driver 535.
        for name in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
            if self._call(name, ctypes.byref(bits)) == _OK:
                return [reason for bit, reason in REASONS.items() if bits.value & bit]
        return None


def main(words: Sequence[str]) -> int:
    """Answer each line with a reading until the input ends; `{"problem": text}` where nothing can be read."""
    try:
        library = load_library(words[1:] or NVML_NAMES)
        if library is None:
            raise OSError("no NVML (libnvidia-ml.so.1) is installed")
        device = GpuState(library, words[0])
    except (OSError, AttributeError) as error:
        print(json.dumps({"problem": str(error)}), flush=True)
        return 0
    for _ in sys.stdin:
        print(json.dumps(device.reading()), flush=True)
    return 0
