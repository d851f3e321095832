"""The reference inside the program: its file, its class, a copy of its code."""

import ast
from collections.abc import Iterator
from pathlib import PurePosixPath

from tree_sitter import Node

from stitch_tools.judge.source.context import Scanned
from stitch_tools.judge.source.host import ENTRY, HostCall
from stitch_tools.judge.source.native import text_of
from stitch_tools.judge.source.rule import Hit, Rule
from stitch_tools.judge.source.rules.common import hit_in, is_hot
from stitch_tools.judge.source.rules.torch_ops import kind_of, operation
from stitch_tools.judge.source.scopes import FunctionNode, Scope, parse_python
from stitch_tools.judge.source.values import Instance, Known, Local
from stitch_tools.judge.source.words import words

_OPENERS = words("""
    builtins.open io.open os.open codecs.open linecache.getlines linecache.getline pathlib.Path
    pathlib.PurePath runpy.run_path importlib.util.spec_from_file_location numpy.fromfile shutil.copy
    shutil.copyfile tokenize.open os.popen os.system
""")


def reference_calls(scanned: Scanned) -> Iterator[HostCall]:
    """Calls of the reference, or of methods of a class that it is."""
    owners = _reference_classes(scanned)
    for call in scanned.host.calls:
        for value in call.values:
            local = value.of if isinstance(value, Instance) else value
            if isinstance(local, Local) and (local.scope in owners or local.scope.owner in owners):
                yield call
                break
            if isinstance(value, Known) and _is_reference_name(scanned, value.path):
                yield call
                break


def _reference_classes(scanned: Scanned) -> set[Scope]:
    entry, source = scanned.reference.entry, scanned.reference.source
    found: set[Scope] = set()
    for unit in scanned.host.units:
        is_copy = source is not None and scanned.files.get(unit.file) == source
        for scope in unit.scopes:
            is_class = isinstance(scope.node, ast.ClassDef)
            is_named = (is_class or isinstance(scope.node, ast.FunctionDef)) and scope.name == entry
            if scope not in scanned.host.entries and (is_named or (is_copy and is_class)):
                found.add(scope)
    return found


def _is_reference_name(scanned: Scanned, path: str) -> bool:
    parts = path.split(".")
    if parts[0] in ("torch", "builtins", "numpy", "triton", "ctypes"):
        return False
    stem = PurePosixPath(scanned.reference.path or "").stem
    return scanned.reference.entry in parts[1:] or (bool(stem) and parts[0] == stem)


def find_reference_in_forward(scanned: Scanned) -> Iterator[Hit]:
    """Forward that runs the reference."""
    for call in reference_calls(scanned):
        if is_hot(scanned, call.scope):
            yield hit_in(scanned, call.scope, call.node, "forward calls the reference")
    for scope in _reference_classes(scanned):
        for method in scanned.host.hot():
            if method.owner is scope and method.name == "forward":
                yield hit_in(scanned, method, method.node, "forward is the reference's own")
    for scope, node in _heirs(scanned):
        yield hit_in(scanned, scope, node, "forward is inherited from the reference")


def _heirs(scanned: Scanned) -> Iterator[tuple[Scope, ast.AST]]:
    """Where `ModelNew` is the reference itself, or a class that leaves forward to it."""
    resolver = scanned.host.resolver
    for entry in scanned.host.entries:
        if not isinstance(entry.node, ast.ClassDef) or _own_forward(scanned, entry):
            continue
        outer = entry.parent or entry
        for base in entry.node.bases:
            if any(_is_reference_name(scanned, path) for path in resolver.paths(base, outer)):
                yield outer, base
    for unit in scanned.host.units:
        for value in resolver.name(ENTRY, unit.module):
            if isinstance(value, Known) and _is_reference_name(scanned, value.path):
                yield unit.module, unit.tree


def _own_forward(scanned: Scanned, entry: Scope) -> bool:
    return "forward" in entry.names or "forward" in scanned.host.resolver.slots.get(entry, {})


def find_reference_use(scanned: Scanned) -> Iterator[Hit]:
    """The reference outside forward: constructed, subclassed or imported."""
    for call in reference_calls(scanned):
        if not is_hot(scanned, call.scope):
            yield hit_in(scanned, call.scope, call.node, "the reference is constructed or called", "note")
    owners = _reference_classes(scanned)
    for scope in scanned.host.scopes():
        if not isinstance(scope.node, ast.ClassDef) or scope.parent is None:
            continue
        for base in scope.node.bases:
            for value in scanned.host.resolver.resolve(base, scope.parent):
                is_local = isinstance(value, Local) and value.scope in owners
                if is_local or (isinstance(value, Known) and _is_reference_name(scanned, value.path)):
                    yield hit_in(scanned, scope.parent, base, "the reference is a base class", "note")


def find_copies(scanned: Scanned) -> Iterator[Hit]:
    """Functions on the hot path that are the reference's word for word and compute with PyTorch."""
    wanted = _function_bodies(scanned.reference.source)
    if not wanted:
        return
    computing = {
        call.scope
        for call in scanned.host.calls
        if (found := operation(call)) is not None and kind_of(found[0]) == "compute"
    }
    for scope in scanned.host.hot():
        node = scope.node
        if scope in computing and not isinstance(node, ast.Module | ast.ClassDef) and _body(node) in wanted:
            yield hit_in(scanned, scope, node, f"{scope.name} is the reference's code, word for word")


def _function_bodies(source: bytes | None) -> set[str]:
    if source is None:
        return set()
    try:
        tree = parse_python(source.decode("utf-8", "replace"))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    return {_body(node) for node in ast.walk(tree) if isinstance(node, FunctionNode)}


def _body(node: FunctionNode) -> str:
    """The statements as text, without docstring and positions."""
    statements = node.body if isinstance(node.body, list) else [node.body]
    kept = [
        row
        for row in statements
        if not (isinstance(row, ast.Expr) and isinstance(row.value, ast.Constant) and len(statements) > 1)
    ]
    try:
        return "\n".join(ast.dump(row) for row in kept)
    except RecursionError:
        return ""


def find_reference_reads(scanned: Scanned) -> Iterator[Hit]:
    """The reference's file, opened."""
    path = scanned.reference.path
    if path is None:
        return
    name = PurePosixPath(path).name
    if any(PurePosixPath(file).name == name for file in scanned.files):
        return
    for call in scanned.host.calls:
        if not set(call.paths) & _OPENERS and call.method not in (
            "read_text",
            "read_bytes",
            "open",
            "joinpath",
        ):
            continue
        for part in call.node.args:
            text = scanned.host.resolver.text(part, call.scope)
            if text is not None and PurePosixPath(text).name == name:
                yield hit_in(scanned, call.scope, call.node, f"{text} is the reference's file", "fatal")
    for unit in scanned.native:
        for call in unit.calls:
            if call.short in ("fopen", "open", "open64", "ifstream", "fopen64") and _names(
                call.arguments, name
            ):
                yield Hit(unit.file, unit.line(call.node), f"{name} is the reference's file")


def _names(arguments: list[Node], name: str) -> bool:
    return any(text_of(part).endswith((f'/{name}"', f'"{name}"')) for part in arguments)


RULES = (
    Rule(
        "reads_reference",
        "fatal",
        "The program opens the reference's file.",
        "A program needs its own files only.",
        find_reference_reads,
    ),
    Rule(
        "reference_in_forward",
        "suspicious",
        "Forward calls the reference, or is its forward.",
        "Compute with the program's own kernels; who did the work is measured when the program runs.",
        find_reference_in_forward,
    ),
    Rule(
        "reference_copied",
        "suspicious",
        "A function that forward reaches is the reference's, word for word, and computes with PyTorch.",
        "Compute with the program's own kernels.",
        find_copies,
    ),
    Rule(
        "reference_used",
        "note",
        "The reference is subclassed or constructed outside forward, as a program does that wants equal "
        "weights.",
        "Nothing, where forward does not call it.",
        find_reference_use,
    ),
)
