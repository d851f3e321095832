"""Captures a module's forward as a JSON graph: by export, else by tracing, else as one opaque node.

Runs in the reference server. The graph stays at the level at which people write models (linear, conv2d,
layer_norm, scaled_dot_product_attention, lstm): decomposing is the planner's choice, not the capture's.
"""

import base64
import contextlib
import copy
import inspect
import json
import logging
import warnings
from collections import OrderedDict
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from stitch_tools.worker.graph_json import (
    GraphWriter,
    Json,
    NeedsFunctionalError,
    UnsupportedGraphError,
    UnsupportedRegionError,
    drop_unused,
    tensor_spec,
)
from stitch_tools.worker.recurrent_shapes import recurrent_shape_rules
from stitch_tools.worker.reference.state import ServerState
from stitch_tools.worker.serving import Reply, Request
from stitch_tools.worker.streams import generator_state, restore_generators
from stitch_tools.worker.trees import Flat, flatten_inputs, flatten_outputs, fresh_copy, map_tensors

MAX_CONSTANT_BYTES = 1 << 20
"""Larger lifted constants are named, not sent."""
_ANY_SEED, _OTHER_SEED = 1, 2  # a graph without constants is the same for all weights and inputs
_KINDS = {"PARAMETER": "parameter", "BUFFER": "buffer", "CONSTANT_TENSOR": "constant"}


@dataclass(frozen=True)
class Arguments:
    """Inputs of one call: positional ones, or named ones in the order of forward's parameters."""

    args: tuple[Any, ...] = ()
    kwargs: Json = field(default_factory=dict)

    def flat(self) -> Flat:
        """Tensors with their dotted paths ("0", "1.hidden", "mask.0"), in the order of the ABI."""
        return flatten_inputs(self.kwargs or self.args)

    def leaves(self) -> list[tuple[str, Any]]:
        """Leaves in export's order; a tensor with its path, anything else with "".

        Raises:
            UnsupportedGraphError: a tensor lies in a container that only torch knows how to open.
        """
        flat = self.flat()
        paths = {id(tensor): path for path, tensor in zip(flat.names, flat.tensors, strict=True)}
        leaves = pytree.tree_leaves((self.args, self.kwargs))
        if any(isinstance(leaf, torch.Tensor) and id(leaf) not in paths for leaf in leaves):
            raise UnsupportedGraphError("an input tensor lies in a container of an unknown class")
        return [(paths.get(id(leaf), ""), leaf) for leaf in leaves]


def capture(module: nn.Module, inputs: Sequence[Any] | Mapping[str, Any]) -> Json:
    """JSON of `module(*inputs)` in the fields of the Graph fact, in the mode that the module is in.

    A mapping holds named inputs. The module and the generators are as before when this returns.
    """
    arguments = _arguments(module, inputs)
    reasons: list[str] = []
    for source, way in (("export", _by_export), ("fx", _by_tracing)):
        with _undisturbed(module):
            try:
                graph = way(module, arguments)
            except Exception as error:  # torch raises whatever the user's code provokes
                reasons.append(f"{source}: {_one_line(error)}")
                continue
        break
    else:
        source = "opaque"
        with _undisturbed(module):
            graph = _opaque(module, arguments)
    graph["inputs"] = _in_abi_order(graph["inputs"], flatten_inputs(inputs).names)
    return {"source": source, "reason": "; ".join(reasons), "mode": _mode(module), **graph}


def _in_abi_order(rows: list[Json], paths: Sequence[str]) -> list[Json]:
    """User inputs last and in the order of `paths`; export has named ones in its own."""
    users = {row["target"]: row for row in rows if row["kind"] == "user"}
    return [row for row in rows if row["kind"] != "user"] + [users[path] for path in paths if path in users]


def handle_capture(state: ServerState, request: Request) -> Reply:
    """The `capture` request: the loaded reference's graph on the inputs of the current draw."""
    del request
    if state.module is None:
        state.set_weights(_ANY_SEED)
    if state.draw is None:
        state.make_draw("own-1", _ANY_SEED, _ANY_SEED)
    reference, module = state.need()
    graph = capture(module, state.arguments)
    if any("data_base64" in row for row in graph["inputs"]):
        other, _ = reference.construct(_OTHER_SEED)
        _keep_equal_constants(graph, capture(other, state.arguments))
    return Reply({"graph": graph})


def _keep_equal_constants(graph: Json, other: Json) -> None:
    """Drop the data of constants that another construction gives other values (unregistered weights)."""
    seen = {row["name"]: row.get("data_base64") for row in other["inputs"]}
    for row in graph["inputs"]:
        if "data_base64" in row and seen.get(row["name"]) != row["data_base64"]:
            del row["data_base64"]


def _arguments(module: nn.Module, inputs: Sequence[Any] | Mapping[str, Any]) -> Arguments:
    if _share_memory(inputs):
        # Export would take two inputs that are one tensor for one input; other draws need not share it.
        inputs = map_tensors(inputs, fresh_copy)
    if not isinstance(inputs, Mapping):
        return Arguments(tuple(inputs))
    order = [name for name in inspect.signature(module.forward).parameters if name in inputs]
    order += [name for name in inputs if name not in order]
    return Arguments(kwargs={name: inputs[name] for name in order})


def _share_memory(inputs: Any) -> bool:
    tensors = [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]
    return len({tensor.untyped_storage().data_ptr() for tensor in tensors}) < len(tensors)


def _by_export(module: nn.Module, inputs: Arguments) -> Json:
    export: Any = getattr(torch.export, "export" if _has_training_ir() else "export_for_training")
    with recurrent_shape_rules():
        program = export(module, inputs.args, inputs.kwargs, strict=False)
    try:
        return _write_exported(program, inputs)
    except (NeedsFunctionalError, UnsupportedRegionError):
        # torch's own pass removes views of written memory and autocast regions, at the price of some
        # whole operations (batch_norm in training mode becomes a functional relative).
        return _write_exported(program.run_decompositions({}), inputs)


def _has_training_ir() -> bool:
    """Whether `export` itself keeps whole operations; before torch 2.7 that was a function of its own."""
    major, minor = (int(part) for part in torch.__version__.split(".")[:2])
    return (major, minor) >= (2, 7)


def _write_exported(program: Any, inputs: Arguments) -> Json:
    writer = GraphWriter()
    placeholders = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    paths = iter(inputs.leaves())
    graph_inputs: list[Json] = []
    by_name: dict[str, Json] = {}
    for spec in program.graph_signature.input_specs:
        kind = _KINDS.get(spec.kind.name, "user")
        path, leaf = next(paths) if kind == "user" else (str(spec.target), None)
        name = spec.arg.name
        node = placeholders.get(name)
        if node is None or not isinstance(node.meta.get("val"), torch.Tensor):
            continue
        value = node.meta["val"]
        if kind == "user" and (not isinstance(leaf, torch.Tensor) or leaf.shape != value.shape):
            raise UnsupportedGraphError(f"input {path} is not what export calls {name}")
        entry: Json = {"name": name, "kind": kind, "target": path, "spec": tensor_spec(path, value)}
        if kind == "constant":
            entry.update(_constant_data(program.constants[spec.target]))
        writer.add_input(node, name)
        graph_inputs.append(entry)
        by_name[name] = entry
    writer.write(program.graph)
    # None is no output; a number is one, that no node computes.
    specs = [s for s in program.graph_signature.output_specs if getattr(s.arg, "value", 0) is not None]
    outputs = [_exported_output(writer, program, spec, by_name) for spec in specs]
    outputs += _mutation_outputs(writer, by_name)
    return _finish(writer, graph_inputs, outputs)


def _exported_output(writer: GraphWriter, program: Any, spec: Any, by_name: dict[str, Json]) -> Json:
    if spec.kind.name == "BUFFER_MUTATION":
        kind, target = "buffer_mutation", str(spec.target)
    elif spec.kind.name == "USER_INPUT_MUTATION":
        kind, target = "input_mutation", by_name[spec.target]["target"]
    elif spec.kind.name == "USER_OUTPUT":
        kind, target = "user", ""
    else:
        raise UnsupportedGraphError(f"output of kind {spec.kind.name}")
    node = next((n for n in program.graph.nodes if n.name == getattr(spec.arg, "name", None)), None)
    return {"value": writer.argument(node), "kind": kind, "target": target}


def _mutation_outputs(writer: GraphWriter, by_name: dict[str, Json]) -> list[Json]:
    """What in-place operations wrote to inputs and buffers; value None where no node computes it."""
    rows: list[Json] = []
    for node, value in writer.mutated.items():
        entry = by_name[node.name]
        kind = "input_mutation" if entry["kind"] == "user" else "buffer_mutation"
        rows.append({"value": value or None, "kind": kind, "target": entry["target"]})
    return rows


def _finish(writer: GraphWriter, inputs: list[Json], outputs: list[Json]) -> Json:
    wanted = [row["value"] for row in outputs if row["value"] is not None]
    return {"inputs": inputs, "nodes": drop_unused(writer.nodes, wanted), "outputs": outputs}


def _constant_data(value: torch.Tensor) -> Json:
    """The elements of a lifted constant, base64 of the contiguous bytes, unless it is too large."""
    if value.numel() * value.element_size() > MAX_CONSTANT_BYTES:
        return {}
    dense = value.detach().contiguous().cpu().reshape(-1)
    data = bytes(dense.view(torch.uint8).tolist()) if dense.numel() else b""
    return {"data_base64": base64.b64encode(data).decode("ascii")}


def _by_tracing(module: nn.Module, inputs: Arguments) -> Json:
    """Trace one call with fx on fake tensors: takes inputs, outputs and attributes that export refuses.

    Control flow that asks for a tensor's value fails here as well, so that no branch is baked in unseen.
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    names, weights = list(state), list(state.values())
    paths = inputs.leaves()
    leaves, structure = pytree.tree_flatten((inputs.args, inputs.kwargs))
    where = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def forward(flat_weights: list[torch.Tensor], tensors: list[torch.Tensor]) -> list[Any]:
        filled = list(leaves)
        for position, tensor in zip(where, tensors, strict=True):
            filled[position] = tensor
        values = dict(zip(names, flat_weights, strict=True))
        args, kwargs = pytree.tree_unflatten(filled, structure)
        result = flatten_outputs(torch.func.functional_call(module, values, args, kwargs))
        if '"scalar"' in json.dumps(result.structure):
            raise UnsupportedGraphError("an output is a number")
        return list(result.tensors)

    tensors = [leaves[i] for i in where]
    with recurrent_shape_rules():
        traced = make_fx(forward, tracing_mode="fake", pre_dispatch=True)(weights, tensors)
    return _write_traced(traced, module, names, [(paths[i][0], leaves[i]) for i in where])


def _write_traced(
    traced: fx.GraphModule, module: nn.Module, names: list[str], users: list[tuple[str, torch.Tensor]]
) -> Json:
    writer = GraphWriter()
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    parameters = dict(module.named_parameters())
    rows = [("parameter" if n in parameters else "buffer", n, state[n]) for n in names]
    rows += [("user", path, leaf) for path, leaf in users]
    by_name: dict[str, Json] = {}
    placeholders = [node for node in traced.graph.nodes if node.op == "placeholder"]
    for node, (kind, target, value) in zip(placeholders, rows, strict=True):
        writer.add_input(node, node.name)
        by_name[node.name] = {
            "name": node.name,
            "kind": kind,
            "target": target,
            "spec": tensor_spec(target, value),
        }
    for node in traced.graph.nodes:
        if node.op == "get_attr":
            by_name[node.name] = _traced_constant(traced, node, writer)
    writer.write(traced.graph)
    result = next(node for node in traced.graph.nodes if node.op == "output").args[0]
    outputs = [{"value": writer.argument(item), "kind": "user", "target": ""} for item in result]
    outputs += _mutation_outputs(writer, by_name)
    return _finish(writer, list(by_name.values()), outputs)


def _traced_constant(traced: fx.GraphModule, node: fx.Node, writer: GraphWriter) -> Json:
    value = getattr(traced, str(node.target))
    if type(value) not in (torch.Tensor, nn.Parameter):
        raise UnsupportedGraphError(f"{node.target} is not a tensor with data")
    writer.add_input(node, node.name)
    spec = tensor_spec(str(node.target), value)
    return {
        "name": node.name,
        "kind": "constant",
        "target": str(node.target),
        "spec": spec,
        **_constant_data(value),
    }


def _opaque(module: nn.Module, inputs: Arguments) -> Json:
    """The whole forward as one node, so that its bytes at least are known."""
    graph_inputs: list[Json] = []
    kinds = [("parameter", module.named_parameters()), ("buffer", module.named_buffers())]
    for kind, tensors in kinds:
        for target, tensor in tensors:
            name = f"{kind[0]}_{target.replace('.', '_')}"
            graph_inputs.append(
                {"name": name, "kind": kind, "target": target, "spec": tensor_spec(target, tensor)}
            )
    flat = inputs.flat()
    for path, tensor in zip(flat.names, flat.tensors, strict=True):
        name = f"input_{path.replace('.', '_')}"
        graph_inputs.append({"name": name, "kind": "user", "target": path, "spec": tensor_spec(path, tensor)})
    args, kwargs = map_tensors(inputs.args, fresh_copy), map_tensors(inputs.kwargs, fresh_copy)
    leaves = flatten_outputs(module(*args, **kwargs)).tensors
    node = {
        "name": "forward",
        "op": "stitch.opaque.default",
        "args": [{"ref": row["name"], "index": 0} for row in graph_inputs],
        "kwargs": {},
        "outputs": [tensor_spec(f"forward.{i}", leaf) for i, leaf in enumerate(leaves)],
        "module_path": "",
    }
    outputs = [
        {"value": {"ref": "forward", "index": i}, "kind": "user", "target": ""} for i in range(len(leaves))
    ]
    return {"inputs": graph_inputs, "nodes": [node], "outputs": outputs}


@contextlib.contextmanager
def _undisturbed(module: nn.Module) -> Generator[None]:
    """Run the body without gradients and messages; put buffers, generator and attributes back after it.

    A forward that stores an activation on its module would else leave a fake tensor there.
    """
    buffers = [(tensor, tensor.detach().clone()) for tensor in module.buffers()]
    attributes = [(part, _shallow(part.__dict__)) for part in module.modules()]
    generators, level = generator_state(), logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
        restore_generators(generators)
        for part, before in attributes:
            part.__dict__.clear()
            part.__dict__.update(before)
        with torch.no_grad():
            for tensor, before in buffers:
                tensor.copy_(before)


def _shallow(attributes: Json) -> Json:
    """A copy of a module's attributes, with its containers copied one level deep."""
    kinds = (dict, list, set, OrderedDict)
    return {name: copy.copy(value) if type(value) in kinds else value for name, value in attributes.items()}


def _mode(module: nn.Module) -> str:
    return "train" if module.training else "eval"


def _one_line(error: Exception) -> str:
    text = inspect.cleandoc(str(error)) or type(error).__name__
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first}"[:300]
