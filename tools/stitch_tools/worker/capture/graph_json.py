"""An fx graph of ATen operations as plain JSON: functional, flat, every value with its shape and type.

Export leaves in-place operations where the reference wrote them. Here they become their functional twins and
later uses are redirected to the result, which is right as long as no other view of the same memory is read
afterwards; where one is, `NeedsFunctionalError` asks the caller for torch's own functionalisation.
"""

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

Json = dict[str, Any]
"""An object of the graph's JSON."""
Node = Any
"""An fx.Node whose arguments are taken as they come: fx types them as a deep union that says little."""

# Checks that export writes into the graph; shapes are fixed here, so they say nothing.
_ASSERTIONS = ("aten._assert", "aten.sym_constrain_range")
# Operations that return what they were given, so that later uses may take the argument itself.
_SAME_VALUE = (
    "aten.alias.default",
    "aten.detach.default",
    "aten.detach_.default",
    "aten.lift_fresh.default",
    "aten.lift_fresh_copy.default",
)
_DROPOUTS = ("aten.dropout.default", "aten.feature_dropout.default", "aten.alpha_dropout.default")


class UnsupportedGraphError(Exception):
    """The graph holds something that has no place in our form; the message says what."""

    stack = ""
    """Where the reference calls it, as lines of a traceback."""


class NeedsFunctionalError(UnsupportedGraphError):
    """An in-place operation writes to memory that is read through another view afterwards."""


def tensor_spec(name: str, value: torch.Tensor) -> Json:
    """Name, shape and dtype of `value`, and its strides where it is not contiguous.

    Raises:
        UnsupportedGraphError: a size depends on data.
    """
    if any(type(size) is not int for size in value.shape):
        raise UnsupportedGraphError(f"the shape of {name} depends on data")
    spec: Json = {"name": name, "shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}
    if value.layout is torch.strided and not value.is_contiguous():
        spec["stride"] = list(value.stride())
    return spec


class UnsupportedRegionError(UnsupportedGraphError):
    """A region of the forward runs under a mode (autocast, ...) that torch expresses as a call."""


@dataclass
class GraphWriter:
    """Collects nodes. `seen` says which JSON value each fx node now stands for."""

    nodes: list[Json] = field(default_factory=list)
    seen: dict[Node, Any] = field(default_factory=dict)
    mutated: dict[Node, Json] = field(default_factory=dict)
    """Placeholders that were written to, with their last value (None: no node computes it)."""
    roots: dict[Node, Node] = field(default_factory=dict)
    """For each view, the node whose memory it shares."""
    same: dict[Node, Node] = field(default_factory=dict)
    """For each fx node, the one that holds exactly the same elements (itself, if none)."""
    order: dict[Node, int] = field(default_factory=dict)

    def add_input(self, node: Node, name: str) -> None:
        """Let `node` stand for the graph input `name`."""
        self.seen[node] = {"ref": name, "index": 0}

    def write(self, graph: fx.Graph) -> None:
        """Append every operation of `graph`; its placeholders must be known already.

        Raises:
            UnsupportedGraphError: an operation has no place in our form.
        """
        self.order.update({node: len(self.order) + i for i, node in enumerate(graph.nodes)})
        for node in graph.nodes:
            if node.op == "call_function":
                try:
                    self._write_call(node)
                except UnsupportedGraphError as error:
                    error.stack = error.stack or str(node.meta.get("stack_trace") or "")
                    raise
            elif node.op == "get_attr":
                self.seen.setdefault(node, None)
            elif node.op not in ("placeholder", "output"):
                raise UnsupportedGraphError(f"{node.op} {node.target} is not an operation of ATen")

    def argument(self, value: object) -> object:
        """`value` as JSON, with fx nodes replaced by references."""
        if isinstance(value, fx.Node):
            return self._reference(value)
        if isinstance(value, (list, tuple)):
            return [self.argument(item) for item in value]
        if isinstance(value, float) and not math.isfinite(value):
            return str(value)
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format)):
            return str(value)
        raise UnsupportedGraphError(f"argument of type {type(value).__name__}")

    def _reference(self, node: Node) -> Json | list[Json | None]:
        if self.seen.get(node) is None:
            raise UnsupportedGraphError(f"{node.name} is not a tensor that the graph holds")
        return self.seen[node]

    def _write_call(self, node: Node) -> None:
        target, schema = node.target, _schema(node.target)
        if target is operator.getitem:
            self._write_getitem(node)
        elif schema is not None:
            if str(target).startswith(_ASSERTIONS):
                return
            if self._is_identity(node):
                self._follow(node, node.all_input_nodes[0])
            elif schema.is_mutable:
                self._write_mutation(node, target)
            else:
                self._emit(node, target)
                self._note_view(node, target)
                self._note_running_statistics(node)
        elif getattr(target, "__name__", "") == "wrap_with_set_grad_enabled":
            self._inline(node, node.args[1], node.args[2:])
        else:
            raise UnsupportedRegionError(f"{getattr(target, '__name__', target)} is not an operation of ATen")

    def _write_getitem(self, node: Node) -> None:
        source, index = node.args
        held = self._reference(source)
        # An inlined region leaves a list of references, an operation one reference with an index.
        self.seen[node] = held[index] if isinstance(held, list) else {**held, "index": index}
        if source in self.roots:
            self.roots[node] = self.roots[source]

    def _is_identity(self, node: Node) -> bool:
        name, inputs = str(node.target), node.all_input_nodes
        if name in _SAME_VALUE:
            return True
        if name in _DROPOUTS:
            return node.args[2] is False or node.args[1] == 0
        if name.startswith("aten.to.") and not node.kwargs.get("copy") and len(inputs) == 1:
            before, after = inputs[0].meta["val"], node.meta["val"]
            same_type = before.dtype == after.dtype and before.device == after.device
            return same_type and before.stride() == after.stride() and True not in node.args[2:]
        if name == "aten.contiguous.default" and len(node.args) == 1:
            return bool(inputs[0].meta["val"].is_contiguous())
        return False

    def _follow(self, node: Node, source: Node) -> None:
        self.seen[node] = self._reference(source)
        self.same[node] = self.same.get(source, source)
        self.roots[node] = self.roots.get(source, source)

    def _note_view(self, node: Node, target: Node) -> None:
        schema = _schema(target)
        for argument in schema.arguments if schema is not None else ():
            if argument.alias_info is not None and node.all_input_nodes:
                source = node.all_input_nodes[0]
                self.roots[node] = self.roots.get(source, source)

    def _note_running_statistics(self, node: Node) -> None:
        """Record what batch_norm writes without saying so in its schema."""
        training = {"aten.batch_norm.default": 5, "aten.instance_norm.default": 5}.get(str(node.target))
        if training is None or len(node.args) <= training or not node.args[training]:
            return
        for statistic in node.args[3:5]:
            if isinstance(statistic, fx.Node) and statistic.op == "placeholder":
                self.mutated.setdefault(statistic, {})

    def _write_mutation(self, node: Node, target: Node) -> None:
        schema = _schema(target)
        arguments = schema.arguments if schema is not None else ()
        written = [i for i, a in enumerate(arguments) if a.alias_info is not None and a.alias_info.is_write]
        functional = _functional_twin(target)
        if written != [0] or functional is None:
            raise NeedsFunctionalError(f"{target} writes to its arguments")
        victim = node.args[0]
        self._check_other_views(victim, node)
        dtypes = {other.meta["val"].dtype for other in node.all_input_nodes}
        if len(dtypes) > 1 and target is not torch.ops.aten.copy_.default:
            raise NeedsFunctionalError(f"{target} mixes types, and the result takes its target's")
        self._emit(node, functional)
        value = self.seen[node]
        held = self.same.get(victim, victim)
        for member in [held, *(other for other, own in self.same.items() if own is held)]:
            self.seen[member] = value
        self.same[node] = held
        self.roots[node] = self.roots.get(victim, victim)
        if held.op == "placeholder":
            self.mutated[held] = value

    def _check_other_views(self, victim: Node, writer: Node) -> None:
        root, held = self.roots.get(victim, victim), self.same.get(victim, victim)
        family = [root, *(node for node, owner in self.roots.items() if owner is root)]
        for member in family:
            if self.same.get(member, member) is held:
                continue
            late = any(self.order.get(user, 0) > self.order[writer] for user in member.users)
            if late or member.op == "placeholder":
                raise NeedsFunctionalError(f"{writer.name} writes to memory that {member.name} shares")

    def _inline(self, node: Node, module: Node, arguments: Sequence[fx.Node]) -> None:
        """Write the operations of a region that only switches gradients off."""
        owner = node.graph.owning_module
        inner = owner.get_submodule(str(module.target))
        assert isinstance(inner, fx.GraphModule)
        placeholders = [n for n in inner.graph.nodes if n.op == "placeholder"]
        for placeholder, argument in zip(placeholders, arguments, strict=True):
            self._follow(placeholder, argument)
        self.write(inner.graph)
        output = next(n for n in inner.graph.nodes if n.op == "output").args[0]
        self.seen[node] = [self._reference(n) if isinstance(n, fx.Node) else None for n in output]

    def _emit(self, node: Node, target: Node) -> None:
        value = node.meta.get("val")
        values = list(value) if isinstance(value, (list, tuple)) else [value]
        if not all(isinstance(item, torch.Tensor) for item in values):
            raise UnsupportedGraphError(f"{target} returns something that is not a tensor")
        names = [node.name if i == 0 else f"{node.name}.{i}" for i in range(len(values))]
        self.nodes.append(
            {
                "name": node.name,
                "op": str(target),
                "args": [self.argument(item) for item in node.args],
                "kwargs": {key: self.argument(item) for key, item in node.kwargs.items()},
                "outputs": [tensor_spec(name, item) for name, item in zip(names, values, strict=True)],
                "module_path": _module_path(node),
            }
        )
        self.seen[node] = {"ref": node.name, "index": 0}


def _schema(target: Node) -> torch.FunctionSchema | None:
    """The schema of an ATen operation, or None for any other callable."""
    return getattr(target, "_schema", None)


def _functional_twin(target: Node) -> Callable[..., object] | None:
    """`relu` for `relu_`, or None where ATen has no operation of that name and overload."""
    name = str(target).removeprefix("aten.").split(".")[0]
    if not name.endswith("_"):
        return None
    packet = getattr(torch.ops.aten, name[:-1], None)
    return getattr(packet, str(target).rsplit(".", 1)[1], None)


def _module_path(node: Node) -> str:
    stack = node.meta.get("nn_module_stack") or {}
    paths = [str(entry[0]) for entry in stack.values()]
    path = paths[-1] if paths else ""
    return path.removeprefix("L['self']").lstrip(".").split("@", 1)[0]


def drop_unused(nodes: list[Json], wanted: list[Json]) -> list[Json]:
    """The nodes that `wanted` values need, in order. Random operations stay: they move the generator."""
    live = {value["ref"] for value in wanted}
    kept: list[Json] = []
    for node in reversed(nodes):
        if node["name"] in live or _is_random(node["op"]):
            live.update(_references([node["args"], list(node["kwargs"].values())]))
            kept.append(node)
    return kept[::-1]


def _references(value: object) -> set[str]:
    if isinstance(value, dict):
        return {value["ref"]}
    if isinstance(value, list):
        return set[str]().union(*(_references(item) for item in value))
    return set()


def _is_random(op: str) -> bool:
    _, name, overload = op.split(".", 2)
    packet = getattr(torch.ops.aten, name, None)
    target = getattr(packet, overload, None)
    return target is not None and torch.Tag.nondeterministic_seeded in target.tags
