"""Gates in front of the launches of the program's own binaries: each counts, and can be shut.

Every place in an own binary that calls a launch function (in the CUDA runtime that is linked into it, or in a
shared one through the loader's table) is led through a few bytes of generated code, which add one to a
counter and go on; shut, they answer "success" without launching anything. Libraries and PyTorch launch
through copies of their own and are not touched. No profiler is needed for that.
"""

import ctypes
import struct
from collections import Counter
from collections.abc import Iterator

from stitch_tools.worker.candidate.activity import objects
from stitch_tools.worker.candidate.activity.objects import Belongings, Mapping
from stitch_tools.worker.elf import SHT_SYMTAB, ElfFile, open_elf

_RUNTIME = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cudaLaunchCooperativeKernel", "cudaGraphLaunch")
_DRIVER = ("cuLaunchKernel", "cuLaunchKernelEx", "cuLaunchCooperativeKernel", "cuGraphLaunch")
LAUNCHES = frozenset((*_RUNTIME, *(f"{name}_ptsz" for name in _RUNTIME), *_DRIVER))

_PAGE = 4096
_GATE_BYTES = 64
_READ, _WRITE, _EXECUTE = 1, 2, 4
_PRIVATE, _ANONYMOUS = 2, 32
_REACH = 1 << 31
_CALL, _JUMP = b"\xe8", b"\xe9"
_NEXT = 5  # a call with its 4-byte distance; the distance counts from its end


class Gates:
    """All gates of this process; `install` again after more of the program was loaded."""

    def __init__(self, belongings: Belongings, *, shut: bool) -> None:
        self._belongings = belongings
        self._done: set[str] = set()
        # Per gate: how often it was passed, and whether it is shut.
        self._cells: list[tuple[str, ctypes.Array[ctypes.c_uint64]]] = []
        self._shut = shut
        self._memory = ctypes.CDLL(None, use_errno=True)
        self._memory.mmap.restype = ctypes.c_void_p
        self._memory.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        self._memory.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        self.sites = 0
        """Places that were led through a gate."""

    def install(self) -> None:
        """Put gates into own binaries that were loaded since.

        Raises:
            OSError: memory could not be made writable.
        """
        for mapping in objects.own_files(objects.executable_mappings(), self._belongings):
            if mapping.path in self._done:
                continue
            self._done.add(mapping.path)
            try:
                elf = open_elf(mapping.path)
                slots, sites = self._find(elf, mapping)
            except (OSError, ValueError, IndexError, struct.error):
                continue  # its file is gone or odd: nothing to lead through
            self._lead(mapping, slots, sites)

    def counts(self) -> Counter[str]:
        """Passages so far by launch function."""
        found: Counter[str] = Counter()
        for name, cell in self._cells:
            found[name] += cell[0]
        return found

    def _find(
        self, elf: ElfFile, mapping: Mapping
    ) -> tuple[list[tuple[str, int]], list[tuple[str, int, int]]]:
        """Loader slots (name, address), and call sites (name, address, target)."""
        bias = mapping.base - elf.shift(mapping.offset)
        slots = [(name, bias + place) for name, place in elf.imports(LAUNCHES)]
        functions = {
            bias + symbol.address: symbol.name
            for symbol in elf.symbols(SHT_SYMTAB)
            if symbol.is_function and symbol.name in LAUNCHES
        }
        sites = [(functions[to], at, to) for at, to in _calls(elf, bias, functions)] if functions else []
        return slots, sites

    def _lead(
        self, mapping: Mapping, slots: list[tuple[str, int]], sites: list[tuple[str, int, int]]
    ) -> None:
        targets: dict[tuple[str, int], int] = {}
        for name, slot in slots:
            targets[name, ctypes.c_uint64.from_address(slot).value] = 0
        for name, _, target in sites:
            targets[name, target] = 0
        if not targets:
            return
        page = self._page_near(mapping.start, len(targets) * _GATE_BYTES)
        for index, (name, target) in enumerate(targets):
            gate = page + index * _GATE_BYTES
            ctypes.memmove(gate, self._gate(name, target), _GATE_BYTES)
            targets[name, target] = gate
        for name, slot in slots:
            cell = ctypes.c_uint64.from_address(slot)
            gate = targets[name, cell.value]
            self._protect(slot, 8, _READ | _WRITE)
            cell.value = gate
        for name, site, target in sites:
            self._protect(site, _NEXT, _READ | _WRITE | _EXECUTE)
            ctypes.c_int32.from_address(site + 1).value = targets[name, target] - (site + _NEXT)
            self._protect(site, _NEXT, _READ | _EXECUTE)
        self.sites += len(slots) + len(sites)

    def _gate(self, name: str, target: int) -> bytes:
        cell = (ctypes.c_uint64 * 2)(0, int(self._shut))
        self._cells.append((name, cell))
        # r11 belongs to nobody across a call. The arguments stay where they are.
        code = b"\x49\xbb" + struct.pack("<Q", ctypes.addressof(cell))  # mov r11, cell
        code += b"\xf0\x49\xff\x03"  # lock inc qword [r11]
        code += b"\x41\x80\x7b\x08\x00"  # cmp byte [r11 + 8], 0
        code += b"\x75\x0d"  # jne past the jump
        code += b"\x49\xbb" + struct.pack("<Q", target) + b"\x41\xff\xe3"  # mov r11, target; jmp r11
        code += b"\x31\xc0\xc3"  # xor eax, eax; ret
        return code.ljust(_GATE_BYTES, b"\xcc")

    def _page_near(self, address: int, size: int) -> int:
        """New executable memory that a 4-byte distance reaches from `address`."""
        size = -(-size // _PAGE) * _PAGE
        flags = _PRIVATE | _ANONYMOUS
        for distance in range(1 << 20, _REACH - (64 << 20), 8 << 20):
            hint = (address - distance) // _PAGE * _PAGE
            found = self._memory.mmap(hint, size, _READ | _WRITE | _EXECUTE, flags, -1, 0)
            if found and abs(found - address) < _REACH - (64 << 20):
                return int(found)
        raise OSError("no memory near the program's code")

    def _protect(self, address: int, size: int, how: int) -> None:
        first = address // _PAGE * _PAGE
        if self._memory.mprotect(first, address + size - first, how):
            raise OSError(ctypes.get_errno(), "the program's code could not be made writable")


def _calls(elf: ElfFile, bias: int, functions: dict[int, str]) -> Iterator[tuple[int, int]]:
    """Address and target of each call or jump to one of the functions."""
    for section in elf.sections:
        if not section.executable:
            continue
        code = bytes(elf.data[section.offset : section.offset + section.size])
        start = bias + section.address
        for opcode in (_CALL, _JUMP):
            at = code.find(opcode)
            while 0 <= at <= len(code) - _NEXT:
                (distance,) = struct.unpack_from("<i", code, at + 1)
                target = start + at + _NEXT + distance
                if target in functions:
                    yield start + at, target
                at = code.find(opcode, at + 1)
