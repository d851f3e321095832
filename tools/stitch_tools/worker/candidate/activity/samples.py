"""Sampled stacks, attributed by caller: each sample is somebody's work, or nobody's.

A sample is a program counter and the stack above it. Code of the program's own binary is its own work. Code
of a library, of the C library, or generated code belongs to whoever called it: the innermost return address
on the stack that lies in the program, in PyTorch or in a library decides. Generated code that walks through
its data with the stack pointer has no caller. Under PyTorch the ATen operator
that was called is named, not those that it calls; what only makes or views tensors is no work.
"""

import ctypes
import mmap
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch

from stitch_tools.protocol import memory
from stitch_tools.worker.candidate.activity import objects
from stitch_tools.worker.candidate.activity.calls import ReturnAddresses
from stitch_tools.worker.candidate.activity.objects import Belongings, Mapping
from stitch_tools.worker.elf import SHT_DYNSYM, SHT_SYMTAB, ElfFile, open_elf
from stitch_tools.worker.threads import one_thread

SLOT_BYTES = 32 << 10
SLOTS = 2048
_SLOT_WORDS = SLOT_BYTES // 8
_HEADER_WORDS = 3
_CHUNK = 128
_GENERATED = "generated code"
# ATen's dispatched entry points, and what can be called past them: device functions, kernels, C functions.
_PREFIXES = (
    b"_ZN2at4_ops",
    b"_ZN2at3cpu",
    b"_ZN2at4cuda",
    b"_ZN2at6native",
    b"aoti_torch_cp",
    b"aoti_torch_cu",
)
_PREFIX_BYTES = max(map(len, _PREFIXES))
_UNREAD = -2
_OPERATOR = re.compile(r"_ZN2at(4_ops|3cpu|4cuda|6native)(\d+)(\w+)|aoti_torch_(?:cpu|cuda)_(\w+)")
DIRECTLY = " (past the dispatcher)"

# They move no data: memory, shapes and types only. (One string: thirty quotes would hide the names.)
_FREE = frozenset(
    """empty empty_strided empty_like view _unsafe_view reshape as_strided alias detach t transpose permute
    expand squeeze unsqueeze select slice narrow split unbind chunk lift_fresh resize_ set_ is_same_size
    _local_scalar_dense item""".split()  # noqa: SIM905
)

Work = tuple[str, str]
"""Owner (own, library, pytorch, copy, other) and name."""


class Sampler:
    """The C sampler. Load it before the program: its library then resolves nothing of the program's."""

    def __init__(self, library: str, period_us: int = 500) -> None:
        self._library: Any = ctypes.CDLL(library)
        words = [ctypes.c_uint64, ctypes.c_uint64]
        self._library.stitch_sampler_start.argtypes = [ctypes.c_int32, *words, ctypes.c_uint32]
        self._library.stitch_sampler_waits.argtypes = words
        for name in ("count", "waiting", "unfollowed"):
            getattr(self._library, f"stitch_sampler_{name}").restype = ctypes.c_uint64
        self.repeat: Any = self._library.stitch_sampler_repeat
        """A C loop over (stitch_forward, handle, arguments, calls), whose status it gives."""
        self.repeat.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64]
        self._fd = memory.create(SLOTS * SLOT_BYTES, "samples")
        self._memory = mmap.mmap(self._fd, SLOTS * SLOT_BYTES, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        self._words = memoryview(self._memory).cast("Q")
        self.period_us = period_us
        """Time between two looks at the threads, from the next start on."""
        self._waits: set[int] = set()

    @property
    def count(self) -> int:
        """Samples that were kept."""
        return int(self._library.stitch_sampler_count())

    @property
    def waiting(self) -> int:
        """Samples of threads that waited for others; not kept."""
        return int(self._library.stitch_sampler_waiting())

    @property
    def unfollowed(self) -> int:
        """How often a thread ran that was made too late to be sampled."""
        return int(self._library.stitch_sampler_unfollowed())

    def start(self) -> None:
        """Begin to sample every running thread of this process; best while they wait.

        Raises:
            OSError: the thread could not be made.
        """
        for mapping in objects.executable_mappings():
            if objects.is_waiting(mapping.path) and mapping.start not in self._waits:
                self._waits.add(mapping.start)
                self._library.stitch_sampler_waits(mapping.start, mapping.end)
        status = self._library.stitch_sampler_start(self._fd, SLOT_BYTES, SLOTS, self.period_us)
        if status:
            raise OSError(status, "the sampler did not start")

    def stop(self) -> None:
        """End it."""
        self._library.stitch_sampler_stop()

    def read(self) -> torch.Tensor:
        """The samples as rows of 8-byte words: program counter, on_stack, bytes of stack, stack.

        `on_stack` is 0 where the stack pointer pointed elsewhere: then what follows may be data.
        """
        return torch.frombuffer(self._memory, dtype=torch.int64).view(SLOTS, -1)[: self.count]

    def plain(self, first: int, last: int) -> Iterator[tuple[bool, int, memoryview]]:
        """on_stack, program counter and stack of the samples [first, last); no operation of PyTorch's."""
        for start in range(first * _SLOT_WORDS, last * _SLOT_WORDS, _SLOT_WORDS):
            counter, on_stack, nbytes, *_ = self._words[start : start + _HEADER_WORDS]
            stack = start + _HEADER_WORDS
            words = self._words[stack : stack + min(nbytes // 8, _SLOT_WORDS - _HEADER_WORDS)]
            yield bool(on_stack), counter, words


@dataclass(frozen=True)
class _Functions:
    """Sorted ranges of functions with their names."""

    starts: torch.Tensor
    ends: torch.Tensor
    names: list[str]

    def find(self, words: torch.Tensor) -> torch.Tensor:
        """Index of the function that holds each address, -1 for none."""
        if not self.names:
            return torch.full_like(words, -1)
        index = torch.searchsorted(self.starts, words, right=True) - 1
        inside = (index >= 0) & (words < self.ends[index.clamp(min=0)])
        return torch.where(inside, index, -1)


class _EntryPoints:
    """The entry points of ATen's operators. Of some 100,000 functions only those that are met get named."""

    def __init__(self, libraries: Sequence[tuple[ElfFile, int]]) -> None:
        """Each library with what its linked addresses are moved by."""
        self.names: list[str] = []
        self._libraries = libraries

    @cached_property
    def _tables(self) -> list["_ExportedFunctions"]:
        # To read and sort 100,000 functions takes longer than all else; a stack without PyTorch needs none.
        return [_ExportedFunctions(elf, bias) for elf, bias in self._libraries]

    def find(self, words: torch.Tensor) -> torch.Tensor:
        """Index into `names` of the operator that holds each address, -1 for none."""
        found = torch.full_like(words, -1)
        for table in self._tables if len(words) else ():
            functions = table.find(words)
            inside = functions >= 0
            met = functions[inside]
            for function in met[table.operators[met] == _UNREAD].unique().tolist():
                table.operators[function] = self._index(table.operator_name(function))
            found = torch.where(inside, table.operators[functions.clamp(min=0)], found)
        return found

    def _index(self, name: str | None) -> int:
        if name is None:
            return -1
        self.names.append(name)
        return len(self.names) - 1


class _ExportedFunctions:
    """A library's exported functions by address, and what is known of each."""

    def __init__(self, elf: ElfFile, bias: int) -> None:
        """Linked addresses are moved by `bias`."""
        self._elf = elf
        table = next(section for section in elf.sections if section.kind == SHT_DYNSYM)
        self._names_at = elf.sections[table.link].offset
        raw = bytearray(elf.data[table.offset : table.offset + table.size])
        halves = torch.frombuffer(raw, dtype=torch.int32).view(-1, 6)
        wholes = torch.frombuffer(raw, dtype=torch.int64).view(-1, 3)
        is_function = halves[:, 1].bitwise_and(15).eq(2) & halves[:, 1].bitwise_right_shift(16).ne(0)
        places = wholes[is_function, 1:]
        self._starts, order = (places[:, 0] + bias).sort(stable=True)
        self._ends = self._starts + places[order, 1]
        self._text = halves[is_function, 0][order]
        self.operators = torch.full_like(self._starts, _UNREAD)
        """Index of a function's operator by its number here, -1 where it is none's."""

    def find(self, words: torch.Tensor) -> torch.Tensor:
        """Number of the function that holds each address, -1 for none."""
        if not len(self._starts):
            return torch.full_like(words, -1)
        index = torch.searchsorted(self._starts, words, right=True) - 1
        inside = (index >= 0) & (words < self._ends[index.clamp(min=0)])
        return torch.where(inside, index, -1)

    def operator_name(self, function: int) -> str | None:
        """The operator that a function is, by any of the names that it has; None where it is none."""
        start = int(self._starts[function])
        while function >= 0 and int(self._starts[function]) == start:
            at = self._names_at + int(self._text[function])
            if self._elf.data[at : at + _PREFIX_BYTES].startswith(_PREFIXES):
                name = _operator_name(self._elf.text(at))
                if name is not None:
                    return name
            function -= 1
        return None


class Attribution:
    """Counts samples by owner and name."""

    @one_thread()
    def __init__(self, belongings: Belongings) -> None:
        self._mappings = objects.executable_mappings()
        self._owner_list = [objects.owner_of(mapping.path, belongings) for mapping in self._mappings]
        self._owners = torch.tensor(self._owner_list, dtype=torch.int64)
        self._places = _Functions(
            torch.tensor([mapping.start for mapping in self._mappings]),
            torch.tensor([mapping.end for mapping in self._mappings]),
            [mapping.path.rpartition("/")[2] for mapping in self._mappings],
        )
        self._returns = ReturnAddresses()
        self._operators = _operators(self._mappings)
        self._own = _own_functions(self._mappings, belongings)
        self._pool_works_for = ""

    @one_thread()
    def count(self, samples: torch.Tensor) -> Counter[Work]:
        """Samples by owner and name.

        Those of a library whose caller is not on their stack (its worker threads) go where that library's
        other samples went. Generated code may use its stack pointer for data; it then goes with the libraries
        or with PyTorch, whichever did more.
        """
        found: Counter[Work] = Counter()
        callerless: Counter[str] = Counter()
        for first in range(0, len(samples), _CHUNK):
            self._count_chunk(samples[first : first + _CHUNK], found, callerless)
        generated = callerless.pop(_GENERATED, 0)
        for name, number in callerless.items():
            as_torch, as_library = found["pytorch", name], found["library", name]
            found["pytorch" if as_torch > as_library else "library", name] += number
        owners: Counter[str] = Counter()
        for (owner, _), number in found.items():
            owners[owner] += number
        makers = [owner for owner in ("library", "pytorch") if owners[owner]] or ["own"]
        found[max(makers, key=lambda owner: owners[owner]), _GENERATED] += generated
        return +found

    def _count_chunk(self, chunk: torch.Tensor, found: Counter[Work], callerless: Counter[str]) -> None:
        # The program counter is the innermost address; what was not copied of a stack counts as nothing.
        held = chunk[:, 2:3] // 8 + 1
        words = torch.cat([chunk[:, :1], chunk[:, _HEADER_WORDS : _HEADER_WORDS + int(held.max())]], dim=1)
        words = torch.where(torch.arange(words.shape[1]) < held, words, 0)
        places, owners, operators = self._identify(words)
        for row in range(len(chunk)):
            if int(owners[row, 0]) == objects.UNNAMED and not chunk[row, 1]:
                callerless[_GENERATED] += 1
                continue
            work = self._judge(words[row], places[row], owners[row], operators[row])
            if work[0] == "callerless":
                callerless[work[1]] += 1
            else:
                found[work] += 1

    def _identify(self, words: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Mapping, owner and operator of each word; most are no address of code, and cost next to nothing."""
        flat = words.flatten()
        at = ((flat >= self._places.starts[0]) & (flat < self._places.ends[-1])).nonzero().flatten()
        found = self._places.find(flat[at])
        at, found = at[found >= 0], found[found >= 0]
        # Each row begins with the program counter; what follows is a stack, with return addresses and data.
        returns = at % words.shape[1] == 0
        returns[~returns] = self._returns.among(flat[at[~returns]])
        at, found = at[returns], found[returns]
        places, operators = torch.full_like(flat, -1), torch.full_like(flat, -1)
        owners = torch.full_like(flat, objects.NOBODY)
        places[at], owners[at] = found, self._owners[found]
        in_torch = at[self._owners[found] == objects.TORCH]
        operators[in_torch] = self._operators.find(flat[in_torch])
        return places.view_as(words), owners.view_as(words), operators.view_as(words)

    def _judge(
        self, words: torch.Tensor, places: torch.Tensor, owners: torch.Tensor, operators: torch.Tensor
    ) -> Work:
        leaf = int(owners[0])
        owner, at = leaf, 0
        if leaf in (objects.LIBC, objects.HELPER, objects.UNNAMED):
            at = _first(owners, objects.NAMED)
            owner = int(owners[at]) if at >= 0 else objects.NOBODY
            if at < 0 and leaf == objects.UNNAMED:
                return "callerless", _GENERATED
        # Between bridge and leaf was code of the program's that ended in a jump.
        if owner == objects.OWN or (owner == objects.BRIDGE and leaf != owner):
            return ("copy", "C library") if leaf == objects.LIBC else ("own", self._own_name(words[at]))
        if owner == objects.TORCH:
            return self._torch_work(places[at], owners, operators)
        if owner == objects.LIBRARY:
            return library_caller(owners, operators), self._places.names[int(places[at])]
        return "other", "interpreter and the rest"

    def _own_name(self, address: torch.Tensor) -> str:
        index = int(self._own.find(address.view(1))[0])
        if index >= 0:
            return self._own.names[index]
        place = int(self._places.find(address.view(1))[0])
        return self._places.names[place] if place >= 0 else _GENERATED

    def _torch_work(self, place: torch.Tensor, owners: torch.Tensor, operators: torch.Tensor) -> Work:
        """The outermost operator that computes.

        Those inside it may have left their addresses in room that it does not use (oneDNN takes much), so the
        innermost one may have ended long ago. A thread of PyTorch's pool has no caller on its stack: what the
        sample before it was in is what the pool works for.
        """
        names = [self._operators.names[index] for index in operators[operators >= 0].tolist()]
        computing = [name for name in names if name.removesuffix(DIRECTLY) not in _free_operators()]
        # Dispatched operators call functions that could be called directly, too.
        dispatched = [name for name in computing if not name.endswith(DIRECTLY)]
        has_caller = _first(owners, objects.CALLERS) >= 0
        if dispatched or (computing and has_caller):
            self._pool_works_for = f"aten::{(dispatched or computing)[-1]}"
            return "pytorch", self._pool_works_for
        library = self._places.names[int(place)]
        made = has_caller and _is_called_below(operators >= 0, owners)
        if not computing and (made or library.startswith(("libtorch_python", "libc10"))):
            return "other", "tensors made and viewed"
        return "pytorch", self._pool_works_for or library


def _is_called_below(operators: torch.Tensor, owners: torch.Tensor) -> bool:
    """Whether an operator runs inside of the program's innermost frame; above it anything may lie."""
    operator, own = _first_true(operators), _first(owners, (objects.OWN,))
    return operator >= 0 and (own < 0 or operator < own)


def library_caller(owners: torch.Tensor, operators: torch.Tensor) -> str:
    """Who called a library, from a stack's owners and operators: library, pytorch, or callerless.

    PyTorch did only where one of its operators is on the stack. A thread of the pool that PyTorch and the
    program share has no caller there, and what earlier work left in unused room must not look like one.
    """
    caller = _first(owners, objects.CALLERS)
    operator = _first_true(operators >= 0)
    if operator >= 0 and (caller < 0 or operator < caller):
        return "pytorch"
    return "callerless" if caller < 0 else "library"


def _first(owners: torch.Tensor, wanted: Sequence[int]) -> int:
    return _first_true(torch.isin(owners, torch.tensor(wanted)))


def _first_true(mask: torch.Tensor) -> int:
    hits = mask.nonzero()
    return int(hits[0, 0]) if len(hits) else -1


def _operators(mappings: Sequence[Mapping]) -> _EntryPoints:
    """The exported entry points of ATen's operators, those past the dispatcher marked."""
    found: list[tuple[ElfFile, int]] = []
    for library in ("/libtorch_cpu.so", "/libtorch_cuda.so"):
        mapping = next((row for row in mappings if row.path.endswith(library)), None)
        if mapping is not None:
            elf = open_elf(mapping.path)
            found.append((elf, mapping.base - elf.shift(mapping.offset)))
    return _EntryPoints(found)


def _operator_name(symbol: str) -> str | None:
    """The operator behind a symbol, None where it is none (at::cuda::getCurrentCUDABlasHandle, ...)."""
    match = _OPERATOR.match(symbol)
    if match is None:
        return None
    if match[4] is not None:
        return match[4] + DIRECTLY
    name = match[3][: int(match[2])]
    if match[1] == "4_ops":
        return name
    base = name.removesuffix("_outf").removesuffix("_out")
    return name + DIRECTLY if hasattr(torch.ops.aten, base) else None


def _own_functions(mappings: Sequence[Mapping], belongings: Belongings) -> _Functions:
    found: list[tuple[int, int, str]] = []
    for mapping in objects.own_files(mappings, belongings):
        try:
            elf = open_elf(mapping.path)
            base = mapping.base - elf.shift(mapping.offset)
            kind = SHT_SYMTAB if any(row.kind == SHT_SYMTAB for row in elf.sections) else SHT_DYNSYM
            found += [
                (base + symbol.address, base + symbol.address + symbol.size, demangle(symbol.name))
                for symbol in elf.symbols(kind)
                if symbol.is_function and symbol.size
            ]
        except (OSError, ValueError, IndexError):
            # Its file is gone or odd: the samples are named by the file then.
            continue
    return _functions(found)


def _functions(rows: list[tuple[int, int, str]]) -> _Functions:
    rows = sorted(rows)
    starts = torch.tensor([row[0] for row in rows], dtype=torch.int64)
    ends = torch.tensor([row[1] for row in rows], dtype=torch.int64)
    return _Functions(starts, ends, [row[2] for row in rows])


@cache
def _free_operators() -> frozenset[str]:
    names: set[str] = set()
    for base in _FREE:
        packet = getattr(torch.ops.aten, base, None)
        overloads = packet.overloads() if packet is not None else []
        names.update(base if overload == "default" else f"{base}_{overload}" for overload in overloads)
        names.add(base)
    return frozenset(names)


def demangle(symbol: str) -> str:
    """The readable name of a C++ symbol, or the symbol."""
    if not symbol.startswith("_Z"):
        return symbol
    function = _demangler()
    if function is None:
        return symbol
    status = ctypes.c_int()
    text = function(symbol.encode("utf-8"), None, None, ctypes.byref(status))
    if not text or status.value:
        return symbol
    name = ctypes.string_at(text).decode("utf-8", "replace")
    ctypes.CDLL(None).free(ctypes.c_void_p(text))
    return name


@cache
def _demangler() -> Any:
    try:
        function = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
    except (OSError, AttributeError):
        return None
    function.restype = ctypes.c_void_p
    return function
