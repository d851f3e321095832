"""PyTorch's own operations where the program's kernels should do the work."""

import ast
from collections.abc import Iterator

from stitch_tools.judge.source.context import Scanned
from stitch_tools.judge.source.host import HostCall
from stitch_tools.judge.source.native_torch import hidden_operations, native_operations
from stitch_tools.judge.source.rule import Hit, Rule
from stitch_tools.judge.source.rules.common import calls_to, hit_in, is_hot
from stitch_tools.judge.source.scopes import Scope
from stitch_tools.judge.source.torch_names import OpKind, is_module, is_tensor_word, op_kind, op_of
from stitch_tools.judge.source.values import Const, Key, Known, Made, Member, Tensor, TensorMethod, order
from stitch_tools.judge.source.words import words
from stitch_tools.models import Severity

_COMPARISONS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)
_TESTS = (ast.If, ast.While, ast.Assert, ast.IfExp, ast.BoolOp)
_OPERATORS: dict[type[ast.AST], str] = {
    ast.MatMult: "matmul",
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.Pow: "pow",
    ast.Mod: "remainder",
    ast.USub: "neg",
    ast.Invert: "bitwise_not",
}
_COMPILERS = words("""
    torch.compile torch.jit.script torch.jit.trace torch.jit.freeze torch.jit.optimize_for_inference
    torch._dynamo.optimize torch._inductor.compile torch.export.export torch.fx.symbolic_trace
    torch.cuda.make_graphed_callables torch._inductor.aoti_compile_and_package
""")
_LIBRARIES = words("""
    numpy scipy jax tensorflow numba torchvision torchaudio transformers timm flash_attn xformers apex keras
    onnxruntime tensorrt torch_tensorrt cudnn einops opt_einsum
""")
_WEIGHT: dict[OpKind, Severity | None] = {"compute": "suspicious", "layout": "note", "free": None}


def operation(call: HostCall) -> tuple[str, str] | None:
    """The PyTorch operation that a call computes, and how its name was hidden; None for any other call."""
    for value in sorted(call.values, key=order):
        match value:
            case Known(path=path, hidden=hidden):
                name = op_of(path)
                if name is not None and op_kind(name) != "free":
                    return name, hidden
            case Made(path=path) if is_module(path):
                return path, ""
            case Member(path=path, name="forward") if is_module(path):
                return path, ""
            case TensorMethod(name=name, hidden=hidden) if op_kind(name) != "free":
                return name, hidden
            case _:
                pass
    if not call.values and is_tensor_word(call.method, sure=False):
        return call.method, ""
    return None


def kind_of(name: str) -> OpKind:
    """What the operation that `operation` named does."""
    return "compute" if name.startswith("torch.nn.") else op_kind(name)


def find_torch_ops(scanned: Scanned) -> Iterator[Hit]:
    """PyTorch operations in forward, in Python and in C++."""
    for call in scanned.host.calls:
        found = operation(call) if is_hot(scanned, call.scope) else None
        severity = _WEIGHT[kind_of(found[0])] if found is not None else None
        if found is not None and severity is not None:
            severity = "note" if _only_weights(scanned, call) else severity
            yield Hit(call.file, call.line, f"forward calls PyTorch's {found[0]}", severity)
        for name in _handed_on(scanned, call) if is_hot(scanned, call.scope) else ():
            yield Hit(call.file, call.line, f"forward hands PyTorch's {name} to another function")
    for scope in scanned.host.hot():
        for node in scope.nodes:
            name = _operator(scanned, node, scope)
            if name is not None:
                yield Hit(
                    scope.unit.file,
                    getattr(node, "lineno", 1),
                    f"forward computes {name} of tensors in PyTorch",
                )
    for unit, node, name in native_operations(scanned):
        severity = _WEIGHT[op_kind(name)]
        if severity is not None:
            yield Hit(unit.file, unit.line(node), f"the C++ code calls PyTorch's {name}", severity)


def _handed_on(scanned: Scanned, call: HostCall) -> Iterator[str]:
    """Operations among a call's arguments: `map(torch.relu, rows)`."""
    for part in call.node.args:
        if isinstance(part, ast.Name | ast.Attribute | ast.Call):
            for path in scanned.host.resolver.paths(part, call.scope):
                name = op_of(path)
                if (
                    name is not None
                    and op_kind(name) == "compute"
                    and "." not in name
                    and path.count(".") < 4
                ):
                    yield name


def _only_weights(scanned: Scanned, call: HostCall) -> bool:
    """Whether the operation sees nothing but parameters, buffers and constants."""
    parts = [*call.node.args, *(row.value for row in call.node.keywords)]
    tensors = [row.origin for row in call.values if isinstance(row, TensorMethod)]
    for part in parts:
        found = scanned.host.resolver.resolve(part, call.scope)
        if not all(isinstance(value, Const | Tensor) for value in found) or not found:
            return False
        tensors += [value.origin for value in found if isinstance(value, Tensor)]
    return bool(tensors) and all(origin == "weight" for origin in tensors)


def _operator(scanned: Scanned, node: ast.AST, scope: Scope) -> str | None:
    if isinstance(node, ast.BinOp):
        parts, operator = (node.left, node.right), node.op
    elif isinstance(node, ast.AugAssign):
        parts, operator = (node.target, node.value), node.op
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Invert):
        parts, operator = (node.operand,), node.op
    elif isinstance(node, ast.Compare) and isinstance(node.ops[0], _COMPARISONS):
        if isinstance(scope.unit.parents.get(node), _TESTS):
            return None  # asks for one truth, makes no tensor
        parts, operator = (node.left, *node.comparators), node.ops[0]
    else:
        return None
    name = _OPERATORS.get(type(operator), "a comparison" if isinstance(operator, _COMPARISONS) else None)
    resolve = scanned.host.resolver.resolve
    is_tensor = any(isinstance(value, Tensor) for part in parts for value in resolve(part, scope))
    return name if name is not None and (is_tensor or name == "matmul") else None


def find_other_libraries(scanned: Scanned) -> Iterator[Hit]:
    """Libraries of ready-made operations that forward computes with."""
    for call in scanned.host.calls:
        if not is_hot(scanned, call.scope):
            continue
        given = [
            value for part in call.node.args for value in scanned.host.resolver.resolve(part, call.scope)
        ]
        paths = [*call.paths, *(value.path for value in call.values if isinstance(value, Made | Member))]
        path = next((row for row in paths if row.split(".")[0] in _LIBRARIES), None)
        if path is not None and any(
            isinstance(value, Tensor | Made) or value == Key("value") for value in given
        ):
            yield Hit(call.file, call.line, f"forward computes with {path}")


def find_hidden_ops(scanned: Scanned) -> Iterator[Hit]:
    """PyTorch operations whose name is hidden."""
    for call in scanned.host.calls:
        found = operation(call)
        if found is not None and found[1] and kind_of(found[0]) == "compute":
            message = f"PyTorch's {found[0]} is called through {found[1]}, not by its name"
            yield hit_in(scanned, call.scope, call.node, message)
    for unit, node, what in hidden_operations(scanned):
        yield Hit(unit.file, unit.line(node), f"the C++ code looks up {what}")


def find_compilers(scanned: Scanned) -> Iterator[Hit]:
    """Other compilers of PyTorch code."""
    for call, path in calls_to(scanned, _COMPILERS):
        yield hit_in(scanned, call.scope, call.node, f"{path} hands the work to a compiler of PyTorch's")
    for scope in scanned.host.scopes():
        for node in scope.nodes:
            for row in getattr(node, "decorator_list", []):
                expr = row.func if isinstance(row, ast.Call) else row
                paths = set(scanned.host.resolver.paths(expr, scope)) & _COMPILERS
                for path in sorted(paths):
                    yield hit_in(scanned, scope, row, f"{path} hands the work to a compiler of PyTorch's")


RULES = (
    Rule(
        "torch_op_in_forward",
        "suspicious",
        "Forward, or C++ code that it calls, uses an operation of PyTorch's to compute. Operations that "
        "only move "
        "data or draw random numbers are notes; allocations and views are nothing.",
        "The share of PyTorch's time is measured when the program runs. Move the operation into a kernel.",
        find_torch_ops,
    ),
    Rule(
        "other_library_in_forward",
        "suspicious",
        "Forward computes with a library of ready-made operations: numpy, scipy, torchvision, ...",
        "Move the operation into a kernel, or call a vendor library from the program's own code.",
        find_other_libraries,
    ),
    Rule(
        "hidden_torch_op",
        "suspicious",
        "A PyTorch operation is reached by getattr, `__import__`, `__dict__`, eval or the operator module "
        "instead of its name, or by C++ code through the dispatcher or Python.",
        "Call it by its name; who did the work is measured when the program runs.",
        find_hidden_ops,
    ),
    Rule(
        "torch_compiler",
        "suspicious",
        "torch.compile, TorchScript or a graph of PyTorch's own makes the code that runs.",
        "Those are baselines here: write the kernels in the program.",
        find_compilers,
    ),
)
