"""Which tasks are nearly the same: by the operations that their sources call, not by their text.

Names of variables, sizes and the order of definitions say nothing about what is computed. Two sources are
near duplicates where they call the same operations equally often, or where most pairs of neighboring calls
agree.
"""

import ast
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stitch_tools.errors import UsageError

ALIKE = 0.8
"""Jaccard index of neighboring calls from which two tasks are near duplicates."""
_ALIASES = {
    "layernorm": "layer_norm",
    "rmsnorm": "rms_norm",
    "groupnorm": "group_norm",
    "instancenorm2d": "instance_norm",
    "maxpool2d": "max_pool2d",
    "avgpool2d": "avg_pool2d",
    "matmul": "mm",
    "bmm": "mm",
    "max": "amax",
    "leakyrelu": "leaky_relu",
    "logsoftmax": "log_softmax",
    "multiply": "mul",
}
_BINARY: Mapping[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.MatMult: "mm",
}
_NO_OPERATION = frozenset(
    {
        "super",
        "__init__",
        "parameter",
        "view",
        "reshape",
        "transpose",
        "permute",
        "contiguous",
        "size",
        "rand",
        "randn",
        "range",
        "sequential",
        "modulelist",
        "append",
        "len",
        "chunk",
        "print",
        "int",
        "float",
        "flatten",
        "unsqueeze",
        "squeeze",
    }
)


@dataclass(frozen=True)
class Fingerprint:
    """What a task calls."""

    name: str
    calls: tuple[str, ...]
    """Operations in the order of the source."""

    @property
    def counts(self) -> frozenset[tuple[str, int]]:
        """How often each is called."""
        return frozenset(Counter(self.calls).items())

    @property
    def pairs(self) -> frozenset[tuple[str, str]]:
        """Neighboring calls, with the ends marked."""
        return frozenset(zip(("", *self.calls), (*self.calls, ""), strict=True))


def fingerprint(source: str, name: str) -> Fingerprint:
    """What the classes and functions of a source call, input makers left out.

    Raises:
        UsageError: it is not Python.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"{name} is not Python: {error}", hint="name references only") from error
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    modules, calls = _modules(classes), list[str]()
    for method in _forwards(classes) or [n for n in tree.body if isinstance(n, ast.FunctionDef)]:
        if not method.name.startswith("get_"):
            calls += _calls(method, modules)
    return Fingerprint(name, tuple(calls))


def read_fingerprints(folders: Iterable[Path]) -> list[Fingerprint]:
    """Those of every `*.py` in folders or at paths; a file that is no Python is refused.

    Raises:
        UsageError: one cannot be read.
    """
    found: list[Fingerprint] = []
    for folder in folders:
        files = sorted(folder.rglob("*.py")) if folder.is_dir() else [folder]
        for file in files:
            try:
                source = file.read_text(encoding="utf-8", errors="replace")
            except OSError as error:
                raise UsageError(f"{file} cannot be read: {error.strerror}") from error
            print_of = fingerprint(source, str(file.relative_to(folder)) if folder.is_dir() else file.name)
            if print_of.calls:
                found.append(print_of)
    return found


class Known:
    """Tasks that another one may be compared with, found by what they call."""

    def __init__(self, rows: Iterable[Fingerprint] = ()) -> None:
        self._by_counts: dict[frozenset[tuple[str, int]], str] = {}
        self._rows: list[tuple[frozenset[tuple[str, str]], str]] = []
        for row in rows:
            self.add(row)

    def add(self, row: Fingerprint) -> None:
        """Compare later ones with this one, too."""
        self._by_counts.setdefault(row.counts, row.name)
        self._rows.append((row.pairs, row.name))

    def near(self, row: Fingerprint) -> str | None:
        """Name of a near duplicate of the task; None where there is none."""
        if (same := self._by_counts.get(row.counts)) is not None:
            return same
        own = row.pairs
        for pairs, name in self._rows:
            if len(own & pairs) >= ALIKE * len(own | pairs):
                return name
        return None


def _modules(classes: Sequence[ast.ClassDef]) -> Mapping[str, list[str]]:
    """What `self.NAME` was assigned in a constructor: the modules that a later call runs."""
    found: dict[str, list[str]] = {}
    for node in (child for owner in classes for child in ast.walk(owner)):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            found[node.targets[0].attr] = _calls(node.value, {})
    return found


def _forwards(classes: Sequence[ast.ClassDef]) -> list[ast.FunctionDef]:
    methods = [node for owner in classes for node in owner.body if isinstance(node, ast.FunctionDef)]
    return [node for node in methods if node.name == "forward"]


def _calls(node: ast.AST, modules: Mapping[str, list[str]]) -> list[str]:
    found: list[tuple[int, int, list[str]]] = []
    for child in ast.walk(node):
        if isinstance(child, ast.Call):
            named = child.func
            name = named.attr if isinstance(named, ast.Attribute) else getattr(named, "id", "")
            own = isinstance(named, ast.Attribute) and getattr(named.value, "id", "") == "self"
            names = modules.get(name, [name]) if own else [name]
            found.append((child.end_lineno or 0, child.end_col_offset or 0, names))
        elif isinstance(child, ast.BinOp) and type(child.op) in _BINARY:
            found.append((child.end_lineno or 0, child.end_col_offset or 0, [_BINARY[type(child.op)]]))
    ordered = [
        name.lower().rstrip("_") for _, _, names in sorted(found, key=lambda row: row[:2]) for name in names
    ]
    return [_ALIASES.get(name, name) for name in ordered if name and name not in _NO_OPERATION]
