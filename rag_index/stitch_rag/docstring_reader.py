"""Prints the docstrings of the modules named on the command line, one JSON object a line.

Runs in the target interpreter, on Python 3.10 and the standard library; what it documents is imported by
name.
"""

import importlib
import inspect
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

LONGEST = 6000
CLASSES = (
    "torch.Tensor",
    "torch.Generator",
    "torch.nn.Module",
    "torch.autograd.Function",
    "torch.cuda.CUDAGraph",
    "torch.cuda.Event",
    "torch.cuda.MemPool",
    "torch.cuda.Stream",
    "torch.library.CustomOpDef",
    "torch.library.Library",
    "torch.profiler.profile",
    "torch.utils.benchmark.Measurement",
    "torch.utils.benchmark.Timer",
)
"""Their methods and attributes are documented, too; those of modules' other classes are mostly inherited."""
REFERRAL = re.compile(
    r"(?:\w+\([^\n]*\n+)?\s*(?:see|in-place version of|out-of-place version of|alias (?:for|of)) .{1,80}",
    re.IGNORECASE | re.DOTALL,
)
"""A docstring that says nothing but whose method this is, too."""


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


def members(class_name: str) -> Iterator[tuple[str, str, str, str, str]]:
    """As `entries`, of a class: what it or a base of its package documents beyond a referral."""
    module_name, _, own_name = class_name.rpartition(".")
    package = class_name.split(".")[0]
    owner = getattr(importlib.import_module(module_name), own_name, None)
    if not inspect.isclass(owner):
        return
    version = str(getattr(sys.modules[package], "__version__", None) or "")
    bases = [base for base in owner.__mro__ if base.__module__.split(".")[0] == package]
    for attribute in sorted({name for base in bases for name in vars(base) if not name.startswith("_")}):
        value: object = getattr(owner, attribute, None)
        text = inspect.getdoc(value)
        if text and text != inspect.getdoc(type(value)) and not REFERRAL.fullmatch(text):
            name = f"{class_name}.{attribute}"
            kind = "function" if callable(value) else "attribute"
            yield name, kind, signature_of(name, value), text[:LONGEST], version


def main() -> None:
    """Read every module and class; one that cannot be imported is passed over."""
    # The modules beside this file are none of the target interpreter's.
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [folder for folder in sys.path if folder != here]
    read = {**dict.fromkeys(sys.argv[1:], entries), **dict.fromkeys(CLASSES, members)}
    for name, rows in read.items():
        try:
            for row in rows(name):
                print(json.dumps(row))
        except Exception as error:  # a module of somebody else's is imported: it may raise anything
            print(f"{name}: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
