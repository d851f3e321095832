"""IR -> C++ for the CPU: one readable program.cpp, and the package's headers that it includes."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import resources
from importlib.resources.abc import Traversable

from stitch_planner.stitcher.emit.call_text import (
    CallArgument,
    CallText,
    argument_text,
    braced,
    call_texts,
    wrapped,
)
from stitch_planner.stitcher.emit.cpu.kernel_text import KernelText, describe
from stitch_planner.stitcher.emit.cpu.library_calls import call_text
from stitch_planner.stitcher.emit.scalar_text import MEMORY_TYPES
from stitch_planner.stitcher.lower.kernel_ir import (
    SCALAR_BYTES,
    Buffer,
    ColumnKernel,
    Kernel,
    KernelProgram,
    LibraryCall,
    PointwiseKernel,
    RowKernel,
    View,
    inputs_written,
)

MAIN = "program.cpp"
BODY_INDENT = 4
"""Columns before the statements of a program's functions."""
DECLARATION_INDENT = len("  static constexpr int64_t kThreadScratchBytes = ")
_CODES = {
    "float32": "kFloat",
    "float64": "kFloat",
    "int32": "kInt",
    "int64": "kInt",
    "bool": "kBool",
    "uint8": "kUint",
}


@dataclass(frozen=True)
class StepText:
    """One kernel or call in `run`."""

    comment: str
    lines: list[str]


@dataclass(frozen=True)
class MemberText:
    """One library object of the program, and the statement that prepares it."""

    type: str
    name: str
    init: list[str]


def emit_cpu(program: KernelProgram, title: str, summary: list[str]) -> dict[str, bytes]:
    """Files of the program: `program.cpp` and every header that it includes, under `stitch/`."""
    calls = call_texts(program.kernels, call_text)
    kernels, struct_of = distinct_kernels(program.kernels)
    # Each program brings its headers along: a certificate's program must build without this package.
    headers = _headers(program.kernels, calls)
    written = inputs_written(program)
    template = templates().get_template("cpu_program.j2")
    text = template.render(
        title=title,
        summary=summary,
        headers=headers,
        kernels=render_kernels(kernels),
        inputs=[_input_type(view) for view in program.inputs],
        outputs=[_tensor_type(view) for view in program.outputs],
        workspace_bytes=program.workspace_bytes,
        thread_scratch=_thread_scratch(program.kernels, struct_of),
        params=[_param(view) for view in program.params],
        kept=[_kept(buffer) for buffer in program.kept],
        uses_dnnl=any(call.uses_dnnl for call in calls.values()),
        calls=[_member(name, call) for name, call in calls.items()],
        written=written,
        buffers=[_declaration(buffer, written) for buffer in program.buffers if buffer.role != "param"],
        steps=[_step(kernel, struct_of, calls) for kernel in program.kernels],
    )
    return {MAIN: text.encode("utf-8"), **header_closure(headers)}


def distinct_kernels(kernels: tuple[Kernel, ...]) -> tuple[list[KernelText], dict[str, str]]:
    """The structs to write, and each kernel's struct: equal layers of a network share one."""
    written: dict[str, KernelText] = {}
    struct_of: dict[str, str] = {}
    for kernel in kernels:
        if not isinstance(kernel, LibraryCall):
            text = describe(kernel)
            # Names, comments and operands differ between equal layers; everything else makes the compiled
            # code.
            first = written.setdefault(repr(replace(text, name="", comment="", operands="")), text)
            struct_of[kernel.name] = first.name
    return list(written.values()), struct_of


@lru_cache(maxsize=1)
def templates():  # jinja2 is imported here, since it costs 60 ms
    """The jinja2 environment over this package's `text` folder."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("stitch_planner.stitcher", "text"),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
        autoescape=False,
    )


def render_kernels(kernels: list[KernelText]) -> str:
    """The kernels' structs; namespace stitch must be in scope."""
    return templates().get_template("kernels.j2").render(kernels=kernels)


def header_closure(headers: list[str]) -> dict[str, bytes]:
    """The named headers and all that they include from here, by path (`stitch/abi.h` is the tools')."""
    texts: dict[str, bytes] = {}
    waiting = list(headers)
    while waiting:
        name = waiting.pop()
        if name in texts:
            continue
        # System headers stand in angle brackets and are the compiler's.
        texts[name] = _header(name).read_bytes()
        waiting.extend(re.findall(r'#include "(stitch/[^"]+)"', texts[name].decode("utf-8")))
    return texts


def _header(name: str) -> Traversable:
    package = "stitch_tools" if name == "stitch/abi.h" else "stitch_planner.stitcher"
    return resources.files(package).joinpath("native", "include", *name.split("/"))


def _headers(kernels: tuple[Kernel, ...], calls: Mapping[str, CallText]) -> list[str]:
    used = {"stitch/cpu/program.h", "stitch/common/math.h"}
    for kernel in kernels:
        if isinstance(kernel, LibraryCall):
            used.add(calls[kernel.name].header)
        elif isinstance(kernel, PointwiseKernel):
            used.add("stitch/cpu/pointwise.h")
        else:
            used.add("stitch/cpu/rows.h" if isinstance(kernel, RowKernel) else "stitch/cpu/columns.h")
    return sorted(used)


def _unqualified(text: str) -> str:
    """Text without the namespace that the program is in."""
    return text.replace("stitch::cpu::", "cpu::")


def _member(name: str, call: CallText) -> MemberText:
    init = ", ".join(_argument(item) for item in call.init)
    lines = wrapped(f"STITCH_TRY({name}.init({init}));", BODY_INDENT)
    return MemberText(_unqualified(call.type), name, lines)


def _tensor_type(view: View) -> str:
    bits = SCALAR_BYTES[view.dtype] * 8
    shape = ", ".join(map(str, view.shape))
    return f"{{Code::{_CODES[view.dtype]}, {bits}, {len(view.shape)}, {{{shape}}}}}"


def _input_type(view: View) -> str:
    return f"{{{_tensor_type(view)}, {{{', '.join(map(str, view.strides))}}}}}"


def _param(view: View) -> dict[str, str]:
    buffer = view.buffer
    # C++ has no empty arrays.
    data = "" if buffer.data is None else ", ".join(map(str, buffer.data)) or "0"
    return {
        "data": data,
        "type": MEMORY_TYPES[buffer.dtype],
        "name": buffer.name,
        "source": buffer.source,
        "tensor": _tensor_type(view),
    }


def _kept(buffer: Buffer) -> dict[str, str | list[str]]:
    """A copy of a parameter: its declaration, and the statement that makes it."""
    window = buffer.window
    assert window is not None
    source = _address(window.buffer, window.offset)
    where = f"{braced(window.shape)}, {braced(window.strides)}"
    made = f'STITCH_TRY(keep("{buffer.name}", {source}, {where}, &{buffer.name}));'
    return {"type": MEMORY_TYPES[buffer.dtype], "name": buffer.name, "lines": wrapped(made, BODY_INDENT)}


def _declaration(buffer: Buffer, written: tuple[int, ...]) -> str:
    """The local pointer through which `run` reaches a buffer; inputs at `written` are written to."""
    kind = MEMORY_TYPES[buffer.dtype]
    if buffer.role == "input" and buffer.position in written:
        return f"auto* const {buffer.name} = reinterpret_cast<{kind}*>(memory.inputs[{buffer.position}]);"
    if buffer.role == "input":
        source = f"memory.inputs[{buffer.position}]"
        return f"const auto* const {buffer.name} = reinterpret_cast<const {kind}*>({source});"
    if buffer.role == "output":
        return f"auto* const {buffer.name} = reinterpret_cast<{kind}*>(memory.outputs[{buffer.position}]);"
    return f"auto* const {buffer.name} = reinterpret_cast<{kind}*>(memory.workspace + {buffer.offset});"


def _address(buffer: Buffer, offset: int) -> str:
    return f"{buffer.name} + {offset}" if offset else buffer.name


def _argument(item: CallArgument) -> str:
    return _unqualified(argument_text(item, lambda view: _address(view.buffer, view.offset)))


def _step(kernel: Kernel, struct_of: dict[str, str], calls: Mapping[str, CallText]) -> StepText:
    if isinstance(kernel, LibraryCall):
        call = calls[kernel.name]
        chosen = f" [{call.chosen}]" if call.chosen else ""
        return StepText(kernel.comment + chosen, _call_lines(kernel.name, call))
    kind = _executor(kernel)
    scratch = "" if isinstance(kernel, PointwiseKernel) else ", memory.thread_scratch"
    loads = ", ".join(f"cpu::read({_address(a.buffer, a.offset)})" for a in kernel.loads)
    stores = ", ".join(f"cpu::write({_address(a.buffer, a.offset)})" for a in kernel.stores)
    run = f"cpu::{kind}<{struct_of[kernel.name]}>::run(threads, {{{{{loads}}}, {{{stores}}}}}{scratch});"
    return StepText(kernel.comment, wrapped(run, BODY_INDENT))


def _executor(kernel: PointwiseKernel | RowKernel | ColumnKernel) -> str:
    if isinstance(kernel, PointwiseKernel):
        return "Pointwise"
    return "Rows" if isinstance(kernel, RowKernel) else "Columns"


def _call_lines(name: str, call: CallText) -> list[str]:
    lines: list[str] = []
    arguments: list[str] = []
    for place, item in enumerate(call.run):
        if isinstance(item, tuple) and item:
            # A braced list cannot be passed for a pointer, so the array gets a name.
            lines.append(f"const float* const {name}_operands_{place}[] = {_argument(item)};")
            arguments.append(f"{name}_operands_{place}")
        else:
            arguments.append(_argument(item))
    return [*lines, *wrapped(f"STITCH_TRY({name}.run({', '.join(arguments)}));", BODY_INDENT)]


def _thread_scratch(kernels: tuple[Kernel, ...], struct_of: dict[str, str]) -> str:
    sizes = dict.fromkeys(
        f"cpu::{_executor(k)}<{struct_of[k.name]}>::kScratchFloats"
        for k in kernels
        if isinstance(k, RowKernel | ColumnKernel)
    )
    # Kernels run one after the other, so they share one scratch of the largest size.
    most = f"std::max<int64_t>({{0, {', '.join(sizes)}}})"
    return "\n  ".join(wrapped(f"sizeof(float) * {most}", DECLARATION_INDENT)) if sizes else "0"
