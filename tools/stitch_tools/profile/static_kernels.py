"""Answers about a program's kernels without a GPU: from ptxas' report, the machine code and the source."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stitch_tools.errors import EnvironmentMissingError
from stitch_tools.judge.source.cuda_source import CudaSource, parse_cuda, text_of
from stitch_tools.models.profile import KernelAnswer, KernelProfile, ProfilerTool, Quantity
from stitch_tools.models.program import Build, KernelResources
from stitch_tools.profile.index_patterns import IndexFinding, file_constants, index_findings
from stitch_tools.profile.lane_values import LaneValues
from stitch_tools.profile.occupancy import occupancy
from stitch_tools.profile.ownership import short_name
from stitch_tools.profile.questions import ranked
from stitch_tools.profile.sass import SassKernel, find_disassembler, read_sass
from stitch_tools.profile.static_answers import (
    answer_bank_conflicts,
    answer_coalescing,
    answer_occupancy,
    answer_spills,
    answer_tensor_cores,
    answer_vector_width,
)

_BOUNDS = re.compile(r"__launch_bounds__\s*\(\s*([^,()]+)[^()]*\)\s*(?:void\s+)?(\w+)\s*\(")
_CUDA_SUFFIXES = (".cu", ".cuh", ".h", ".hpp")
Block = tuple[int, int, int]


@dataclass(frozen=True)
class StaticReport:
    """What can be said about kernels that nobody ran."""

    kernels: tuple[KernelProfile, ...]
    tools: tuple[ProfilerTool, ...]
    not_measured: tuple[str, ...] = ()


def static_profiles(
    build: Build, sources: Mapping[str, str], *, prefixes: Sequence[Path] = (), arch: str | None = None
) -> StaticReport:
    """Answers about each kernel of a built native program for one architecture.

    Args:
        build: from `compile_program`; its ptxas report is the base.
        sources: the program's text by path.
        prefixes: `sys.prefix` of interpreters whose wheels may hold the disassemblers.
        arch: sm_90, ...; None is the first that was built.
    """
    wanted = arch or (build.archs[0] if build.archs else "")
    rows = [row for row in build.resources if row.arch == wanted]
    sass: tuple[SassKernel, ...] = ()
    tools = [ProfilerTool(name="ptxas", version=build.compiler)]
    not_measured: list[str] = ["no kernel ran: times, stalls and traffic are not known"]
    if build.artifact is not None and rows:
        try:
            sass = read_sass(Path(build.artifact), find_disassembler(prefixes))
            tools.append(ProfilerTool(name="nvdisasm"))
        except EnvironmentMissingError as error:
            not_measured.append(f"the width of accesses is not known: {error.message}; {error.hint}")
    return StaticReport(kernel_profiles(rows, sources, sass), tuple(tools), tuple(not_measured))


def kernel_profiles(
    rows: Sequence[KernelResources], sources: Mapping[str, str], sass: Sequence[SassKernel] = ()
) -> tuple[KernelProfile, ...]:
    """One profile for each row of ptxas' report, those with problems first.

    Args:
        rows: of one architecture.
        sources: the program's text by path.
        sass: the machine code of the same kernels, where there is any.
    """
    parsed = [
        parse_cuda(path, text.encode(), lambda line: line + 1, frozenset())
        for path, text in sources.items()
        if path.endswith(_CUDA_SUFFIXES)
    ]
    blocks = launch_blocks(parsed, sources)
    findings = [(source.file, row) for source in parsed for row in index_findings(source, blocks)]
    code = {kernel.name: kernel for kernel in sass}
    profiles = [_profile(row, blocks, findings, code.get(row.kernel), tuple(sources)) for row in rows]
    return tuple(sorted(profiles, key=lambda profile: not any(row.is_problem for row in profile.answers)))


def launch_blocks(parsed: Sequence[CudaSource], sources: Mapping[str, str]) -> dict[str, Block]:
    """Block sizes by kernel: of launches whose sizes are numbers, else what __launch_bounds__ allows."""
    values = LaneValues((256, 1, 1), 0)
    known: set[str] = set()
    for source in parsed:
        for name, node in file_constants(source).items():
            values.names[name] = values.value(node)
            known.add(name)
    found: dict[str, Block] = {}
    for text in sources.values():
        for limit, kernel in _BOUNDS.findall(text):
            size = int(limit) if limit.strip().isdecimal() else _first(values, limit.strip(), known)
            if size is not None:
                found[kernel] = (size, 1, 1)
    for source in parsed:
        for call in source.calls:
            launch = next((row for row in call.node.children if row.type == "kernel_call_syntax"), None)
            given = launch.named_children if launch is not None else []
            block = _block(values, text_of(given[1]), known) if len(given) > 1 else None
            if block is not None:
                found[call.short] = block
    return found


def _block(values: LaneValues, text: str, known: set[str]) -> Block | None:
    """The size that a launch names: a number, a constant, or dim3 of them."""
    inside = re.fullmatch(r"dim3\s*[({](.*)[)}]", text, re.DOTALL)
    words = [word.strip() for word in (inside[1] if inside else text).split(",")]
    sizes = [int(word) if word.isdecimal() else _first(values, word, known) for word in words]
    if not 1 <= len(sizes) <= 3 or None in sizes:
        return None
    filled = [size or 1 for size in sizes] + [1, 1]
    block = (filled[0], filled[1], filled[2])
    return block if 0 < math.prod(block) <= 1024 else None


def _first(values: LaneValues, name: str, known: set[str]) -> int | None:
    value = values.names.get(name) if name in known else None
    return None if value is None else value[0]


def _profile(
    row: KernelResources,
    blocks: Mapping[str, Block],
    findings: Sequence[tuple[str, IndexFinding]],
    code: SassKernel | None,
    files: Sequence[str],
) -> KernelProfile:
    name = short_name(row.kernel)
    mine = [(file, finding) for file, finding in findings if finding.kernel == name]
    block = blocks.get(name)
    answers: list[KernelAnswer] = [
        # Surest first: without a figure of their cost, problems keep this order.
        answer_spills(row, code, files),
        answer_coalescing(mine),
        answer_bank_conflicts(mine),
        answer_tensor_cores(code, files),
        answer_occupancy(row, block),
        answer_vector_width(code, files),
    ]
    threads = None if block is None else math.prod(block)
    theoretical = (
        None
        if threads is None
        else occupancy(row.arch, threads=threads, registers=row.registers, shared_bytes=row.shared_bytes)
    )
    return KernelProfile(
        kernel=row.kernel,
        origin="ptxas",
        block=block,
        registers=row.registers,
        shared_bytes=row.shared_bytes,
        spill_bytes=row.spill_store_bytes + row.spill_load_bytes,
        theoretical_occupancy=None if theoretical is None else round(theoretical.share, 4),
        answers=ranked(answers),
        metrics=(Quantity(name="stack a thread", value=row.stack_bytes, unit="B", origin="ptxas"),),
    )
