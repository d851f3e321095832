"""Traced kernels, attributed by caller: the program's own, a library's, PyTorch's, or a copy.

The profiler (kineto over CUPTI) says of each kernel inside which ATen operator it was launched, if in any;
the program's binary says which kernels it defines. A kernel that the program defines is its own. Any other
that an ATen operator launched is PyTorch's; the rest were launched by the program through a library. Kernels
of a CUDA graph carry no operator of their own: they are joined, in the order of the graph's nodes, to the
launches that were seen when the graph was captured.
"""

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from stitch_tools.protocol.messages_candidate import TracedOwner
from stitch_tools.worker.candidate.activity.objects import own_files
from stitch_tools.worker.candidate.activity.profiler_records import (
    MARK,
    ProfilerEvent,
    is_on_host,
    is_operator,
    is_pytorch,
    kind_of,
    metadata_of,
)
from stitch_tools.worker.elf import SHT_SYMTAB, open_elf

Work = tuple[TracedOwner, str]
"""Owner (own, library, pytorch, copy) and name."""

_STUB = "__device_stub_"
_STUB_NAME = re.compile(r"(\d+)__device_stub_(\w+)")
_ATTRIBUTE = re.compile(r"__\w+__\s*(\([^()]*\))?")
_FUNCTION = re.compile(r"(\w+)\s*\(")
_DECLARATION_CHARS = 400
_TRITON_KERNEL = re.compile(r"@triton\.(?:jit|autotune)[^\n]*\n(?:@[^\n]*\n)*\s*def\s+(\w+)")
_SOURCES = (".py", ".cu", ".cuh", ".cpp", ".h", ".hpp", ".ptx")
_LAUNCH = re.compile(r"(cuda|cu)(Launch(Cooperative)?Kernel|Mem(cpy|set))")
_GRAPH_LAUNCH = re.compile(r"(cuda|cu)GraphLaunch")
_ANY_LAUNCH = re.compile(r"(cuda|cu)(LaunchKernel|LaunchCooperativeKernel|GraphLaunch)")
_BEGIN = ("cudaStreamBeginCapture", "cuStreamBeginCapture")
_END = ("cudaStreamEndCapture", "cuStreamEndCapture")
_SYNCHRONISATION = re.compile(r"(Context|Stream|Event) (Sync|Wait)")
_GRAPH_NODE = re.compile(r'"graph node id": *"?(\d{1,18})')
_MAX_SOURCE_BYTES = 4 << 20


@dataclass(frozen=True)
class Launched:
    """One kernel, copy or fill that ran on the device."""

    name: str
    start_ns: int
    duration_ns: int
    operator: str | None
    """The innermost operator that it was launched in, None outside of any."""
    correlation: int
    node: int | None
    """Its node in a CUDA graph, where the profiler says so."""


@dataclass(frozen=True)
class RuntimeCall:
    """One call into the CUDA runtime or driver."""

    name: str
    start_ns: int
    duration_ns: int
    operator: str | None
    """The operator around it."""


@dataclass
class Trace:
    """What one profile holds, in our words."""

    launched: list[Launched] = field(default_factory=list[Launched])
    runtime: dict[int, RuntimeCall] = field(default_factory=dict[int, RuntimeCall])
    """By correlation id."""
    blocks: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    """Start and end of each marked block, in nanoseconds."""


@dataclass(frozen=True)
class OwnKernels:
    """Kernels that the program defines."""

    names: frozenset[str]
    """As the profiler would write them, from the symbols of its binaries."""
    identifiers: frozenset[str]
    """Names alone, from sources that are compiled at run time."""

    def define(self, name: str) -> bool:
        """Whether a traced kernel is one of them."""
        return name in self.names or identifier_of(name) in self.identifiers


def identifier_of(name: str) -> str:
    """The last name in a kernel's signature, without return type, namespaces, template or parameters."""
    bare = name.replace("(anonymous namespace)::", "").partition("(")[0].partition("<")[0].strip()
    return bare.rpartition("::")[2].rpartition(" ")[2]


def own_kernels(own: Sequence[str], source_folder: str | None) -> OwnKernels:
    """The kernels that the loaded own binaries define; of a `ModelNew` also those in its sources.

    `own` are the program's files and folders.
    """
    names: set[str] = set()
    for path in own_files(own):
        try:
            symbols = [symbol.name for symbol in open_elf(path).symbols(SHT_SYMTAB)]
        except (OSError, ValueError, IndexError):
            continue
        names |= stub_kernels(symbols)
    return OwnKernels(frozenset(names), _source_kernels(source_folder) if source_folder else frozenset())


def stub_kernels(symbols: Iterable[str]) -> set[str]:
    """Kernels as the profiler names them, from the host stubs that nvcc makes for each.

    A stub's name holds the kernel's symbol behind its length: `_ZL23__device_stub__Z4statPfPf`.
    """
    result: set[str] = set()
    for symbol in symbols:
        match = _STUB_NAME.search(symbol)
        if match is None:
            continue
        mangled = match[2][: int(match[1]) - len(_STUB)]
        name: str = torch._C._demangle(mangled)  # pyright: ignore[reportPrivateUsage]
        result.add(name)
        if "<" not in name and "::" not in name:
            result.add(name.partition("(")[0])  # extern "C": the device's symbol is the name alone
    return result


def _source_kernels(folder: str) -> frozenset[str]:
    result: set[str] = set()
    for path in sorted(Path(folder).rglob("*")):
        # Compiled at run time (nvrtc, Triton), a kernel is in no binary's symbols.
        if path.suffix in _SOURCES and path.is_file() and path.stat().st_size <= _MAX_SOURCE_BYTES:
            text = path.read_text(encoding="utf-8", errors="replace")
            result.update(declared_kernels(text))
    return frozenset(result)


def declared_kernels(source: str) -> set[str]:
    """Names of the kernels that a source file, or a string in it, declares."""
    result = set(_TRITON_KERNEL.findall(source))
    for declaration in source.split("__global__")[1:]:
        match = _FUNCTION.search(_ATTRIBUTE.sub("", declaration[:_DECLARATION_CHARS]))
        if match is not None:
            result.add(match[1])
    return result


def read_trace(events: Iterable[ProfilerEvent]) -> Trace:
    """The events of a profile, with operators by name."""
    rows = list(events)
    operators = {event.correlation_id(): event.name() for event in rows if is_operator(event)}
    trace = Trace()
    for event in rows:
        name, start, duration = event.name(), event.start_ns(), event.duration_ns()
        on_host = is_on_host(event)
        if name.startswith(MARK):
            if on_host:
                trace.blocks[name] = (start, start + duration)
            continue
        operator = operators.get(event.linked_correlation_id())
        correlation = event.correlation_id()
        if on_host:
            if not is_operator(event) and name.startswith("cu"):
                trace.runtime.setdefault(correlation, RuntimeCall(name, start, duration, operator))
        elif kind_of(event) in _DEVICE_KINDS and not _SYNCHRONISATION.match(name):
            trace.launched.append(Launched(name, start, duration, operator, correlation, _node(event)))
    return trace


_DEVICE_KINDS = (None, "kernel", "gpu_memcpy", "gpu_memset", "concurrent_kernel")


def _node(event: ProfilerEvent) -> int | None:
    match = _GRAPH_NODE.search(metadata_of(event))
    return (int(match[1]) or None) if match is not None else None


class Attributor:
    """Says of each launched thing whose it is."""

    def __init__(self, trace: Trace, own: OwnKernels) -> None:
        self._trace, self._own = trace, own
        self._captured = [call.operator for call in _captured(trace)]
        self._joined = self._join_graphs()

    def work(self, row: Launched) -> Work:
        """Owner and name."""
        if row.name.startswith(("Memcpy", "Memset")):
            return "copy", row.name
        # First by name: an own kernel that is launched inside of a registered operator stays its own.
        if self._own.define(row.name):
            return "own", row.name
        operator = self._joined.get(id(row), row.operator)
        if operator is not None and is_pytorch(operator):
            return "pytorch", row.name
        # Not defined by the program, not in a library either: code of PyTorch that was called past operators.
        if "at::native" in row.name or "c10::" in row.name or _is_inductor(row.name):
            return "pytorch", row.name
        return "library", row.name

    def _join_graphs(self) -> dict[int, str | None]:
        """Operators of the kernels of graphs, by identity of the row."""
        graphs: dict[int, list[Launched]] = {}
        for row in self._trace.launched:
            call = self._trace.runtime.get(row.correlation)
            if call is not None and _GRAPH_LAUNCH.match(call.name):
                graphs.setdefault(row.correlation, []).append(row)
        joined: dict[int, str | None] = {}
        for rows in graphs.values():
            rows.sort(key=lambda row: (row.node or 0, row.start_ns))
            operators = _only_window(self._captured, len(rows))
            if operators is None:
                # Which launch became which node is unknown: what is not the program's own counts as
                # PyTorch's as soon as PyTorch launched anything at capture.
                some = next((name for name in self._captured if name and is_pytorch(name)), None)
                operators = [some] * len(rows)
            joined.update({id(row): operator for row, operator in zip(rows, operators, strict=True)})
        return joined


def _calls_in_order(trace: Trace) -> Iterator[tuple[int, RuntimeCall, bool]]:
    """Correlation, call, and whether a stream is being captured then."""
    depth = 0
    for correlation, call in sorted(trace.runtime.items(), key=lambda item: item[1].start_ns):
        depth += call.name.startswith(_BEGIN)
        depth -= call.name.startswith(_END)
        yield correlation, call, depth > 0


def _captured(trace: Trace) -> list[RuntimeCall]:
    """The launches that went into graphs instead of onto the device, in their order."""
    ran = {row.correlation for row in trace.launched}
    begun = any(call.name.startswith(_BEGIN) for call in trace.runtime.values())
    end, captured = 0, list[RuntimeCall]()
    for correlation, call, capturing in _calls_in_order(trace):
        if correlation in ran or not _LAUNCH.match(call.name) or (begun and not capturing):
            continue
        # The driver's call inside of the runtime's is no second launch.
        if call.start_ns >= end:
            captured.append(call)
            end = call.start_ns + call.duration_ns
    return captured


def lost_launches(trace: Trace, block: str) -> int:
    """Launches of kernels and graphs in a block that left no record on the device, and went into no graph.

    Raises:
        KeyError: the trace has no such block.
    """
    first, last = trace.blocks[block]
    ran = {row.correlation for row in trace.launched}
    # Of a driver's call inside of the runtime's one of both has the record.
    lost, group_end, group_ran = 0, -1, True
    for correlation, call, capturing in _calls_in_order(trace):
        if capturing or not first <= call.start_ns < last or not _ANY_LAUNCH.match(call.name):
            continue
        if call.start_ns >= group_end:
            lost += not group_ran
            group_end, group_ran = call.start_ns + call.duration_ns, False
        group_ran = group_ran or correlation in ran
    return lost + (not group_ran)


def _only_window(captured: Sequence[str | None], length: int) -> list[str | None] | None:
    """The captured launches of a graph of that many nodes: all, or equal repetitions of one; else None."""
    if not captured or length == 0 or len(captured) % length:
        return None
    first = list(captured[:length])
    repeated = all(list(captured[at : at + length]) == first for at in range(0, len(captured), length))
    return first if repeated else None


def _is_inductor(name: str) -> bool:
    return name.startswith("triton_") and "torch._inductor.codecache" in sys.modules


def block_work(trace: Trace, attributor: Attributor, block: str) -> tuple[Counter[Work], Counter[Work]]:
    """Nanoseconds and launches by owner and name in one block.

    Raises:
        KeyError: the trace has no such block.
    """
    start, end = trace.blocks[block]
    nanoseconds: Counter[Work] = Counter()
    launches: Counter[Work] = Counter()
    for row in trace.launched:
        if start <= row.start_ns < end:
            work = attributor.work(row)
            nanoseconds[work] += row.duration_ns
            launches[work] += 1
    return nanoseconds, launches
