"""The docstrings of a class' attributes, read in its source only when somebody asks for them."""

import ast
import inspect
import sys
from functools import cache
from itertools import pairwise


def attribute_docstrings(cls: type) -> dict[str, str]:
    """Docstrings of what a class and its bases annotate, by name; none where there is no source."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        told = _in_module(base.__module__).get(base.__name__, {})
        for name in inspect.get_annotations(base):
            # Who annotates an attribute anew takes nothing over of what was said before.
            found.pop(name, None)
            if name in told:
                found[name] = told[name]
    return found


@cache
def _in_module(name: str) -> dict[str, dict[str, str]]:
    """Name of each class of a module to the docstrings of its attributes."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[name]))
    except (KeyError, OSError, TypeError):
        return {}
    return {node.name: _told(node) for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


def _told(node: ast.ClassDef) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in pairwise(node.body):
        match pair:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = inspect.cleandoc(text)
            case _:
                pass
    return found
