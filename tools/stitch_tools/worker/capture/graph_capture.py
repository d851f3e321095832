"""Captures a module's forward as a JSON graph: by export, else as one opaque node.

Runs in the reference server. The graph stays at the level at which people write models (linear, conv2d,
layer_norm, scaled_dot_product_attention, lstm): decomposing is the planner's choice, not the capture's.
"""

import contextlib
import functools
import inspect
import linecache
import logging
import re
import warnings
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import cast

import torch
from torch import nn
from torch.utils import _pytree as pytree

from stitch_tools.protocol.serving import is_users, user_place
from stitch_tools.worker.capture.exporting import Arguments, by_export
from stitch_tools.worker.capture.graph_json import Json, UnsupportedGraphError, tensor_spec
from stitch_tools.worker.capture.graph_run import difference
from stitch_tools.worker.plain_state import PlainState
from stitch_tools.worker.random_streams import generator_state, restore_generators
from stitch_tools.worker.trees import flatten_inputs, flatten_outputs, fresh_copy, map_tensors, plain

MAX_CONSTANTS_CHARS = 8 << 20
"""All constants of a graph together, as base64; a message has an end."""


def capture(module: nn.Module, inputs: object) -> Json:
    """JSON of `module(*inputs)` in the fields of the Graph fact, in the mode that the module is in.

    A mapping holds named inputs. The module and the generators are as before when this returns.
    """
    arguments = _arguments(module, inputs)
    try:
        with _undisturbed(module):
            _return_plainly(module)
            graph, constants = by_export(module, arguments)
        with _undisturbed(module):
            source, reason = "export", _refuse_unfaithful(module, arguments, graph, constants)
    except Exception as error:  # torch raises whatever the user's code provokes
        with _undisturbed(module):
            source, reason, graph = "opaque", f"export: {_one_line(error)}", _opaque(module, arguments)
    _drop_beyond_limit(graph["inputs"])
    graph["inputs"] = _in_abi_order(graph["inputs"], flatten_inputs(inputs).names)
    return {"source": source, "reason": reason, "mode": "train" if module.training else "eval", **graph}


def _refuse_unfaithful(
    module: nn.Module, inputs: Arguments, graph: Json, constants: dict[str, torch.Tensor]
) -> str:
    """Run graph and forward once on the same inputs; why they could not be compared, "" where they agree.

    Raises:
        UnsupportedGraphError: they compute different things.
    """
    state = {**dict(module.named_parameters(remove_duplicate=False)), **dict(module.named_buffers())}
    state = {name: fresh_copy(value.detach()) for name, value in state.items()}
    flat = inputs.flat()
    users = dict(zip(flat.names, map(fresh_copy, flat.tensors), strict=True))
    sources = {"user": users, "parameter": state, "buffer": state}
    values = {
        row["name"]: constants[row["name"]]
        if row["kind"] == "constant"
        else sources[row["kind"]][row["target"]]
        for row in graph["inputs"]
    }
    generators = generator_state()

    def forward() -> tuple[torch.Tensor, ...]:
        args, kwargs = map_tensors(inputs.args, fresh_copy), map_tensors(inputs.kwargs, fresh_copy)
        outputs = flatten_outputs(module(*args, **kwargs)).tensors
        is_random.append(not generator_state().same_as(generators))
        restore_generators(generators)
        return outputs

    is_random: list[bool] = []
    try:
        wrong = difference(graph, values, forward)
    except UnsupportedGraphError:
        raise
    except Exception as error:  # no memory for both, an operation that has no kernel here
        return f"not compared with eager: {_one_line(error)}"
    # Functional twins of random operations may draw in another order.
    if wrong and is_random[0]:
        return f"not compared with eager, since it is random: {wrong}"
    if wrong:
        raise UnsupportedGraphError(f"the exported graph is not the forward: {wrong}")
    return ""


def _return_plainly(module: nn.Module) -> None:
    """Have forward return containers that torch knows, in place of dataclasses and classes of mappings."""
    forward = module.forward

    @functools.wraps(forward)
    def plain_forward(*args: object, **kwargs: object) -> object:
        return plain(forward(*args, **kwargs))

    module.forward = plain_forward


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
    attributes = PlainState(module)
    generators, level = generator_state(), logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
        restore_generators(generators)
        attributes.restore()
        with torch.no_grad():
            for tensor, before in buffers:
                tensor.copy_(before)


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
