"""A partial program: `ModelNew` in Python, native segments, PyTorch operations between them."""

import json
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import cast

from stitch_planner.stitcher.emit.cpu.emit_cpp import MAIN as CPP_MAIN
from stitch_planner.stitcher.emit.cpu.emit_cpp import emit_cpu, templates
from stitch_planner.stitcher.emit.cuda.emit_cuda import MAIN as CUDA_MAIN
from stitch_planner.stitcher.emit.cuda.emit_cuda import cuda_files
from stitch_planner.stitcher.graph.partition import NONE, Step, partition
from stitch_planner.stitcher.graph.segments import Part, cut, subgraph
from stitch_planner.stitcher.graph.simplify import buffer_updates, live_outputs
from stitch_planner.stitcher.kernel_program import constant_data, lower_steps
from stitch_planner.stitcher.lower.graph_index import GraphIndex, ValueKey, value_key
from stitch_planner.stitcher.lower.kernel_ir import KernelProgram
from stitch_planner.stitcher.lower.lowering import UnloweredError
from stitch_planner.stitcher.lower.templates import Template
from stitch_tools.compile.segments import BUILT, segment_flags
from stitch_tools.graph.families import family_of
from stitch_tools.models.base import sha256_hex
from stitch_tools.models.graph import Argument, Graph, GraphInput, GraphNode, GraphOutput, ValueRef
from stitch_tools.models.task import ReferenceFacts, Task
from stitch_tools.protocol.layout import BUFFER

MAIN = "model_new.py"
_DENSE, _COPY = ".contiguous()", ".clone()"
_COPIED = ("abi.py", "native.py", "input_shapes.py", "reference_weights.py")
"""Files of the worker that programs bring along, so that they stand alone."""
_REPLAY = "graph_replay.py"
"""One more, for CUDA programs."""


def emit_partial(
    task: Task,
    facts: ReferenceFacts,
    graph: Graph,
    steps: list[Step],
    templates: Sequence[Template],
    sources: Mapping[str, bytes],
    summary: list[str],
    left: Mapping[str, str] = NONE,
    attributes: tuple[str, ...] = (),
) -> tuple[dict[str, bytes], list[KernelProgram]]:
    """Files of the program, `model_new.py` among them, and its native segments.

    `left` is what no template is to take, and why. `templates` are those that `steps` were chosen from.
    `attributes` are inputs of kind buffer that are plain tensors of the reference's modules.

    Raises:
        UnloweredError: the reference cannot be constructed where the program runs, or a segment cannot be
            written.
    """
    # Facts of older versions do not say what the entry is; it was a class then.
    made = facts.entry_kind or "class"
    if made == "function" and any(item.kind in ("parameter", "buffer") for item in graph.inputs):
        raise UnloweredError(f"{task.entry} has weights, and is no module that could be made again")
    if made != "function" and not sources:
        raise UnloweredError("a program in Python needs the reference's files, and none were given")
    # Those folders are not part of the program: on another machine they would be missing, or hold other code.
    if made != "function" and task.search_path:
        raise UnloweredError(
            "a program in Python constructs the reference from its own files, and cannot read its search_path"
        )
    partial = _Partial(task, graph, steps, templates, left, made)
    return partial.files(facts, sources, summary, attributes), partial.programs


class _Partial:
    """The text of one forward."""

    def __init__(
        self,
        task: Task,
        graph: Graph,
        steps: list[Step],
        among: Sequence[Template],
        left: Mapping[str, str],
        made: str,
    ) -> None:
        self.task = task
        self.cuda = task.target != "cpu"
        self.among = among
        self.made = made
        self.left = left
        self.graph = graph
        self.index = GraphIndex(graph)
        self.steps = steps
        self.segments: list[str] = []
        self.programs: list[KernelProgram] = []
        self.contents: dict[str, bytes] = {}
        self.dense: set[ValueKey] = set()
        """Values that segments made."""
        self.constants: list[tuple[str, str]] = []
        """Names of the constants that forward names, and the calls that read them."""

    def files(
        self,
        facts: ReferenceFacts,
        sources: Mapping[str, bytes],
        summary: list[str],
        attributes: tuple[str, ...],
    ) -> dict[str, bytes]:
        parts = cut(self.steps, self.index)
        lines = [f"state[{target!r}] = attrgetter({target!r})(self)" for target in attributes]
        lines += self._inputs({node.name for part in parts if not part.native for node in part.nodes})
        for part in parts:
            lines.extend(self._segment(part) if part.native else self._eager(part))
        lines.extend(self._updates())
        values = [_variable(value_key(out.value)) for out in live_outputs(self.graph.outputs)]
        result = _structure(facts.output_structure, values)
        replayed = self.cuda and bool(values) and self._is_capturable(parts, result)
        text = (
            templates()
            .get_template("model_new.j2")
            .render(
                title=self.task.name,
                summary=summary,
                made=self.made,
                reference=repr(self.task.main),
                entry=repr(self.task.entry),
                tensors=[(repr(item.target), _wanted(item)) for item in users(self.graph)],
                fixed=_constants(facts.input_structure),
                lines=lines,
                attributes=attributes,
                result=result,
                values="".join(f"{value}, " for value in values).rstrip(),
                updated=repr(sorted({out.target for out in buffer_updates(self.graph.outputs)})),
                cuda=self.cuda,
                replayed=replayed,
                names=self.segments,
                constants=self.constants,
            )
        )
        self.contents[MAIN] = text.encode("utf-8")
        self.contents.update(runtime_files(self.task.target, replayed=replayed))
        if self.made != "function":
            self.contents.update({f"stitch_reference/{path}": data for path, data in sources.items()})
            # Only where the reference brings none: its own may define what its files import.
            self.contents.setdefault("stitch_reference/__init__.py", b"")
        return self.contents

    def _is_capturable(self, parts: Sequence[Part], result: str) -> bool:
        """Whether a CUDA graph may hold the whole forward: a replay then repeats all that a call does.

        Random numbers, numbers for the host and writes to the caller's inputs are no part of a graph.
        """
        eager = [node for part in parts if not part.native for node in part.nodes]
        writes = any(out.kind == "input_mutation" for out in self.graph.outputs)
        return not (writes or ".item()" in result or any(family_of(node.op) == "random" for node in eager))

    def _inputs(self, eager: set[str]) -> list[str]:
        """Lines that name the user's tensors, the weights, and the constants that `eager` nodes read."""
        lines: list[str] = []
        written = {out.target for out in self.graph.outputs if out.kind == "input_mutation"}
        for item in self.graph.inputs:
            key = (item.name, 0)
            if item.target.startswith(BUFFER):
                lines.append(f"{_variable(key)} = state[{item.target.removeprefix(BUFFER)!r}]")
            elif item.kind == "user":
                # What the forward writes there comes last, and must not show in values that others read.
                own = _COPY if item.target in written else _DENSE if item.spec.stride is None else ""
                lines.append(f"{_variable(key)} = given[{item.target!r}]{own}")
            elif item.kind == "constant":
                # A segment brings the constants that it reads in its own text.
                if self.index.leaves(key) or any(user.name in eager for user in self.index.users(key)):
                    lines.append(f"{_variable(key)} = {self._constant(item)}")
            elif self.index.users(key) or self.index.leaves(key):
                lines.append(f"{_variable(key)} = state[{item.target!r}]")
        return lines

    def _updates(self) -> list[str]:
        """Lines that write what the forward leaves in buffers and inputs; last: others read the old ones."""
        kept = [out for out in buffer_updates(self.graph.outputs) if _made_here(out, self.index)]
        lines = [f"state[{out.target!r}].copy_({_variable(value_key(out.value))})" for out in kept]
        users = {item.target: (item.name, 0) for item in self.graph.inputs if item.kind == "user"}
        # Buffers and inputs are written after everything was computed, see the docstring.
        for out in self.graph.outputs:
            if out.kind == "input_mutation":
                # An operation that gives no value back has written to our copy.
                key = users[out.target] if out.value is None else value_key(out.value)
                lines.append(f"given[{out.target!r}].copy_({_variable(key)})")
        return lines

    def _constant(self, item: GraphInput) -> str:
        """Writes the constant's elements into a file and returns the name that the file's tensor has."""
        path, name = f"constants/{item.name}.bin", f"CONSTANT_{len(self.constants)}"
        data = self.contents[path] = constant_data(item)
        shape = tuple(item.spec.shape)
        call = f"constant({path!r}, torch.{item.spec.dtype}, {shape!r}, {sha256_hex(data)!r})"
        self.constants.append((name, call))
        return name

    def _eager(self, part: Part) -> list[str]:
        return [line for node in part.nodes for line in _eager_lines(node)]

    def _segment(self, part: Part) -> list[str]:
        """Writes the segment's C++ and returns the line that calls it."""
        inner, taken, given = subgraph(part, self.graph, self.index, self.dense)
        self.dense.update(given)
        name = f"segment_{len(self.segments)}"
        program = lower_steps(
            name, self.task.target, inner, partition(GraphIndex(inner), self.among, self.left)
        )
        write, main = (cuda_files, CUDA_MAIN) if self.cuda else (emit_cpu, CPP_MAIN)
        files = write(program, f"{self.task.name}, {name}", [])
        self.contents[main.replace("program", name)] = files.pop(main)
        self.contents.update(files)
        targets = [item.target for item in inner.inputs if item.kind in ("parameter", "buffer")]
        weights = ", ".join(f"({target!r}, state[{target!r}])" for target in targets)
        inputs = ", ".join(_variable(key) for key in taken)
        outputs = "".join(f"{_variable(key)}, " for key in given)
        place = len(self.segments)
        self.segments.append(name)
        self.programs.append(program)
        return [f"{outputs.rstrip()} = SEGMENTS[{place}]([{weights}], [{inputs}])"]


def users(graph: Graph) -> list[GraphInput]:
    """The tensors that a call gives; what is read from buffers at each call is none of them."""
    return [item for item in graph.inputs if item.kind == "user" and not item.target.startswith(BUFFER)]


def _wanted(item: GraphInput) -> str:
    """Type, sizes and strides of an input as Python text."""
    return f"({item.spec.dtype!r}, {item.spec.shape!r}, {item.spec.stride!r})"


def _constants(structure: str) -> str:
    """Kind and text of all inputs that are no tensors, by path, as Python text; None where not observed."""
    if not structure:
        return "None"
    constants: dict[str, tuple[str, str]] = {}

    def walk(tree: object, path: str) -> None:
        if isinstance(tree, dict):
            items = cast("dict[str, dict[str, object]]", tree)["dict"].items()
        elif isinstance(tree, list) and tree[0] in ("tuple", "list"):
            items = [(str(place), item) for place, item in enumerate(cast("list[object]", tree)[1:])]
        else:
            if isinstance(tree, list):
                constants[path] = _constant_words(cast("list[str]", tree), path)
            return
        for name, item in items:
            walk(item, f"{path}.{name}" if path else name)

    walk(json.loads(structure), "")
    return repr(constants)


def _constant_words(tree: list[str], path: str) -> tuple[str, str]:
    if tree[0] == "opaque":
        raise UnloweredError(f"input {path} is a {tree[1]}, which cannot be handed to a program in Python")
    return ("NoneType", "None") if tree[0] == "none" else (tree[1], tree[2])


def _made_here(out: GraphOutput, index: GraphIndex) -> bool:
    """Whether a node of the graph makes the value; without updates those nodes are gone."""
    return out.value is not None and out.value.ref in index.nodes


def _variable(key: ValueKey) -> str:
    return f"v_{key[0]}_{key[1]}"


def _eager_lines(node: GraphNode) -> list[str]:
    """The node as a call of torch.ops.aten."""
    parts = node.op.split(".")
    if len(parts) != 3:
        raise UnloweredError(f"{node.op} is no operation that PyTorch knows by name")
    arguments = [_literal(item) for item in node.args]
    arguments.extend(f"{name}={_literal(item)}" for name, item in node.kwargs.items())
    # The captured overload by its full name, so that PyTorch does not choose among overloads again.
    space = "aten" if parts[0] == "aten" else f"torch.ops.{parts[0]}"
    call = f"{space}.{parts[1]}.{parts[2]}({', '.join(arguments)})"
    if len(node.outputs) == 1:
        return [f"{_variable((node.name, 0))} = {call}"]
    names = ", ".join(_variable((node.name, place)) for place in range(len(node.outputs)))
    return [f"{names} = {call}"]


def _literal(value: Argument) -> str:
    if isinstance(value, ValueRef):
        return _variable((value.ref, value.index))
    if isinstance(value, tuple):
        return "[" + ", ".join(_literal(item) for item in value) + "]"
    if isinstance(value, str):
        if value.startswith("torch."):
            return value
        # repr() of an infinity or NaN is no Python expression.
        return f'float("{value}")' if value in ("inf", "-inf", "nan") else repr(value)
    return repr(value)


def _structure(described: str, values: list[str]) -> str:
    """The output tree as Python text; `described` is ReferenceFacts.output_structure."""
    waiting = list(values)

    def build(tree: object) -> str:
        if tree == "leaf":
            return waiting.pop(0)
        if tree == ["none"]:
            return "None"
        if isinstance(tree, list) and tree and tree[0] == "scalar":
            return f"{waiting.pop(0)}.item()"
        if isinstance(tree, list) and tree and tree[0] in ("tuple", "list"):
            items = ", ".join(build(item) for item in cast("list[object]", tree)[1:])
            return f"({items},)" if tree[0] == "tuple" else f"[{items}]"
        if isinstance(tree, dict) and "dict" in tree:
            pairs = cast("dict[str, dict[str, object]]", tree)["dict"].items()
            return "{" + ", ".join(f"{name!r}: {build(item)}" for name, item in pairs) + "}"
        raise UnloweredError("outputs of this structure have no binding in a partial program")

    return build(json.loads(described) if described else "leaf")


def runtime_files(target: str = "cpu", *, replayed: bool = False) -> dict[str, bytes]:
    """The binding: the worker's own code, copied so that the program stands alone."""
    folder = resources.files("stitch_tools").joinpath("worker", "runtime")
    cuda = target != "cpu"
    segments = (
        templates()
        .get_template("segments.j2")
        .render(
            flags=repr(segment_flags(target)), built=repr(BUILT), cuda=cuda, suffix="cu" if cuda else "cpp"
        )
    )
    names = (*_COPIED, _REPLAY) if replayed else _COPIED
    copied = {name: folder.joinpath(name).read_text(encoding="utf-8") for name in names}
    return {
        "stitch_runtime/__init__.py": b"",
        "stitch_runtime/segments.py": segments.encode("utf-8"),
        **{
            f"stitch_runtime/{name}": text.replace("stitch_tools.worker.runtime", "stitch_runtime").encode()
            for name, text in copied.items()
        },
    }
