"""Machine code of a built program's kernels, by nvdisasm and cuobjdump where they are here: nothing runs."""

import contextlib
import os
import re
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stitch_tools.compile.confinement import readable_paths
from stitch_tools.compile.resources import demangle
from stitch_tools.compile.runner import run_compiler
from stitch_tools.compile.toolchain import cuda_root, find_nvcc
from stitch_tools.errors import EnvironmentMissingError
from stitch_tools.storage.scratch import make_scratch

INSTALL_DISASSEMBLER = (
    "install the toolkit's cuobjdump and nvdisasm, or into the target interpreter `pip install "
    "nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm`"
)
_LIMIT_S = 60.0
_FUNCTION = re.compile(r"^\s*(?:Function\s*:\s*|\.section\s+\.text\.)([\w$.]+)")
_LINE = re.compile(r'^\s*//## File "([^"]+)", line (\d+)(?P<inlined> inlined at)?')
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?\w+\s+)?([A-Z][A-Z0-9_]*)((?:\.[A-Z0-9_]+)*)")
_WIDTH = re.compile(r"\.(?:[US](8|16)|(64|128|256))(?=\.|$)")
_TENSOR = re.compile(r"^(?:[HIDBQ]MMA|[HIBQ]GMMA|U?TC\w*MMA)$")
_GLOBAL, _SHARED, _LOCAL = ("LDG", "STG"), ("LDS", "STS"), ("LDL", "STL")
_FUSED = ("FFMA", "HFMA2", "DFMA")


@dataclass(frozen=True)
class SourcePlace:
    """A line of source that instructions came from."""

    file: str
    line: int


@dataclass
class SassKernel:
    """What the instructions of one kernel are; counted as they stand, not as often as they run."""

    symbol: str
    name: str = ""
    """Demangled."""
    instructions: int = 0
    global_bits: Counter[int] = field(default_factory=Counter[int])
    """Loads and stores of global memory by bits a thread."""
    shared_bits: Counter[int] = field(default_factory=Counter[int])
    local: int = 0
    """Loads and stores of local memory."""
    tensor: int = 0
    fused: int = 0
    """Multiply-adds of ordinary pipes."""
    narrow_places: Counter[SourcePlace] = field(default_factory=Counter[SourcePlace])
    """Lines with global accesses of at most 32 bits."""
    local_places: Counter[SourcePlace] = field(default_factory=Counter[SourcePlace])
    fused_places: Counter[SourcePlace] = field(default_factory=Counter[SourcePlace])


@dataclass(frozen=True)
class Disassembler:
    """Both of NVIDIA's tools."""

    cuobjdump: Path
    nvdisasm: Path


def find_disassembler(prefixes: Sequence[Path] = ()) -> Disassembler:
    """The tools on PATH, else in nvcc's toolkit, else in an interpreter's wheels.

    Args:
        prefixes: `sys.prefix` of interpreters, best first.

    Raises:
        EnvironmentMissingError: one of them is missing; the hint says how to get it.
    """
    folders = [Path(word) for word in os.environ.get("PATH", "").split(os.pathsep) if word]
    with contextlib.suppress(EnvironmentMissingError):
        folders.append(cuda_root(find_nvcc()) / "bin")
    for prefix in prefixes:
        folders.extend(sorted(prefix.glob("lib/python3.*/*-packages/nvidia/*/bin")))
    found: dict[str, Path] = {}
    for name in ("cuobjdump", "nvdisasm"):
        path = next((folder / name for folder in folders if os.access(folder / name, os.X_OK)), None)
        if path is None:
            raise EnvironmentMissingError(f"{name} was not found", hint=INSTALL_DISASSEMBLER)
        found[name] = path
    return Disassembler(found["cuobjdump"], found["nvdisasm"])


def read_sass(artifact: Path, tools: Disassembler) -> tuple[SassKernel, ...]:
    """The kernels of a built library; () where it holds none, or the tools cannot read it.

    The library is a stranger's: the tools run as confined as compilers do.
    """
    with make_scratch("sass") as root:
        copy = root / "program.so"
        shutil.copyfile(artifact, copy)
        own = (path.resolve().parent for path in (tools.cuobjdump, tools.nvdisasm))
        readable = readable_paths((), own)
        scratch = root / "scratch"
        scratch.mkdir()
        extract = (str(tools.cuobjdump), "-xelf", "all", copy.name)
        run_compiler(extract, folder=root, scratch=scratch, time_limit_s=_LIMIT_S, readable=readable)
        kernels: list[SassKernel] = []
        for cubin in sorted(root.glob("*.cubin")):
            print_code = (str(tools.nvdisasm), "-g", "-c", cubin.name)
            done = run_compiler(
                print_code, folder=root, scratch=scratch, time_limit_s=_LIMIT_S, readable=readable
            )
            kernels.extend(parse_sass(done.output))
    return tuple(kernels)


def parse_sass(text: str) -> tuple[SassKernel, ...]:
    """The kernels in the output of `nvdisasm -g -c` or `cuobjdump -sass`; any text is survived."""
    kernels: dict[str, SassKernel] = {}
    current: SassKernel | None = None
    place: SourcePlace | None = None
    for line in text.splitlines():
        if function := _FUNCTION.match(line):
            current, place = kernels.setdefault(function[1], SassKernel(function[1])), None
        elif source := _LINE.match(line):
            # Of inlined code the innermost line comes first; the lines that called it follow.
            place = SourcePlace(source[1], int(source[2]))
        elif current is not None and (instruction := _INSTRUCTION.match(line)):
            _count(current, instruction[1], instruction[2], place)
    found = [kernel for kernel in kernels.values() if kernel.instructions]
    for kernel, name in zip(found, demangle([kernel.symbol for kernel in found]), strict=True):
        kernel.name = name
    return tuple(found)


def _count(kernel: SassKernel, name: str, suffixes: str, place: SourcePlace | None) -> None:
    if name == "NOP":
        return
    kernel.instructions += 1
    width = _WIDTH.search(suffixes)
    bits = int(width[1] or width[2]) if width else 32
    if name in _GLOBAL or name == "LDGSTS":
        kernel.global_bits[bits] += 1
        if bits <= 32 and place is not None:
            kernel.narrow_places[place] += 1
    elif name in _SHARED:
        kernel.shared_bits[bits] += 1
    elif name in _LOCAL:
        kernel.local += 1
        if place is not None:
            kernel.local_places[place] += 1
    elif _TENSOR.match(name):
        kernel.tensor += 1
    elif name in _FUSED:
        kernel.fused += 1
        if place is not None:
            kernel.fused_places[place] += 1
