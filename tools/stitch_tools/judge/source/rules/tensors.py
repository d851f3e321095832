"""Outputs that are no plain tensors."""

import ast
from collections.abc import Iterator

from stitch_tools.judge.source.context import Scanned
from stitch_tools.judge.source.rule import Hit, Rule
from stitch_tools.judge.source.rules.common import hit_in

_BASES = ("torch.Tensor", "torch.nn.Parameter", "torch.utils._python_dispatch.TorchDispatchMode")
_MODES = ("torch.overrides.TorchFunctionMode",)
_MAKERS = ("torch.Tensor._make_subclass", "torch.Tensor._make_wrapper_subclass", "torch.Tensor.as_subclass")
_HOOKS = ("__torch_function__", "__torch_dispatch__")


def find_subclasses(scanned: Scanned) -> Iterator[Hit]:
    """Tensor subclasses and modes: their work can wait until somebody looks."""
    for scope in scanned.host.scopes():
        if isinstance(scope.node, ast.ClassDef) and scope.parent is not None:
            bases = [
                path for row in scope.node.bases for path in scanned.host.resolver.paths(row, scope.parent)
            ]
            if any(path in _BASES + _MODES for path in bases):
                yield hit_in(
                    scanned, scope.parent, scope.node, f"{scope.name} is a kind of tensor of its own"
                )
        elif scope.name in _HOOKS:
            yield hit_in(scanned, scope, scope.node, f"{scope.name} decides what operations on the result do")
    for call in scanned.host.calls:
        if any(path in _MAKERS for path in call.paths) or call.method in ("as_subclass", "_make_subclass"):
            yield hit_in(scanned, call.scope, call.node, "a tensor of another class is made")


RULES = (
    Rule(
        "tensor_subclass",
        "suspicious",
        "A class stands in for a tensor, or intercepts operations: work could be put off until the result "
        "is read.",
        "Return plain tensors; the check refuses other types.",
        find_subclasses,
    ),
)
