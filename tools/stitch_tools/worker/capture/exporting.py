"""A forward as ATen operations, by torch's own export."""

import base64
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, OutputSpec
from torch.utils import _pytree as pytree

from stitch_tools.worker.capture.graph_json import (
    GraphWriter,
    Json,
    NeedsFunctionalError,
    UnsupportedGraphError,
    UnsupportedRegionError,
    drop_unused,
    tensor_spec,
)
from stitch_tools.worker.capture.recurrent_shapes import recurrent_shape_rules
from stitch_tools.worker.trees import Flat, flatten_inputs, number_tensor

MAX_CONSTANT_BYTES = 1 << 20
"""Larger lifted constants are named, not sent."""
_KINDS = {"PARAMETER": "parameter", "BUFFER": "buffer", "CONSTANT_TENSOR": "constant"}


@dataclass(frozen=True)
class Arguments:
    """Inputs of one call: positional ones, or named ones in the order of forward's parameters."""

    args: tuple[object, ...] = ()
    kwargs: Json = field(default_factory=dict)

    def flat(self) -> Flat:
        """Tensors with their dotted paths ("0", "1.hidden", "mask.0"), in the order of the ABI."""
        return flatten_inputs(self.kwargs or self.args)

    def leaves(self) -> list[tuple[str, object]]:
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


def by_export(module: nn.Module, inputs: Arguments) -> tuple[Json, dict[str, torch.Tensor]]:
    """Inputs, nodes and outputs of the exported forward, whole operations kept; and its constants by name.

    Raises:
        Exception: whatever torch raises on what it cannot export; UnsupportedGraphError from us.
    """
    export = getattr(torch.export, "export" if _has_training_ir() else "export_for_training")
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


def _write_exported(program: ExportedProgram, inputs: Arguments) -> tuple[Json, dict[str, torch.Tensor]]:
    writer = GraphWriter()
    placeholders = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    paths = iter(inputs.leaves())
    graph_inputs: list[Json] = []
    by_name: dict[str, Json] = {}
    constants: dict[str, torch.Tensor] = {}
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
            constants[name] = cast("torch.Tensor", program.constants[path])
            entry.update(_constant_data(constants[name]))
        writer.add_input(node, name)
        graph_inputs.append(entry)
        by_name[name] = entry
    writer.write(program.graph)
    outputs: list[Json] = []
    for spec in program.graph_signature.output_specs:
        if isinstance(spec.arg, ConstantArgument):
            if spec.arg.value is None:
                continue  # None is no output; a number is one, that no node computes
            name = _unused(f"number_{len(outputs)}", {*by_name, *(node.name for node in program.graph.nodes)})
            constants[name] = number_tensor(cast("float", spec.arg.value))
            by_name[name] = _number_row(name, constants[name])
            graph_inputs.append(by_name[name])
            outputs.append({"value": {"ref": name, "index": 0}, "kind": "user", "target": ""})
        else:
            outputs.append(_exported_output(writer, program, spec, by_name))
    outputs += _mutation_outputs(writer, by_name)
    return _finish(writer, graph_inputs, outputs), constants


def _number_row(name: str, tensor: torch.Tensor) -> Json:
    """A number that the forward returns, as a constant of the graph."""
    return {
        "name": name,
        "kind": "constant",
        "target": name,
        "spec": tensor_spec(name, tensor),
        **_constant_data(tensor),
    }


def _unused(name: str, names: set[str]) -> str:
    while name in names:
        name = f"{name}_"
    return name


def _exported_output(
    writer: GraphWriter, program: ExportedProgram, spec: OutputSpec, by_name: dict[str, Json]
) -> Json:
    if spec.kind.name == "BUFFER_MUTATION":
        kind, target = "buffer_mutation", str(spec.target)
    elif spec.kind.name == "USER_INPUT_MUTATION":
        kind, target = "input_mutation", by_name[str(spec.target)]["target"]
    elif spec.kind.name == "USER_OUTPUT":
        kind, target = "user", ""
    elif spec.kind.name == "PARAMETER_MUTATION":
        raise UnsupportedGraphError(f"the forward writes to the parameter {spec.target}")
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
