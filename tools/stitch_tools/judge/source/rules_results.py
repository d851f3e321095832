"""Results of an earlier call that forward may return again."""

import ast
from collections.abc import Iterator

from tree_sitter import Node

from stitch_tools.judge.source.cuda_source import CudaSource, identifiers, text_of
from stitch_tools.judge.source.program import RuleHit, ScannedProgram, SourceRule
from stitch_tools.judge.source.python_names import holder_of
from stitch_tools.judge.source.python_scopes import PythonFile, Scope
from stitch_tools.judge.source.torch_names import is_constant_maker
from stitch_tools.judge.source.words import words

_MEMO = words("functools.lru_cache functools.cache")
_MAX_RETURNS = 20
_MAX_DEPTH = 3
_UNCHANGED = words("get pop setdefault clone detach contiguous view reshape to expand_as")
"""Methods that give a stored result back, or a copy of it."""
_QUESTIONS = _UNCHANGED | words("data_ptr is_contiguous size numel dim keys items")
"""Methods that write nothing into a stored tensor."""


def find_kept_results(program: ScannedProgram) -> Iterator[RuleHit]:
    """Stored results that forward returns, results that functools keeps, tensors that C++ code keeps."""
    answering = _answering(program)
    for file in program.python.files:
        for scope in file.scopes:
            if scope in program.python.hot and scope.name in answering:
                yield from _kept_in_python(program, file, scope)
    for source in program.cuda:
        for node in source.of("declaration"):
            yield from _kept_in_cuda(source, node)


def _kept_in_python(program: ScannedProgram, file: PythonFile, scope: Scope) -> Iterator[RuleHit]:
    stores = [
        node for node in scope.nodes if isinstance(node, ast.Assign) and _is_computed(node.value, scope)
    ]
    answers = [node for node in scope.nodes if isinstance(node, ast.Return)] if stores else []
    for answer in answers[:_MAX_RETURNS]:
        slot = _slot(answer.value, scope)
        rows = [row for row in stores if slot is not None and slot in _stored(row, scope)]
        if slot is not None and rows and _may_be_old(file, scope, answer, slot, rows):
            message = f"{scope.name} may return what an earlier call stored in {slot}"
            yield RuleHit(file.path, answer.lineno, message)
    rows = [] if isinstance(scope.node, ast.Module) else scope.node.decorator_list
    for row in rows:
        function = row.func if isinstance(row, ast.Call) else row
        if _MEMO & set(program.python.names.paths(function, scope.parent or scope)):
            yield RuleHit(file.path, row.lineno, f"the results of {scope.name} are remembered")


def _answering(program: ScannedProgram) -> set[str]:
    """Names of functions whose result may be forward's: forward, and what it returns the call of."""
    found = {"forward", "__call__"}
    for node, scope in program.python.of(ast.Return):
        if scope in program.python.hot and scope.name in found and isinstance(node.value, ast.Call):
            function = node.value.func
            found.add(function.id if isinstance(function, ast.Name) else getattr(function, "attr", ""))
    return found


def _slot(expr: ast.expr | None, scope: Scope, depth: int = 0) -> str | None:
    """`self.x`, or the name outside of this function, whose content the expression is."""
    match expr:
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            return f"self.{name}"
        case ast.Subscript(value=base):
            return _slot(base, scope, depth)
        case ast.Call(func=ast.Attribute(value=base, attr=method)) if method in _UNCHANGED:
            return _slot(base, scope, depth)
        case ast.Name(id=name):
            bindings = scope.names.get(name)
            if bindings is None:
                return name if holder_of(name, scope) is not None else None
            found = [
                _slot(row, scope, depth + 1) for row in bindings if isinstance(row, ast.expr) and depth < 3
            ]
            return next((slot for slot in found if slot is not None), None)
        case _:
            return None


def _stored(node: ast.Assign, scope: Scope) -> set[str | None]:
    """Slots that outlive the call, of those that the statement stores in."""
    is_local = [isinstance(part, ast.Name) and part.id in scope.names for part in node.targets]
    return {_slot(part, scope) for part, local in zip(node.targets, is_local, strict=True) if not local}


def _may_be_old(
    file: PythonFile, scope: Scope, answer: ast.Return, slot: str, stores: list[ast.Assign]
) -> bool:
    """Whether this return is reached without one of the stores, and without a call that fills the slot."""
    branch = _branch(file, scope, answer)
    if branch is None and any(_branch(file, scope, store) is None for store in stores):
        return False
    inside = {node for store in (*stores, answer) for node in ast.walk(store)}
    others = ast.walk(branch) if branch is not None else iter(scope.nodes)
    return not any(node not in inside and _fills(node, scope, slot) for node in others)


def _is_computed(value: ast.expr, scope: Scope) -> bool:
    """Whether the value is that of a call which does more than allocate memory."""
    if isinstance(value, ast.Name):
        rows = scope.names.get(value.id, ())
        return any(isinstance(row, ast.Call) and _is_computed(row, scope) for row in rows)
    function = value.func if isinstance(value, ast.Call) else None
    name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
    return function is not None and not is_constant_maker(name)


def _branch(file: PythonFile, scope: Scope, node: ast.AST) -> ast.AST | None:
    """The innermost conditional statement around a node in this function."""
    for outer in file.ancestors(node):
        if outer is scope.node or isinstance(outer, ast.If | ast.Try | ast.Match | ast.While):
            return None if outer is scope.node else outer
    return None


def _fills(node: ast.AST, scope: Scope, slot: str) -> bool:
    """Whether a call may write into what the slot holds: `run(x, self.out)`, `self.out.copy_(x)`."""
    if not isinstance(node, ast.Call):
        return False
    method = node.func if isinstance(node.func, ast.Attribute) else None
    if method is not None and method.attr == "replay":
        return True  # of a graph, which writes where it was captured to write
    if method is not None and _slot(method.value, scope) == slot:
        return method.attr not in _QUESTIONS
    return any(_slot(part, scope) == slot for part in node.args)


def _kept_in_cuda(source: CudaSource, node: Node) -> Iterator[RuleHit]:
    """Static or global tensors, and maps of them."""
    kind = text_of(node.child_by_field_name("type"))
    is_static = any(text_of(row) == "static" for row in node.children)
    # `torch::Tensor scale(torch::Tensor x);` declares a function, and `TensorMap` is no tensor.
    is_function = any(row.type == "function_declarator" for row in node.named_children)
    is_tensor = any(name.rpartition("::")[2] == "Tensor" for name in identifiers(kind))
    if is_tensor and not is_function and (is_static or node.id not in source.owners):
        by_address = "map<" in kind and "*" in kind.partition("<")[2].partition(",")[0]
        # Scratch memory that is kept looks like a result that is kept, unless it is found by an address.
        severity = "suspicious" if by_address else "note"
        yield RuleHit(source.file, source.line(node), "tensors are kept between calls", severity)


RULES = (
    SourceRule(
        "result_kept",
        "suspicious",
        "Forward may return a tensor that an earlier call stored in the module or in a global, whatever it "
        "is found by, or functools keeps results. Also tensors that C++ code keeps by address; other "
        "lasting tensors of C++ are a note.",
        "Compute every output in every call; whether a result is stale is tried with changed inputs.",
        find_kept_results,
    ),
)
