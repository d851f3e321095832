"""Captures a module's forward as a JSON graph: by export, else as one opaque node.

Runs in the reference server. The graph stays at the level at which people write models (linear, conv2d,
layer_norm, scaled_dot_product_attention, lstm): decomposing is the planner's choice, not the capture's.
"""

import contextlib
import copy
import inspect
import linecache
import logging
import re
import warnings
from collections import OrderedDict
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import cast

import torch
from torch import nn
from torch.utils import _pytree as pytree

from stitch_tools.protocol.serving import is_users, user_place
from stitch_tools.worker.capture.exporting import Arguments, by_export
from stitch_tools.worker.capture.graph_json import Json, UnsupportedGraphError, tensor_spec
from stitch_tools.worker.random_streams import generator_state, restore_generators
from stitch_tools.worker.trees import flatten_inputs, flatten_outputs, fresh_copy, map_tensors

MAX_CONSTANTS_CHARS = 8 << 20
"""All constants of a graph together, as base64; a message has an end."""


def capture(module: nn.Module, inputs: object) -> Json:
    """JSON of `module(*inputs)` in the fields of the Graph fact, in the mode that the module is in.

    A mapping holds named inputs. The module and the generators are as before when this returns.
    """
    arguments = _arguments(module, inputs)
    try:
        with _undisturbed(module):
            source, reason, graph = "export", "", by_export(module, arguments)
    except Exception as error:  # torch raises whatever the user's code provokes
        with _undisturbed(module):
            source, reason, graph = "opaque", f"export: {_one_line(error)}", _opaque(module, arguments)
    _drop_beyond_limit(graph["inputs"])
    graph["inputs"] = _in_abi_order(graph["inputs"], flatten_inputs(inputs).names)
    return {"source": source, "reason": reason, "mode": "train" if module.training else "eval", **graph}


def _in_abi_order(rows: list[Json], paths: Sequence[str]) -> list[Json]:
    """User inputs last and in the order of `paths`; export has named ones in its own."""
    users = {row["target"]: row for row in rows if row["kind"] == "user"}
    return [row for row in rows if row["kind"] != "user"] + [users[path] for path in paths if path in users]


def _drop_beyond_limit(rows: list[Json]) -> None:
    """Take the data from the constants that no longer fit one message."""
    used = 0
    for row in rows:
        used += len(row.get("data_base64", ""))
        if used > MAX_CONSTANTS_CHARS:
            row.pop("data_base64", None)


def _arguments(module: nn.Module, inputs: object) -> Arguments:
    if _share_memory(inputs):
        # Export would take two inputs that are one tensor for one input; other draws need not share it.
        inputs = map_tensors(inputs, fresh_copy)
    if not isinstance(inputs, dict):
        return Arguments(tuple(cast("Sequence[object]", inputs)))
    order = [name for name in inspect.signature(module.forward).parameters if name in inputs]
    order += [name for name in inputs if name not in order]
    return Arguments(kwargs={name: inputs[name] for name in order})


def _share_memory(inputs: object) -> bool:
    tensors = [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]
    return len({tensor.untyped_storage().data_ptr() for tensor in tensors}) < len(tensors)


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


def _one_line(error: Exception) -> str:
    text = inspect.cleandoc(str(error)) or type(error).__name__
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first}"[:300] + _where(error)


def _where(error: Exception) -> str:
    """The line of the reference's own at which `error` came up, in parentheses; "" where there is none."""
    file, line = user_place(error)
    if isinstance(error, UnsupportedGraphError):
        called = re.findall(r'File "(.+)", line (\d+)', error.stack)
        file, line = next(
            ((name, int(row)) for name, row in reversed(called) if is_users(name)), (None, None)
        )
    if file is None or line is None:
        return ""
    code = linecache.getline(file, line).strip()
    return f" (at {Path(file).name}:{line}" + (f": {code[:100]})" if code else ")")
