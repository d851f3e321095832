"""Prints the docstrings of the modules named on the command line, one JSON object a line.

Runs in the target interpreter, on Python 3.10 and the standard library; what it documents is imported by
name.
"""

import importlib
import inspect
import json
import sys
from collections.abc import Iterator
from pathlib import Path

LONGEST = 6000


def signature_of(name: str, value: object) -> str:
    """The signature as text, "" where Python knows none."""
    try:
        return name + str(inspect.signature(value))  # pyright: ignore[reportArgumentType] # errors are caught
    except (TypeError, ValueError):
        return ""


def entries(module_name: str) -> Iterator[tuple[str, str, str, str, str]]:
    """(name, kind, signature, docstring, version) of a module's public members that have a docstring."""
    module = importlib.import_module(module_name)
    package = sys.modules[module_name.split(".")[0]]
    version = str(getattr(package, "__version__", None) or "")
    for attribute in sorted(getattr(module, "__all__", None) or dir(module)):
        if attribute.startswith("_"):
            continue
        value: object = getattr(module, attribute, None)
        own = str(getattr(value, "__module__", None) or "")
        if not callable(value) or not (own == "" or own.split(".")[0] == module_name.split(".")[0]):
            continue
        text = inspect.getdoc(value)
        if text and text != inspect.getdoc(type(value)):
            kind = "class" if inspect.isclass(value) else "function"
            name = f"{module_name}.{attribute}"
            yield name, kind, signature_of(name, value), text[:LONGEST], version


def main() -> None:
    """Read every module; one that cannot be imported is passed over."""
    # The modules beside this file are none of the target interpreter's.
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [folder for folder in sys.path if folder != here]
    for module_name in sys.argv[1:]:
        try:
            for row in entries(module_name):
                print(json.dumps(row))
        except Exception as error:  # a module of somebody else's is imported: it may raise anything
            print(f"{module_name}: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
