"""Which words of a stack can be return addresses: those that a call instruction ends at.

A stack holds data as well, and where libraries fill gigabytes much of it looks like an address of theirs: the
C library's futex operation over the low half of an old pointer does in every other process. x86-64, as the
sampler.
"""

import os
from pathlib import Path

import torch

_LONGEST = 7
_NEAR, _GROUP, _CALL = 0xE8, 0xFF, 2  # the opcodes, and what ModRM's middle field says for a call
_NEAR_BYTES = 5


class ReturnAddresses:
    """Tells them from data by the code before them, which is read once."""

    def __init__(self) -> None:
        self._known: dict[int, bool] = {}

    def among(self, words: torch.Tensor) -> torch.Tensor:
        """Whether each of these addresses of code, int64, lies behind a call; yes where none can be read."""
        if not len(words):
            return torch.zeros_like(words, dtype=torch.bool)
        different, places = words.unique(return_inverse=True)
        addresses: list[int] = different.tolist()
        self._read([address for address in addresses if address not in self._known])
        return torch.tensor([self._known[address] for address in addresses])[places]

    def _read(self, addresses: list[int]) -> None:
        self._known.update(dict.fromkeys(addresses, True))
        try:
            # A copy by the kernel: what was unmapped meanwhile is an error, and no crash.
            with Path("/proc/self/mem").open("rb", buffering=0) as memory:
                for address in addresses:
                    self._known[address] = _follows_call(memory.fileno(), address)
        except OSError:
            return


def _follows_call(memory: int, address: int) -> bool:
    try:
        return ends_with_call(os.pread(memory, _LONGEST, address - _LONGEST))
    except OSError:
        return False


def ends_with_call(code: bytes) -> bool:
    """Whether the last bytes of `code` are a near call: `call rel32`, or any form of `call r/m64`."""
    if len(code) >= _NEAR_BYTES and code[-_NEAR_BYTES] == _NEAR:
        return True
    return any(
        code[-size] == _GROUP and _call_bytes(code[1 - size :]) == size
        for size in range(2, min(_LONGEST, len(code)) + 1)
    )


def _call_bytes(operand: bytes) -> int:
    """Length of FF and its operand, ModRM first; 0 where it is no call."""
    mode, kind, base = operand[0] >> 6, operand[0] >> 3 & 7, operand[0] & 7
    if kind != _CALL:
        return 0
    if mode == 3:
        return 2
    scaled = base == 4
    if scaled and len(operand) > 1:
        base = operand[1] & 7
    return 2 + scaled + (1 if mode == 1 else 4 if mode == 2 or base == 5 else 0)
