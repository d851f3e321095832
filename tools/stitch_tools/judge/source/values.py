"""What an expression of a host file may stand for, as far as can be told without running it.

An expression resolves to a *set* of these, since the same name can be bound in several places.
"""

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from stitch_tools.judge.source.scopes import Scope

KeyKind = Literal["pointer", "shape", "value", "count"]
Plain = str | bytes | int | float | bool | None


@dataclass(frozen=True)
class Known:
    """Something of another module, by its full dotted name: `torch.nn.functional.relu`."""

    path: str
    hidden: str = ""
    """How the name was hidden (`getattr`, `__import__`, ...); empty where it is written out."""


@dataclass(frozen=True)
class Const:
    """A constant."""

    value: Plain


@dataclass(frozen=True, eq=False)
class Local:
    """A function, lambda or class of the program itself."""

    scope: "Scope"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Local) and other.scope is self.scope

    def __hash__(self) -> int:
        return id(self.scope)


@dataclass(frozen=True)
class Made:
    """What calling a name of another module gave: `torch.nn.Linear(...)`, `load_inline(...)`."""

    path: str


@dataclass(frozen=True)
class Instance:
    """An object of one of the program's own classes."""

    of: Local


@dataclass(frozen=True)
class Member:
    """An attribute of a `Made`."""

    path: str
    name: str


@dataclass(frozen=True)
class Tensor:
    """A tensor: an input, a weight, a buffer that was only allocated, or a result."""

    origin: Literal["input", "weight", "buffer", "result"]


@dataclass(frozen=True)
class TensorMethod:
    """A method of a tensor, not called yet."""

    name: str
    origin: Literal["input", "weight", "buffer", "result"]
    hidden: str = ""


@dataclass(frozen=True)
class Key:
    """A number or tuple that was read off a tensor; what a cache may be keyed on."""

    kind: KeyKind


@dataclass(frozen=True)
class Namespace:
    """`vars(x)`, `x.__dict__`, `globals()`: names of `of`, or of the module where that is None."""

    of: "Value | None"


@dataclass(frozen=True)
class Getter:
    """`operator.attrgetter(name)` or `operator.methodcaller(name)`."""

    name: str
    calls: bool


@dataclass(frozen=True, eq=False)
class Container:
    """A tuple, list or dict display."""

    node: ast.Tuple | ast.List | ast.Dict | ast.Set
    scope: "Scope"


Value = (
    Known
    | Const
    | Local
    | Made
    | Instance
    | Member
    | Tensor
    | TensorMethod
    | Key
    | Namespace
    | Getter
    | Container
)
Values = frozenset[Value]
NOTHING: Values = frozenset()


def order(value: Value) -> tuple[str, str, int]:
    """A key to sort values by, the same in every run."""
    match value:
        case Known() | Made() | Member():
            return (type(value).__name__, f"{value.path} {value}", 0)
        case Local(scope=scope) | Instance(of=Local(scope=scope)):
            return (type(value).__name__, f"{scope.unit.file} {scope.name}", getattr(scope.node, "lineno", 0))
        case Container(node=node, scope=scope):
            return ("Container", scope.unit.file, node.lineno * 100_000 + node.col_offset)
        case Namespace(of=owner):
            return ("Namespace", " ".join(map(str, order(owner))) if owner is not None else "", 0)
        case Const(value=plain):
            return ("Const", f"{type(plain).__name__} {str(plain)[:200]}", 0)
        case Tensor() | TensorMethod() | Key() | Getter():
            return (type(value).__name__, str(value), 0)
