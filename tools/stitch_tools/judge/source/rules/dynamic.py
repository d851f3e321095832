"""Code and names that cannot be known before the program runs."""

import ast
from collections.abc import Iterator

from stitch_tools.judge.source.context import Scanned
from stitch_tools.judge.source.rule import Hit, Rule
from stitch_tools.judge.source.rules.common import calls_to, hit_in, is_hot
from stitch_tools.judge.source.values import Known, Namespace, Tensor
from stitch_tools.judge.source.words import words

_EXECUTORS = words("builtins.exec builtins.eval builtins.compile")
_LOADERS = words("""
    marshal.loads marshal.load pickle.loads pickle.load dill.loads types.FunctionType types.CodeType
    builtins.breakpoint runpy.run_path runpy.run_module
""")


def find_dynamic_code(scanned: Scanned) -> Iterator[Hit]:
    """`exec` and its kin; a note where the text is constant and was read like any other."""
    followed = {node for node, _ in scanned.host.executed}
    for call, path in calls_to(scanned, _EXECUTORS | _LOADERS):
        inner = call.node.args[0] if call.node.args else None
        is_constant = path != "builtins.exec" and scanned.host.resolver.text(inner, call.scope) is not None
        known = call.node in followed or (is_constant and path in _EXECUTORS)
        message = f"{path.removeprefix('builtins.')} runs code that does not stand in the file as code"
        yield hit_in(scanned, call.scope, call.node, message, "note" if known else "suspicious")


def find_dynamic_names(scanned: Scanned) -> Iterator[Hit]:
    """Attributes of modules or tensors by a name that is computed."""
    resolver = scanned.host.resolver
    for call, _ in calls_to(scanned, frozenset(("builtins.getattr",))):
        if len(call.node.args) < 2 or resolver.text(call.node.args[1], call.scope) is not None:
            continue
        base = resolver.resolve(call.node.args[0], call.scope)
        if any(_is_torch(value) for value in base):
            message = "the name that getattr asks torch for is computed: it cannot be known here"
            yield hit_in(
                scanned,
                call.scope,
                call.node,
                message,
                "suspicious" if is_hot(scanned, call.scope) else "note",
            )
    for call, path in calls_to(scanned, frozenset(("builtins.__import__", "importlib.import_module"))):
        if resolver.text(call.node.args[0] if call.node.args else None, call.scope) is None:
            yield hit_in(scanned, call.scope, call.node, f"{path} imports a module whose name is computed")
    for scope in scanned.host.scopes():
        for node in scope.nodes:
            if isinstance(node, ast.Subscript) and resolver.text(node.slice, scope) is None:
                values = resolver.resolve(node.value, scope)
                if any(isinstance(value, Namespace) and _names_torch(value) for value in values):
                    yield hit_in(
                        scanned, scope, node, "a name is looked up in a module's dictionary by a computed key"
                    )


def _is_torch(value: object) -> bool:
    return isinstance(value, Tensor) or (isinstance(value, Known) and value.path.split(".")[0] == "torch")


def _names_torch(value: Namespace) -> bool:
    return value.of is None or _is_torch(value.of)


RULES = (
    Rule(
        "dynamic_code",
        "suspicious",
        "exec, eval, compile, marshal, pickle or a function object made from bytes runs code that is no "
        "code in "
        "the file. A constant text is read as code, and the call is a note.",
        "Write the code out.",
        find_dynamic_code,
    ),
    Rule(
        "dynamic_name",
        "suspicious",
        "A function of torch, or a module, is looked up by a name that is computed.",
        "Write the name out.",
        find_dynamic_names,
    ),
)
