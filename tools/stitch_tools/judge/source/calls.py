"""What a call gives: the resolver's half that follows functions, hidden names and tensor methods."""

import ast
from typing import TYPE_CHECKING

from stitch_tools.judge.source.constants import MAX_CHARS, fold_call, fold_method
from stitch_tools.judge.source.scopes import Scope
from stitch_tools.judge.source.torch_names import is_constant_maker, op_of
from stitch_tools.judge.source.values import (
    NOTHING,
    Const,
    Container,
    Getter,
    Instance,
    Key,
    Known,
    Local,
    Made,
    Member,
    Namespace,
    Tensor,
    TensorMethod,
    Value,
    Values,
)
from stitch_tools.judge.source.words import words

if TYPE_CHECKING:
    from stitch_tools.judge.source.resolver import Resolver

EXTENSION_MAKERS = words("""
    torch.utils.cpp_extension.load_inline torch.utils.cpp_extension.load ctypes.CDLL ctypes.PyDLL
    ctypes.cdll.LoadLibrary cupy.RawModule cupy.RawKernel cffi.FFI tvm_ffi.load_module
    tvm_ffi.cpp.load_inline torch.cuda._compile_kernel
""")
WRAPPERS = words("""
    torch.compile torch.jit.script torch.jit.trace torch.jit.ignore torch.cuda.make_graphed_callables
    torch.no_grad torch.inference_mode functools.partial functools.wraps functools.lru_cache functools.cache
    staticmethod classmethod builtins.staticmethod builtins.classmethod builtins.property
""")
"""Calls that give their first argument back in another coat."""

_POINTERS = words("data_ptr storage untyped_storage _cdata const_data_ptr")
_SHAPES = words("size numel nelement dim ndimension stride element_size is_contiguous get_device")
_READS = words("item tolist numpy tobytes equal allclose __hash__")
_VALUE_READERS = words("""
    torch.equal torch.allclose torch.hash_tensor builtins.float builtins.int builtins.bool builtins.sum
    hashlib.md5 hashlib.sha1 hashlib.sha256 hashlib.blake2b zlib.crc32 zlib.adler32 builtins.bytes
""")


def call(resolver: "Resolver", node: ast.Call, scope: Scope) -> Values:
    """All that the call may give."""
    found: set[Value] = set()
    for function in resolver.resolve(node.func, scope):
        found |= _one(resolver, node, scope, function)
    folded = _folded_method(resolver, node, scope)
    return frozenset(found | folded)


def _one(resolver: "Resolver", node: ast.Call, scope: Scope, function: Value) -> Values:
    match function:
        case Known(path=path):
            return _known(resolver, node, scope, path)
        case Local(scope=inner):
            if isinstance(inner.node, ast.ClassDef):
                return frozenset([Instance(function)])
            return resolver.returned(inner)
        case Instance(of=local):
            return _called_object(resolver, local)
        case TensorMethod(name=name, origin=origin):
            return _tensor_method(name, origin)
        case Member(path=path) if path in EXTENSION_MAKERS:
            return frozenset([Tensor("result")])
        case Member(path=path, name=name):
            return frozenset([Made(f"{path}.{name}")])
        case Made(path=path):
            is_tensor = path.startswith("torch.nn.") or path in EXTENSION_MAKERS
            return frozenset([Tensor("result") if is_tensor else Made(path)])
        case Getter():
            return _getter(resolver, node, scope, function)
        case _:
            return NOTHING


def _called_object(resolver: "Resolver", local: Local) -> Values:
    found: set[Value] = set()
    for name in ("forward", "__call__"):
        for method in resolver.slot(local.scope, name):
            if isinstance(method, Local):
                found |= resolver.returned(method.scope)
    return frozenset(found)


def _known(resolver: "Resolver", node: ast.Call, scope: Scope, path: str) -> Values:
    first = node.args[0] if node.args else None
    special = _SPECIAL.get(path)
    if special is not None:
        return special(resolver, node, scope)
    if path in WRAPPERS and first is not None:
        return resolver.resolve(first, scope)
    given = resolver.resolve(first, scope)
    if path in ("builtins.id", "builtins.hash", "weakref.ref"):
        return frozenset([Key("pointer" if path != "builtins.hash" else "value")])
    if path in _VALUE_READERS and any(isinstance(value, Tensor | Key | Made) for value in given):
        return frozenset([Key("value")])
    if path in ("builtins.tuple", "builtins.list", "builtins.str", "builtins.iter", "builtins.next"):
        kept = frozenset(value for value in given if isinstance(value, Key | Container | Tensor))
        if kept:
            return kept
    folded = fold_call(path, [resolver.constant(item, scope) for item in node.args])
    if folded is not None:
        return frozenset([folded])
    return _library(path)


def _library(path: str) -> Values:
    if path in ("torch.nn.Parameter", "torch.nn.parameter.Parameter"):
        return frozenset([Tensor("weight")])
    name = op_of(path)
    if name is None or path.startswith(("torch.no_grad", "torch.inference_mode", "torch.compile")):
        return frozenset([Made(path)])
    return frozenset([Tensor("buffer" if is_constant_maker(name) else "result")])


def _tensor_method(name: str, origin: str) -> Values:
    if name in _POINTERS:
        return frozenset([Key("pointer")])
    if name in _SHAPES:
        return frozenset([Key("shape")])
    if name in _READS:
        return frozenset([Key("value")])
    if is_constant_maker(name):
        return frozenset([Tensor("buffer")])
    return frozenset([Tensor("weight" if origin == "weight" else "result")])


def _getattr(resolver: "Resolver", node: ast.Call, scope: Scope) -> Values:
    if len(node.args) < 2:
        return NOTHING
    name = resolver.text(node.args[1], scope)
    if name is None:
        return frozenset([Made("builtins.getattr")])
    found: set[Value] = set()
    for part in resolver.resolve(node.args[0], scope):
        found |= resolver.attribute(part, name, "getattr")
    if len(node.args) > 2:
        found |= resolver.resolve(node.args[2], scope)
    return frozenset(found)


def _import(resolver: "Resolver", node: ast.Call, scope: Scope) -> Values:
    name = resolver.text(node.args[0] if node.args else None, scope)
    if name is None:
        return frozenset([Made("builtins.__import__")])
    is_builtin = any(path == "builtins.__import__" for path in resolver.paths(node.func, scope))
    # __import__("a.b") gives a, unless names are asked for.
    path = name.split(".")[0] if is_builtin and len(node.args) < 4 else name
    return resolver.normal(Known(path, "__import__" if is_builtin else "importlib"))


def _namespace(resolver: "Resolver", node: ast.Call, scope: Scope) -> Values:
    if not node.args:
        return frozenset([Namespace(None)])
    return frozenset(Namespace(value) for value in resolver.resolve(node.args[0], scope))


def _operator_getter(resolver: "Resolver", node: ast.Call, scope: Scope) -> Values:
    name = resolver.text(node.args[0] if node.args else None, scope)
    if name is None:
        return NOTHING
    return frozenset([Getter(name, "operator.methodcaller" in resolver.paths(node.func, scope))])


def _getter(resolver: "Resolver", node: ast.Call, scope: Scope, getter: Getter) -> Values:
    found = got(resolver, node, scope, getter)
    if not getter.calls:
        return found
    given: set[Value] = set()
    for value in found:
        given |= _one(resolver, node, scope, value)
    return frozenset(given)


def got(resolver: "Resolver", node: ast.Call, scope: Scope, getter: Getter) -> Values:
    """What `attrgetter(name)(x)` gives and `methodcaller(name)(x)` calls."""
    found: set[Value] = set(resolver.resolve(node.args[0] if node.args else None, scope))
    for part in getter.name.split("."):
        step: set[Value] = set()
        for value in found:
            step |= resolver.attribute(value, part, "operator")
        found = step
    return frozenset(found)


def _eval(resolver: "Resolver", node: ast.Call, scope: Scope) -> Values:
    found = resolver.resolve(resolver.evaluated.get(node), scope)
    return frozenset(Known(value.path, "eval") if isinstance(value, Known) else value for value in found)


def _super(resolver: "Resolver", node: ast.Call, scope: Scope) -> Values:
    """The bases of the class around: only what is the program's own, or the reference, matters."""
    owner = scope.owner
    if owner is None or not isinstance(owner.node, ast.ClassDef):
        return NOTHING
    found: set[Value] = set()
    for base in owner.node.bases:
        for value in resolver.resolve(base, owner.parent or owner):
            found.add(Instance(value) if isinstance(value, Local) else value)
    return frozenset(found)


def _type(resolver: "Resolver", node: ast.Call, scope: Scope) -> Values:
    given = resolver.resolve(node.args[0] if len(node.args) == 1 else None, scope)
    if any(isinstance(value, Tensor) for value in given):
        return frozenset([Known("torch.Tensor", "type")])
    return frozenset(value.of for value in given if isinstance(value, Instance)) or frozenset(
        [Made("builtins.type")]
    )


def _modules(resolver: "Resolver", node: ast.Call, scope: Scope) -> Values:
    """nn.Sequential and its kin: calling or iterating one means its parts."""
    found: set[Value] = set()
    for part in node.args:
        given = resolver.resolve(part, scope)
        found |= {value for value in given if not isinstance(value, Container)}
        found |= resolver.items(frozenset(value for value in given if isinstance(value, Container)), None)
    return frozenset(found)


def _first_argument(resolver: "Resolver", node: ast.Call, scope: Scope) -> Values:
    return resolver.resolve(node.args[0], scope) if node.args else NOTHING


def _join_text(resolver: "Resolver", node: ast.Call, scope: Scope, separator: str) -> Values:
    parts: list[str] = []
    for value in resolver.resolve(node.args[0], scope):
        if isinstance(value, Container) and not isinstance(value.node, ast.Dict):
            texts = [resolver.text(item, value.scope) for item in value.node.elts[:4096]]
            size = sum(len(text or "") + len(separator) for text in texts)
            if any(text is None for text in texts) or size > MAX_CHARS:
                return NOTHING
            parts.append(separator.join(text or "" for text in texts))
    return frozenset([Const(parts[0])]) if len(parts) == 1 else NOTHING


def _folded_method(resolver: "Resolver", node: ast.Call, scope: Scope) -> Values:
    """A method of a constant text, or `get` of a namespace."""
    if not isinstance(node.func, ast.Attribute):
        return NOTHING
    name, found = node.func.attr, set[Value]()
    for value in resolver.resolve(node.func.value, scope):
        if (
            isinstance(value, Const)
            and isinstance(value.value, str)
            and name == "join"
            and len(node.args) == 1
        ):
            found |= _join_text(resolver, node, scope, value.value)
        elif isinstance(value, Const) and isinstance(value.value, str | bytes):
            folded = fold_method(value.value, name, [resolver.constant(item, scope) for item in node.args])
            found |= {folded} if folded else set()
        elif name in ("get", "pop", "setdefault", "__getitem__") and node.args:
            key = resolver.text(node.args[0], scope)
            if isinstance(value, Namespace) and key is not None:
                found |= resolver.lookup(value, key, scope)
            found |= resolver.stored_items(node.func.value, scope)
        elif name in ("__getattribute__", "__getattr__") and node.args:
            key = resolver.text(node.args[-1], scope)
            owners = resolver.resolve(node.args[0], scope) if len(node.args) == 2 else frozenset([value])
            for owner in owners if key is not None else ():
                found |= resolver.attribute(owner, key or "", name)
    return frozenset(found)


_SPECIAL = {
    "builtins.getattr": _getattr,
    "inspect.getattr_static": _getattr,
    "builtins.__import__": _import,
    "importlib.import_module": _import,
    "importlib.__import__": _import,
    "builtins.globals": _namespace,
    "builtins.vars": _namespace,
    "builtins.locals": _namespace,
    "operator.attrgetter": _operator_getter,
    "operator.methodcaller": _operator_getter,
    "builtins.eval": _eval,
    "builtins.super": _super,
    "builtins.compile": _first_argument,
    "functools.partialmethod": _first_argument,
    "builtins.type": _type,
    "torch.nn.Sequential": _modules,
    "torch.nn.ModuleList": _modules,
    "torch.nn.ModuleDict": _modules,
}
