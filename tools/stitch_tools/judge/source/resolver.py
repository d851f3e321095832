"""What an expression stands for: aliases, attributes, hidden names and constants, followed everywhere.

The resolver joins all bindings of a name, follows calls into the program's own functions, and gives up
(`NOTHING`) beyond a fixed depth. It never runs anything.
"""

import ast
import builtins
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from stitch_tools.judge.source import calls
from stitch_tools.judge.source.constants import MAX_CHARS, fold_binary, fold_slice
from stitch_tools.judge.source.scopes import Binding, FunctionNode, Scope, Unit
from stitch_tools.judge.source.values import (
    NOTHING,
    Const,
    Container,
    Instance,
    Key,
    Known,
    Local,
    Made,
    Member,
    Namespace,
    Plain,
    Tensor,
    TensorMethod,
    Value,
    Values,
    order,
)
from stitch_tools.judge.source.words import words

MAX_DEPTH = 40
MAX_STEPS = 500_000
_MAX_VALUES = 16
_MAX_ITEMS = 64
_MAX_BITS = 128
_TENSOR_CLASS: Values = frozenset([Known("torch.Tensor", "__class__")])
_SHAPE_NAMES = words("shape dtype device ndim is_cuda nbytes itemsize layout")
_WEIGHT_NAMES = frozenset(("weight", "bias", "running_mean", "running_var", "num_batches_tracked"))
_TENSOR_NAMES = words("T mT H data grad real imag")


@dataclass(eq=False)
class Resolver:
    """Names and expressions of all Python files of one program."""

    units: Mapping[str, Unit]
    """By the dotted name that the program imports them under."""
    slots: dict[Scope, dict[str, list[Binding]]] = field(
        default_factory=dict[Scope, dict[str, list[Binding]]]
    )
    """Of classes: attributes that methods set on `self`, or that code sets on the class."""
    arguments: dict[tuple[Scope, str], list[Binding]] = field(
        default_factory=dict[tuple[Scope, str], list[Binding]]
    )
    """Of functions: what is known of their parameters."""
    _memo: dict[tuple[ast.AST, Scope], Values] = field(default_factory=dict[tuple[ast.AST, Scope], Values])
    _names: dict[tuple[str, Scope], Values | None] = field(
        default_factory=dict[tuple[str, Scope], "Values | None"]
    )
    _draft: dict[tuple[ast.AST, Scope], Values] = field(default_factory=dict[tuple[ast.AST, Scope], Values])
    evaluated: dict[ast.Call, ast.expr] = field(default_factory=dict[ast.Call, ast.expr])
    """What constant texts given to `eval` say."""
    steps: int = 0
    """Expressions and bindings that were looked at; there is an end to it."""
    _open: set[tuple[ast.AST, Scope]] = field(default_factory=set[tuple[ast.AST, Scope]])
    _cut: int = 0

    def learn_argument(self, scope: Scope, name: str, binding: Binding) -> bool:
        """Add what a parameter may be; whether that is news."""
        known = self.arguments.setdefault((scope, name), [])
        if any(row.expr is binding.expr and row.value == binding.value for row in known) or len(known) > 8:
            return False
        known.append(binding)
        self.forget()
        return True

    def forget(self) -> None:
        """Drop what was found: more is known of the program now."""
        self._memo.clear()
        self._names.clear()

    def resolve(self, expr: ast.expr | None, scope: Scope) -> Values:
        """All that the expression may stand for."""
        if expr is None:
            return NOTHING
        key = (expr, scope)
        known = self._memo.get(key)
        if known is None:
            known = self._draft.get(key)
        if known is not None:
            return known
        if key in self._open or len(self._open) >= MAX_DEPTH or self.steps >= MAX_STEPS:
            self._cut += 1
            return NOTHING
        self.steps += 1
        self._open.add(key)
        before = self._cut
        try:
            found = self._expression(expr, scope)
        finally:
            self._open.discard(key)
        if len(found) > _MAX_VALUES:
            found = frozenset(sorted(found, key=order)[:_MAX_VALUES])
        # What a cycle cut short may be more when asked from elsewhere: it is kept for this question only.
        if self._cut == before or not self._open:
            self._memo[key] = found
        else:
            self._draft[key] = found
        if not self._open:
            self._draft.clear()
        return found

    def constant(self, expr: ast.expr | None, scope: Scope) -> Plain:
        """The constant that the expression is, or None where there is none or more than one."""
        found = [value.value for value in self.resolve(expr, scope) if isinstance(value, Const)]
        return found[0] if len(found) == 1 else None

    def text(self, expr: ast.expr | None, scope: Scope) -> str | None:
        """The constant text that the expression is."""
        value = self.constant(expr, scope)
        return value if isinstance(value, str) else None

    def paths(self, expr: ast.expr | None, scope: Scope) -> list[str]:
        """Dotted names of other modules that the expression may stand for, sorted."""
        return sorted({value.path for value in self.resolve(expr, scope) if isinstance(value, Known)})

    def _expression(self, expr: ast.expr, scope: Scope) -> Values:
        match expr:
            case ast.Constant(value=value) if isinstance(value, str | bytes | int | float | None):
                is_huge = isinstance(value, int) and value.bit_length() > _MAX_BITS
                return NOTHING if is_huge else frozenset([Const(value)])
            case ast.Name(id=name):
                return self.name(name, scope)
            case ast.Attribute(value=value, attr=name):
                return self._attributes(self.resolve(value, scope), name)
            case ast.Call():
                return calls.call(self, expr, scope)
            case ast.Subscript():
                return self._subscript(expr, scope)
            case ast.BinOp():
                return self._binary(expr, scope)
            case ast.JoinedStr(values=values):
                return self._joined(values, scope)
            case ast.Tuple() | ast.List() | ast.Dict() | ast.Set():
                return frozenset([Container(expr, scope)])
            case _:
                return self._transparent(expr, scope)

    def _transparent(self, expr: ast.expr, scope: Scope) -> Values:
        """Expressions that stand for what is inside them."""
        match expr:
            case ast.IfExp(body=first, orelse=second):
                return self.resolve(first, scope) | self.resolve(second, scope)
            case ast.BoolOp(values=values):
                return self._join(values, scope)
            case ast.UnaryOp(operand=operand):
                return frozenset(v for v in self.resolve(operand, scope) if isinstance(v, Tensor | Key))
            case ast.Lambda():
                inner = scope.unit.scope_of.get(expr)
                return frozenset([Local(inner)]) if inner else NOTHING
            case ast.Compare(left=left, comparators=others):
                found = self._join([left, *others], scope)
                return frozenset([Key("value")]) if any(isinstance(v, Tensor) for v in found) else NOTHING
            case ast.NamedExpr() | ast.Starred() | ast.Await() | ast.FormattedValue():
                return self.resolve(expr.value, scope)
            case ast.ListComp() | ast.GeneratorExp() | ast.SetComp():
                return self.resolve(expr.elt, scope)
            case _:
                return NOTHING

    def _join(self, parts: Iterable[ast.expr], scope: Scope) -> Values:
        return frozenset(value for part in parts for value in self.resolve(part, scope))

    def name(self, name: str, scope: Scope) -> Values:
        """What a bare name stands for in `scope`."""
        current: Scope | None = scope
        while current is not None:
            is_class = isinstance(current.node, ast.ClassDef) and current is not scope
            if not is_class and (name not in current.outer or current is scope.unit.module):
                found = self._own_name(name, current)
                if found is not None:
                    return found
            current = current.parent
        for module in scope.unit.stars:
            return self.normal(Known(f"{module}.{name}"))
        if hasattr(builtins, name):
            return frozenset([Known(f"builtins.{name}")])
        return NOTHING

    def _own_name(self, name: str, scope: Scope) -> Values | None:
        key = (name, scope)
        if key not in self._names:
            before = self._cut
            found = self._joined_bindings(name, scope)
            if self._cut != before:
                return found
            self._names[key] = found
        return self._names[key]

    def _joined_bindings(self, name: str, scope: Scope) -> Values | None:
        bindings = scope.names.get(name)
        is_parameter = name in scope.params
        if bindings is None and not is_parameter:
            return None
        found = frozenset(value for row in bindings or () for value in self.binding(row))
        if is_parameter:
            given = self.arguments.get((scope, name), [])
            found |= frozenset(value for row in given for value in self.binding(row))
        return found

    def binding(self, row: Binding) -> Values:
        """What a binding binds; items stored under keys are left to subscripts."""
        self.steps += 1
        if row.how == "item" or self.steps >= MAX_STEPS:
            return NOTHING
        return self._unpacked(row)

    def _unpacked(self, row: Binding) -> Values:
        if row.value is not None:
            return self.normal(row.value)
        if row.node is not None and row.scope is not None:
            return self._definition(row.node, row.scope)
        if row.expr is None or row.scope is None:
            return NOTHING
        found = self.resolve(row.expr, row.scope)
        if row.how == "element":
            found = self.items(found, None)
        return found if row.index is None else self.items(found, row.index)

    def _definition(self, node: ast.AST, scope: Scope) -> Values:
        inner = scope.unit.scope_of.get(node)
        if inner is None:
            return NOTHING
        found: Values = frozenset([Local(inner)])
        for row in getattr(node, "decorator_list", ()):
            for value in self.resolve(row, scope):
                if isinstance(value, Local) and isinstance(value.scope.node, FunctionNode):
                    found |= self.returned(value.scope)
        return found

    def normal(self, value: Value) -> Values:
        """The value; a name inside the program's own files becomes what it is there."""
        if not isinstance(value, Known):
            return frozenset([value])
        parts = value.path.split(".")
        for size in range(len(parts), 0, -1):
            unit = self.units.get(".".join(parts[:size]))
            if unit is None:
                continue
            if size == len(parts):
                return frozenset([value])
            found = self._own_name(parts[size], unit.module) or NOTHING
            for rest in parts[size + 1 :]:
                found = self._attributes(found, rest)
            return found
        return frozenset([value])

    def _attributes(self, values: Values, name: str, hidden: str = "") -> Values:
        found: set[Value] = set()
        for value in values:
            found |= self.attribute(value, name, hidden)
        return frozenset(found)

    def attribute(self, value: Value, name: str, hidden: str = "") -> Values:
        """`value.name`; `hidden` says how the name was hidden."""
        if name == "__dict__" and isinstance(value, Known | Instance | Local):
            return frozenset([Namespace(value)])
        match value:
            case Known(path=path, hidden=before):
                return self.normal(Known(f"{path}.{name}", hidden or before))
            case Tensor(origin=origin):
                is_class = name == "__class__"
                return _TENSOR_CLASS if is_class else _tensor_attribute(name, origin, hidden)
            case Made(path=path):
                is_weight = name in _WEIGHT_NAMES and path.startswith("torch.nn.")
                return frozenset([Tensor("weight") if is_weight else Member(path, name)])
            case Instance(of=local):
                return self.slot(local.scope, name)
            case Local(scope=inner):
                return self.slot(inner, name) if isinstance(inner.node, ast.ClassDef) else NOTHING
            case Namespace(of=owner) if owner is not None:
                return self.attribute(owner, name, "__dict__")
            case _:
                return NOTHING

    def slot(self, scope: Scope, name: str, depth: int = 0) -> Values:
        """An attribute of one of the program's own classes, bases included."""
        rows = [*self.slots.get(scope, {}).get(name, ()), *scope.names.get(name, ())]
        found = frozenset(value for row in rows for value in self.binding(row))
        if not isinstance(scope.node, ast.ClassDef) or depth > 8 or name in scope.names:
            return found
        for base in scope.node.bases:
            for value in self.resolve(base, scope.parent or scope):
                if isinstance(value, Local):
                    found |= self.slot(value.scope, name, depth + 1)
                elif isinstance(value, Known) and not rows and name in ("apply", "forward", "__call__"):
                    found |= {Known(f"{value.path}.{name}")}
        return found

    def _subscript(self, expr: ast.Subscript, scope: Scope) -> Values:
        held = self.resolve(expr.value, scope)
        if isinstance(expr.slice, ast.Slice):
            return self._sliced(held, expr.slice, scope)
        key = self.constant(expr.slice, scope)
        found: set[Value] = set(self.stored_items(expr.value, scope))
        for value in held:
            if isinstance(value, Namespace) and isinstance(key, str):
                found |= self.lookup(value, key, scope)
            elif isinstance(value, Known) and value.path == "sys.modules" and isinstance(key, str):
                found |= self.normal(Known(key, "sys.modules"))
            elif isinstance(value, Known) and value.path == "os.environ":
                continue
            else:
                found |= self.items(frozenset([value]), key)
        return frozenset(found)

    def _sliced(self, held: Values, part: ast.Slice, scope: Scope) -> Values:
        bounds = [_bound(item, self.constant(item, scope)) for item in (part.lower, part.upper, part.step)]
        if any(isinstance(bound, str) for bound in bounds):
            return NOTHING
        found: set[Value] = set()
        for value in held:
            if isinstance(value, Const) and isinstance(value.value, str | bytes):
                folded = fold_slice(value.value, bounds)
                found |= {folded} if folded else set()
            elif isinstance(value, Tensor | Key | Container):
                found.add(value)
        return frozenset(found)

    def lookup(self, namespace: Namespace, name: str, scope: Scope) -> Values:
        """A name in `vars(x)`, `x.__dict__` or `globals()`."""
        if namespace.of is not None:
            return self.attribute(namespace.of, name, "__dict__")
        found = self.name(name, scope.unit.module)
        return frozenset(
            replace(value, hidden="globals()") if isinstance(value, Known) else value for value in found
        )

    def stored_items(self, expr: ast.expr, scope: Scope) -> Values:
        """What is stored under the keys of a local or global name, or of an attribute of `self`."""
        rows: list[Binding] = []
        if isinstance(expr, ast.Name):
            current: Scope | None = scope
            while current is not None:
                rows += current.names.get(expr.id, ())
                current = current.parent
        elif isinstance(expr, ast.Attribute):
            for value in self.resolve(expr.value, scope):
                owner = value.of if isinstance(value, Instance) else value
                if isinstance(owner, Local):
                    rows += self.slots.get(owner.scope, {}).get(expr.attr, ())
                    rows += owner.scope.names.get(expr.attr, ())
        items = [row for row in rows if row.how == "item"][:_MAX_ITEMS]
        return frozenset(value for row in items for value in self._unpacked(row))

    def items(self, values: Values, key: Plain) -> Values:
        """Elements of containers; of a tensor its parts."""
        found: set[Value] = set()
        for value in values:
            match value:
                case Container(node=node, scope=scope):
                    for item in _display_items(node, key):
                        found |= self.resolve(item, scope)
                case Tensor() | Key() | Made() | Instance():
                    found.add(value)
                case Const(value=str() as text) if isinstance(key, int) and -len(text) <= key < len(text):
                    found.add(Const(text[key]))
                case Member():
                    found.add(Made(f"{value.path}.{value.name}"))
                case _:
                    pass
        return frozenset(found)

    def _binary(self, expr: ast.BinOp, scope: Scope) -> Values:
        # A long chain of `+` is a list in disguise: its left spine is walked, not recursed into.
        spine: list[ast.BinOp] = []
        left: ast.expr = expr
        while isinstance(left, ast.BinOp):
            spine.append(left)
            left = left.left
        found = self.resolve(left, scope)
        for node in reversed(spine):
            found = _combined(node, found, self.resolve(node.right, scope))
        return found

    def _joined(self, parts: list[ast.expr], scope: Scope) -> Values:
        text = ""
        for part in parts:
            value = self.constant(part, scope)
            if not isinstance(value, str | int | float) or len(text) > MAX_CHARS:
                return NOTHING
            text += str(value)
        return frozenset([Const(text)])

    def returned(self, scope: Scope) -> Values:
        """What calling one of the program's own functions gives."""
        node = scope.node
        if isinstance(node, ast.Lambda):
            return self.resolve(node.body, scope)
        if not isinstance(node, FunctionNode):
            return NOTHING
        found: set[Value] = set()
        for item in scope.nodes:
            if isinstance(item, ast.Return | ast.Yield) and item.value is not None:
                found |= self.resolve(item.value, scope)
        return frozenset(found)


def _combined(node: ast.BinOp, left: Values, right: Values) -> Values:
    if any(isinstance(value, Tensor) for value in left | right):
        return frozenset([Tensor("result")])
    found: set[Value] = {value for value in left | right if isinstance(value, Key)}
    for one in left:
        for other in right:
            if isinstance(one, Const) and isinstance(other, Const):
                folded = fold_binary(node, one.value, other.value)
                found |= {folded} if folded else set()
    return frozenset(found)


def _tensor_attribute(name: str, origin: str, hidden: str) -> Values:
    if name in _SHAPE_NAMES:
        return frozenset([Key("shape")])
    if name == "_version":
        return frozenset([Key("pointer")])
    for row in ("input", "weight", "buffer", "result"):
        if row == origin:
            method = TensorMethod(name, row, hidden)
            return frozenset([Tensor(row)]) if name in _TENSOR_NAMES else frozenset([method])
    return NOTHING


def _display_items(node: ast.Tuple | ast.List | ast.Dict | ast.Set, key: Plain) -> list[ast.expr]:
    if isinstance(node, ast.Dict):
        exact = [
            item
            for name, item in zip(node.keys, node.values, strict=True)
            if key is not None and isinstance(name, ast.Constant) and name.value == key
        ]
        return exact or node.values[:32]
    if isinstance(key, int) and not any(isinstance(item, ast.Starred) for item in node.elts):
        return [node.elts[key]] if -len(node.elts) <= key < len(node.elts) else []
    return node.elts[:32]


def _bound(node: ast.expr | None, value: Plain) -> Plain:
    """A slice's bound; a text where it is no constant number."""
    match node:
        case None:
            return None
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as number)):
            return -number
        case _:
            return value if isinstance(value, int) else "unknown"
