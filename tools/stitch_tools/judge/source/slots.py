"""Attributes that code sets on `self`, on classes and in their dictionaries."""

import ast
from collections.abc import Iterable

from stitch_tools.judge.source.resolver import Resolver
from stitch_tools.judge.source.scopes import Binding, Scope, Unit
from stitch_tools.judge.source.values import Instance, Local, Tensor

_REGISTERING = frozenset(("register_buffer", "register_parameter", "add_module", "register_module"))
_ADDING = frozenset(("append", "setdefault", "insert"))


def collect_slots(resolver: Resolver, units: Iterable[Unit]) -> None:
    """Record what is set on `self` and on classes, by attribute name."""
    for scope in (scope for unit in units for scope in unit.scopes):
        for node in scope.nodes:
            match node:
                case ast.Assign(targets=targets, value=value):
                    for target in targets:
                        _set(resolver, target, value, scope)
                case ast.AnnAssign(target=target, value=ast.expr() as value):
                    _set(resolver, target, value, scope)
                case ast.AugAssign(target=target, value=value):
                    _set(resolver, target, value, scope)
                case ast.Call():
                    _set_by_call(resolver, node, scope)
                case _:
                    pass


def _set(
    resolver: Resolver, target: ast.expr, value: ast.expr, scope: Scope, index: int | None = None
) -> None:
    match target:
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            for place, part in enumerate(parts):
                _set(resolver, part, value, scope, place)
        case ast.Attribute(value=base, attr=name):
            _add_slot(resolver, base, name, Binding(value, scope, index=index), scope)
        case ast.Subscript(value=ast.Attribute(value=base, attr=name)):
            if name == "__dict__":
                key = target.slice
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    _add_slot(resolver, base, key.value, Binding(value, scope, index=index), scope)
            else:
                _add_slot(resolver, base, name, Binding(value, scope, "item", index=index), scope)
        case _:
            pass


def _set_by_call(resolver: Resolver, node: ast.Call, scope: Scope) -> None:
    """`setattr(x, "name", v)`, `self.register_buffer("name", v)`, `self.rows.append(v)`."""
    function = node.func
    if isinstance(function, ast.Name) and function.id == "setattr" and len(node.args) == 3:
        name = resolver.text(node.args[1], scope)
        if name is not None:
            _add_slot(resolver, node.args[0], name, Binding(node.args[2], scope), scope)
    elif isinstance(function, ast.Attribute) and len(node.args) >= 2 and function.attr in _REGISTERING:
        name = resolver.text(node.args[0], scope)
        if name is not None:
            _add_slot(resolver, function.value, name, Binding(value=Tensor("weight")), scope)
    elif isinstance(function, ast.Attribute) and function.attr in _ADDING and node.args:
        binding = Binding(node.args[-1], scope, "item")
        if isinstance(function.value, ast.Attribute):
            _add_slot(resolver, function.value.value, function.value.attr, binding, scope)
        elif isinstance(function.value, ast.Name):
            owner: Scope | None = scope
            while owner is not None and function.value.id not in owner.names:
                owner = owner.parent
            if owner is not None:
                owner.names[function.value.id].append(binding)


def _add_slot(resolver: Resolver, base: ast.expr, name: str, binding: Binding, scope: Scope) -> None:
    for owner in _owners(resolver, base, scope):
        resolver.slots.setdefault(owner, {}).setdefault(name, []).append(binding)


def _owners(resolver: Resolver, base: ast.expr, scope: Scope) -> set[Scope]:
    """Classes (or functions) whose attribute `base.x` is."""
    found: set[Scope] = set()
    if isinstance(base, ast.Name):
        current: Scope | None = scope
        while current is not None:
            owner = current.owner
            if owner is not None and current.params[:1] == [base.id]:
                return {owner}
            current = current.parent
    for value in resolver.resolve(base, scope):
        local = value.of if isinstance(value, Instance) else value
        if isinstance(local, Local):
            found.add(local.scope)
    return found
