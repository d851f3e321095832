"""A KernelProgram as one CUDA source file over the headers of the package."""

import json
import re
import struct
from collections.abc import Container, Iterable, Mapping, Sequence

from stitch_planner.stitcher.emit.call_text import CallArgument, CallText, argument_text, call_texts, wrapped
from stitch_planner.stitcher.emit.cpu.emit_cpp import header_closure
from stitch_planner.stitcher.emit.cuda.library_calls import LIBRARIES, call_text
from stitch_planner.stitcher.emit.cuda.lines import comment_line
from stitch_planner.stitcher.emit.cuda.operands import pointer_name
from stitch_planner.stitcher.emit.cuda.pointwise import ending_class, pointwise_class
from stitch_planner.stitcher.emit.cuda.rows import RowClass
from stitch_planner.stitcher.emit.cuda.schedule import column_schedule, row_schedule
from stitch_planner.stitcher.emit.cuda.tiles import tiled_class, tiles_of
from stitch_planner.stitcher.emit.scalar_text import MEMORY_TYPES
from stitch_planner.stitcher.lower.kernel_ir import (
    Buffer,
    ColumnKernel,
    Kernel,
    KernelProgram,
    LibraryCall,
    PointwiseKernel,
    RowKernel,
    Scalar,
    View,
    inputs_written,
)
from stitch_planner.stitcher.lower.operations import VolumeConvOp

MAIN = "program.cu"
BODY_INDENT = 4
"""Columns before the statements of the handle's functions."""
HEADERS = ("pointwise", "rows", "columns", "gemm", "program")
"""Headers of stitch/cuda that a program includes, before exports.cuh at its end."""

_DLPACK_CODES: dict[Scalar, tuple[int, int]] = {
    "float32": (2, 32),
    "float64": (2, 64),
    "int32": (0, 32),
    "int64": (0, 64),
    "bool": (6, 8),
    "uint8": (1, 8),
}


def cuda_files(program: KernelProgram, title: str, summary: list[str]) -> dict[str, bytes]:
    """Files of the program: `program.cu` and every header that it includes, under `stitch/`."""
    text = emit_cuda(program, title, summary)
    headers = re.findall(r'#include "(stitch/[^"]+)"', text)
    return {MAIN: text.encode("utf-8"), **header_closure(headers)}


def emit_cuda(program: KernelProgram, title: str = "", summary: Sequence[str] = ()) -> str:
    """The text of the program: kernel classes, facts about tensors, the handle that runs them in order."""
    kernels = [kernel for kernel in program.kernels if not _is_empty(kernel)]
    calls = call_texts(kernels, call_text)
    headers = [f'#include "stitch/cuda/{name}.cuh"' for name in HEADERS]
    wanted = {f'#include "{call.header}"' for call in calls.values()}
    if any(isinstance(kernel, PointwiseKernel) and tiles_of(kernel) for kernel in kernels):
        wanted.add('#include "stitch/cuda/tiles.cuh"')
    extra = sorted(wanted - set(headers))
    sections = [
        _opening(program, title, summary),
        "\n".join([*headers, *extra]),
        "namespace {",
        *(text for kernel in kernels if (text := _kernel_class(kernel))),
        _facts(program),
        "}  // namespace",
        _handle(program, kernels, calls),
        '#include "stitch/cuda/exports.cuh"',
    ]
    return "\n\n".join(sections) + "\n"


def _opening(program: KernelProgram, title: str, summary: Sequence[str]) -> str:
    lines = [f"{title or program.name}: one forward pass.", ""]
    lines += [*summary, ""] if summary else []
    lines.append(f"Written for {program.target} and for the shapes in kInputs; other shapes are refused.")
    lines.append("pointwise.cuh and rows.cuh say when each function of a kernel's class is called.")
    return "\n".join(comment_line(line).rstrip() for line in lines)


def _kernel_class(kernel: Kernel) -> str:
    """The class of a kernel; of a library call that of its end, "" where it has none."""
    if isinstance(kernel, LibraryCall):
        operation = kernel.operation
        if not isinstance(operation, VolumeConvOp) or operation.ending is None:
            return ""
        assert operation.ending_source is not None
        return ending_class(operation.ending, operation.ending_source)
    if isinstance(kernel, PointwiseKernel):
        tiles = tiles_of(kernel)
        return pointwise_class(kernel) if tiles is None else tiled_class(kernel, tiles)
    assert isinstance(kernel, RowKernel | ColumnKernel)
    return RowClass(kernel).text()


def _is_empty(kernel: Kernel) -> bool:
    """Whether nothing would be computed; a reduction over nothing still has a result for each row."""
    if isinstance(kernel, PointwiseKernel):
        return 0 in kernel.space
    return isinstance(kernel, RowKernel | ColumnKernel) and 0 in kernel.outer


def _facts(program: KernelProgram) -> str:
    tables = {
        "Inputs": program.inputs,
        "Params": _named(program),
        "State": program.state,
        "Outputs": program.outputs,
    }
    written = {program.inputs[place].buffer for place in inputs_written(program)}
    lines = ["// Name, DLPack's type code and bits, number of dims, shape, whether the forward writes to it."]
    for name, views in tables.items():
        rows = ",\n".join(f"    {_tensor_facts(view, written=view.buffer in written)}" for view in views)
        # C++ has no arrays of length 0; the count says how many entries there are.
        lines.append(f"constexpr stitch::cuda::TensorFacts k{name}[] = {{\n{rows or '    {}'}}};")
    constants = _constants(program)
    for number, buffer in enumerate(constants):
        lines.append(f"constexpr uint32_t kConstant{number}[] = {{{_words(buffer)}}};")
    uploads = ", ".join(f"{{kConstant{n}, {buffer.nbytes}}}" for n, buffer in enumerate(constants))
    lines.append(f"constexpr stitch::cuda::ConstantFacts kConstants[] = {{{uploads or '{}'}}};")
    sizes = {name: len(views) for name, views in tables.items()}
    order = ("Inputs", "Params", "Constants", "State", "Outputs")
    counts = ", ".join(f"k{name}, {sizes.get(name, len(constants))}" for name in order)
    lines.append(f"constexpr stitch::cuda::ProgramFacts kFacts = {{{counts},")
    launches = sum(not _is_empty(kernel) for kernel in program.kernels)
    lines.append(f"    /*workspace_bytes=*/{program.workspace_bytes}, /*launches=*/{launches}}};")
    return "\n".join(lines)


def _named(program: KernelProgram) -> tuple[View, ...]:
    """Parameters and buffers that the caller passes."""
    return tuple(view for view in program.params if view.buffer.data is None)


def _constants(program: KernelProgram) -> list[Buffer]:
    """Constants that the program carries itself."""
    return [view.buffer for view in program.params if view.buffer.data is not None]


def _words(buffer: Buffer) -> str:
    data = buffer.data or b""
    padded = data + bytes(-len(data) % 4)
    return ", ".join(f"{word:#x}" for (word,) in struct.iter_unpack("<I", padded)) or "0"


def _tensor_facts(view: View, *, written: bool) -> str:
    code, bits = _DLPACK_CODES[view.dtype]
    shape = ", ".join(str(size) for size in view.shape)
    name = view.buffer.source or view.buffer.name
    quoted = json.dumps(name, ensure_ascii=False)
    ending = ", true" if written else ""
    return f"{{{quoted}, {code}, {bits}, {len(view.shape)}, {{{shape}}}{ending}}}"


def _handle(program: KernelProgram, kernels: list[Kernel], calls: Mapping[str, CallText]) -> str:
    lines = [
        "struct StitchHandle final : stitch::cuda::Program {",
        "  StitchHandle() : Program(kFacts) {}",
        "",
    ]
    if calls:
        lines += _setup(program, calls)
    lines.append("  int32_t body(const stitch::cuda::Call& call) override {")
    lines += [f"    {line}" for line in _declarations(program, _used(kernels, calls))]
    for kernel in kernels:
        lines += ["", *(f"    {line}" for line in _launch(kernel, calls))]
    lines += ["    return STITCH_OK;", "  }"]
    if calls:
        lines += ["", *(f"  {LIBRARIES[name]} {name};" for name in _libraries(calls))]
        lines += [f"  {call.type} {name};" for name, call in calls.items()]
    return "\n".join([*lines, "};"])


def _setup(program: KernelProgram, calls: Mapping[str, CallText]) -> list[str]:
    buffers = {view.buffer for call in calls.values() for view in _views(call.init)}
    named = " call" if any("call" in call.init for call in calls.values()) else ""
    lines = [f"  int32_t setup(const stitch::cuda::Call&{named}) override {{"]
    lines += [f"    STITCH_TRY({name}.open(errors));" for name in _libraries(calls)]
    lines += [f"    {line}" for line in _declarations(program, buffers)]
    for name, call in calls.items():
        arguments = ", ".join(argument_text(argument, _address) for argument in call.init)
        made = wrapped(f"STITCH_TRY({name}.init({arguments}));", BODY_INDENT)
        lines += [f"    {line}" for line in made]
        lines.append(f"    need_scratch({name}.workspace_bytes());")
    return [*lines, "    return STITCH_OK;", "  }", ""]


def _libraries(calls: Mapping[str, CallText]) -> list[str]:
    """The libraries that calls name, in a fixed order."""
    return [name for name in LIBRARIES if any(name in call.init for call in calls.values())]


def _declarations(program: KernelProgram, buffers: Iterable[Buffer]) -> list[str]:
    """A pointer for each buffer, in the program's own order of buffers."""
    wanted = set(buffers)
    places = {view.buffer: ("param", place) for place, view in enumerate(_named(program))}
    places |= {buffer: ("constant", place) for place, buffer in enumerate(_constants(program))}
    written = inputs_written(program)
    return [_declaration(buffer, places, written) for buffer in program.buffers if buffer in wanted]


def _declaration(buffer: Buffer, places: dict[Buffer, tuple[str, int]], written: Container[int]) -> str:
    kind, name = MEMORY_TYPES[buffer.dtype], pointer_name(buffer)
    if buffer.role == "param":
        source, place = places[buffer]
        return f"const {kind}* {name} = {source}<{kind}>({place});"
    if buffer.role == "input" and buffer.position in written:
        return f"{kind}* {name} = written<{kind}>({buffer.position});"
    if buffer.role == "input":
        return f"const {kind}* {name} = input<{kind}>({buffer.position});"
    if buffer.role == "workspace":
        return f"{kind}* {name} = reinterpret_cast<{kind}*>(call.workspace + {buffer.offset});"
    return f"{kind}* {name} = {buffer.role}<{kind}>({buffer.position});"


def _used(kernels: list[Kernel], calls: Mapping[str, CallText]) -> set[Buffer]:
    buffers: set[Buffer] = set()
    for kernel in kernels:
        if isinstance(kernel, LibraryCall):
            buffers |= {view.buffer for view in _views(calls[kernel.name].run)}
        else:
            buffers |= {access.buffer for access in (*kernel.loads, *kernel.stores)}
    return buffers


def _launch(kernel: Kernel, calls: Mapping[str, CallText]) -> list[str]:
    if isinstance(kernel, LibraryCall):
        call = calls[kernel.name]
        comment = comment_line(kernel.comment + (f" ({call.chosen})" if call.chosen else ""))
        arguments = ", ".join(argument_text(argument, _address) for argument in call.run)
        return [comment, *wrapped(f"STITCH_TRY({kernel.name}.run({arguments}));", BODY_INDENT)]
    buffers = dict.fromkeys(pointer_name(access.buffer) for access in (*kernel.loads, *kernel.stores))
    made = f"{kernel.name}{{{', '.join(buffers)}}}"
    comment = comment_line(kernel.comment)
    return [comment, *wrapped(f'STITCH_TRY({_entry(kernel)}("{kernel.name}", {made}, call));', BODY_INDENT)]


def _entry(kernel: PointwiseKernel | RowKernel | ColumnKernel) -> str:
    if isinstance(kernel, PointwiseKernel):
        return f"stitch::cuda::{'pointwise' if tiles_of(kernel) is None else 'tiled_pointwise'}"
    row = RowClass(kernel)
    if isinstance(kernel, ColumnKernel):
        plan = column_schedule(row.rows, row.length, row.cell_bytes if row.reads_again else 0)
        kept = f", {plan.items}" if plan.items else ""
        return f"stitch::cuda::columns<stitch::cuda::ColumnSchedule<{plan.width}, {plan.height}{kept}>>"
    plan = row_schedule(row.rows, row.length, row.vector, row.cell_bytes)
    numbers = f"{plan.lanes}, {plan.rows_per_block}, {plan.items}"
    return f"stitch::cuda::rows<stitch::cuda::RowSchedule<{numbers}>>"


def _address(view: View) -> str:
    name = pointer_name(view.buffer)
    return f"{name} + {view.offset}" if view.offset else name


def _views(arguments: tuple[CallArgument, ...]) -> list[View]:
    """The windows whose addresses are passed."""
    views: list[View] = []
    for argument in arguments:
        if isinstance(argument, View):
            views.append(argument)
        elif isinstance(argument, tuple):
            views.extend(argument)
    return views
