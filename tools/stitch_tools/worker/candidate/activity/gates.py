"""Gates in front of the launches of the program's own binaries: each counts, and can be shut.

Every place in an own binary that calls a launch function (in the CUDA runtime that is linked into it, or in a
shared one through the loader's table) is led through a few bytes of generated code, which add one to a
counter and go on; shut, they answer "success" without launching anything. Libraries and PyTorch launch
through copies of their own and are not touched. No profiler is needed for that. A call reaches 2 GB: it goes
to a jump that lies near the program (near.py), and from there anywhere.
"""

import ctypes
import struct
from collections import Counter
from collections.abc import Iterator

from stitch_tools.worker.candidate.activity import objects
from stitch_tools.worker.candidate.activity.near import EXECUTE, READ, WRITE, Memory, rest_of_code
from stitch_tools.worker.candidate.activity.objects import Belongings, Mapping
from stitch_tools.worker.elf import SHT_SYMTAB, ElfFile, open_elf

_RUNTIME = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cudaLaunchCooperativeKernel", "cudaGraphLaunch")
_DRIVER = ("cuLaunchKernel", "cuLaunchKernelEx", "cuLaunchCooperativeKernel", "cuGraphLaunch")
LAUNCHES = frozenset((*_RUNTIME, *(f"{name}_ptsz" for name in _RUNTIME), *_DRIVER))
_OF_NVCC = frozenset(("__cudaLaunchKernel", "__cudaLaunchKernel_ptsz"))
"""What `<<<...>>>` calls since CUDA 13. Where the runtime is linked in, that jumps to the launch function
itself, which has its gate; of a shared runtime's this is all that the program's own binary names."""

_GATE_BYTES = 64
_FAR_JUMP = b"\xff\x25\x00\x00\x00\x00"  # jmp to the address that follows
_FAR_JUMP_BYTES = 16
_CALL, _JUMP = b"\xe8", b"\xe9"
_NEXT = 5  # a call with its 4-byte distance; the distance counts from its end


class Gates:
    """All gates of this process; `install` again after more of the program was loaded."""

    def __init__(self, belongings: Belongings, *, shut: bool, memory: Memory | None = None) -> None:
        self._belongings = belongings
        self._done: set[str] = set()
        # Per gate: how often it was passed, and whether it is shut.
        self._cells: list[tuple[str, ctypes.Array[ctypes.c_uint64]]] = []
        self._shut = shut
        self._memory = memory or Memory()
        self.sites = 0
        """Places that were led through a gate."""
        self.trouble = ""
        """Why launches of some own binary are not seen; empty where all are."""

    def install(self) -> None:
        """Put gates into own binaries that were loaded since. What hinders that is `trouble`."""
        for mapping in objects.own_files(objects.executable_mappings(), self._belongings):
            if mapping.path in self._done:
                continue
            self._done.add(mapping.path)
            try:
                elf = open_elf(mapping.path)
                slots, sites = self._find(elf, mapping)
                self._lead(elf, mapping, slots, sites)
            except (OSError, ValueError, IndexError, struct.error) as error:
                name = mapping.path.rpartition("/")[2]
                self.trouble = f"no gates in {name}: {type(error).__name__}: {error}"

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
        imports = elf.imports(LAUNCHES | _OF_NVCC)
        slots = [(name.removeprefix("__"), bias + place) for name, place in imports]
        functions = {
            bias + symbol.address: symbol.name
            for symbol in elf.symbols(SHT_SYMTAB)
            if symbol.is_function and symbol.name in LAUNCHES
        }
        sites = [(functions[to], at, to) for at, to in _calls(elf, bias, functions)] if functions else []
        return slots, sites

    def _lead(
        self,
        elf: ElfFile,
        mapping: Mapping,
        slots: list[tuple[str, int]],
        sites: list[tuple[str, int, int]],
    ) -> None:
        called = [(name, target) for name, _, target in sites]
        held = [(name, ctypes.c_uint64.from_address(slot).value) for name, slot in slots]
        targets = list(dict.fromkeys([*called, *held]))
        if not targets:
            return
        # All memory first: a binary has all of its gates or none.
        first = self._memory.anywhere(len(targets) * _GATE_BYTES)
        gates = {target: first + index * _GATE_BYTES for index, target in enumerate(targets)}
        jumps = self._near_jumps(elf, mapping, {target: gates[target] for target in called})
        for (name, target), gate in gates.items():
            ctypes.memmove(gate, self._gate(name, target), _GATE_BYTES)
        for (_, slot), target in zip(slots, held, strict=True):
            self._memory.protect(slot, 8, READ | WRITE)
            ctypes.c_uint64.from_address(slot).value = gates[target]
        for name, site, target in sites:
            distance = struct.pack("<i", jumps[name, target] - (site + _NEXT))
            self._write_code(site + 1, distance)
        self.sites += len(slots) + len(sites)

    def _near_jumps(
        self, elf: ElfFile, mapping: Mapping, gates: dict[tuple[str, int], int]
    ) -> dict[tuple[str, int], int]:
        """For each gate the address of a jump to it that the program's calls reach."""
        size = len(gates) * _FAR_JUMP_BYTES
        if not size:
            return {}
        first = self._memory.near(mapping.start, mapping.end, size) or rest_of_code(elf, mapping, size)
        if first is None:
            raise OSError("no memory near the program's code, and none left in its last page")
        jumps: dict[tuple[str, int], int] = {}
        for index, (target, gate) in enumerate(gates.items()):
            jumps[target] = first + index * _FAR_JUMP_BYTES
            self._write_code(jumps[target], _FAR_JUMP + struct.pack("<Q", gate))
        return jumps

    def _write_code(self, address: int, code: bytes) -> None:
        self._memory.protect(address, len(code), READ | WRITE | EXECUTE)
        ctypes.memmove(address, code, len(code))
        self._memory.protect(address, len(code), READ | EXECUTE)

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
