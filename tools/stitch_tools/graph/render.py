"""A captured graph as plain text: one row an operation."""

from stitch_tools.models import Argument, Graph, GraphInput, GraphNode, TensorSpec, ValueRef

_SHORT = {
    "float64": "f64",
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "int64": "i64",
    "int32": "i32",
    "int16": "i16",
    "int8": "i8",
    "uint8": "u8",
}
HEADER = ("name", "operation", "arguments", "output", "MFLOP", "KiB in", "KiB out", "K", "min us", "module")


def render_graph(graph: Graph) -> str:
    """Inputs, a table of operations with their work, outputs and totals."""
    lines = [
        f"captured by {graph.source}, {graph.mode} mode" + (f" ({graph.reason})" if graph.reason else "")
    ]
    lines += ["", "inputs", *_input_lines(graph.inputs), "", "operations"]
    lines += _aligned([HEADER, *(node_row(node) for node in graph.nodes)])
    lines += ["", "outputs"]
    for row in graph.outputs:
        value = _argument(row.value) if row.value is not None else "(not a value of the graph)"
        lines.append(f"  {row.kind:16} {value}" + (f" -> {row.target}" if row.target else ""))
    lines += ["", _totals(graph)]
    return "\n".join(lines) + "\n"


def node_row(node: GraphNode) -> tuple[str, ...]:
    """One operation's cells in the order of `HEADER`."""
    arguments = [_argument(value) for value in node.args]
    arguments += [f"{key}={_argument(value)}" for key, value in node.kwargs.items()]
    shortest = "" if node.min_time_us is None else f"{node.min_time_us:.1f}"
    return (
        node.name,
        node.op.removeprefix("aten.").removesuffix(".default"),
        ", ".join(arguments),
        " ".join(_spec(spec) for spec in node.outputs),
        f"{node.flops / 1e6:.3g}",
        f"{node.bytes_read / 1024:.4g}",
        f"{node.bytes_written / 1024:.4g}",
        str(node.reduction_length),
        shortest,
        node.module_path,
    )


def _totals(graph: Graph) -> str:
    moved = sum(node.bytes_read + node.bytes_written for node in graph.nodes)
    text = f"{len(graph.nodes)} operations, {graph.flops / 1e6:.4g} MFLOP, {moved / 2**20:.4g} MiB moved"
    times = [node.min_time_us for node in graph.nodes if node.min_time_us is not None]
    if times and len(times) == len(graph.nodes):
        text += f", at least {sum(times):.1f} us one by one"
    return text


def _input_lines(inputs: tuple[GraphInput, ...]) -> list[str]:
    rows = [[row.kind, row.name, _spec(row.spec), row.target] for row in inputs]
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(4)]
    return ["  " + _line(row, widths) for row in rows]


def _spec(spec: TensorSpec) -> str:
    text = f"{_SHORT.get(spec.dtype, spec.dtype)}[{','.join(map(str, spec.shape))}]"
    return text if spec.stride is None else f"{text}:({','.join(map(str, spec.stride))})"


def _argument(value: Argument) -> str:
    if isinstance(value, ValueRef):
        return f"%{value.ref}" + (f"#{value.index}" if value.index else "")
    if isinstance(value, tuple):
        return f"[{', '.join(_argument(item) for item in value)}]"
    return str(value)


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    limits = {2: 60, 3: 60}
    cut = [[_cut(cell, limits.get(i, 200)) for i, cell in enumerate(row)] for row in rows]
    widths = [max(len(row[i]) for row in cut) for i in range(len(HEADER))]
    return ["  " + _line(row, widths) for row in cut]


def _line(row: list[str], widths: list[int]) -> str:
    numbers = range(4, 9)
    pairs = enumerate(zip(row, widths, strict=True))
    cells = [cell.rjust(width) if i in numbers else cell.ljust(width) for i, (cell, width) in pairs]
    return "  ".join(cells).rstrip()


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."
