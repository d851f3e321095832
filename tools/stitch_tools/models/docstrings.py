"""The docstrings of a class' attributes, read in its source only when somebody asks for them."""

import ast
import inspect
import sys
from collections.abc import Generator, Sequence
from functools import cache
from itertools import pairwise


def attribute_docstrings(cls: type) -> dict[str, str]:
    """Docstrings of what a class and its bases annotate, by name; none where there is no source."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        told = _in_module(base.__module__).get(base.__qualname__, {})
        for name in inspect.get_annotations(base):
            # Who annotates an attribute anew takes nothing over of what was said before.
            found.pop(name, None)
            if name in told:
                found[name] = told[name]
    return found


@cache
def _in_module(name: str) -> dict[str, dict[str, str]]:
    """Qualified name of each class of a module to the docstrings of its attributes."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[name]))
    except (KeyError, OSError, TypeError):
        return {}
    return {qualified: dict(_told(node.body)) for qualified, node in _classes(tree.body, "")}


def _classes(body: Sequence[ast.stmt], prefix: str) -> Generator[tuple[str, ast.ClassDef]]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield f"{prefix}{node.name}", node
            yield from _classes(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _classes(node.body, f"{prefix}{node.name}.<locals>.")


def _told(body: Sequence[ast.stmt]) -> Generator[tuple[str, str]]:
    for before, node in pairwise(body):
        match before, node:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, inspect.cleandoc(text)
            case _:
                pass
