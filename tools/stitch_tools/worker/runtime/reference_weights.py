"""Where a `ModelNew` gets its weights: the file of the reference, which is run where the program lies.

Stands alone beside `native.py`: the stitcher copies it into the programs that it writes in Python.
"""

import functools
import importlib.util
import sys
from pathlib import Path
from typing import Any

import torch


def load_entry(folder: str | Path, main: str, entry: str) -> Any:
    """What `entry` names in the file `main`, which is run anew in each call.

    Args:
        folder: the reference's files, as a package.
        main: path in `folder`.
        entry: a name in the file, with dots for what lies inside of it.

    Raises:
        ImportError: the file, or one that it imports, is not there.
        AttributeError: it has no such name.
    """
    root = Path(folder).resolve()
    path = root / main
    for place in (str(root), str(path.parent)):
        if place not in sys.path:
            sys.path.insert(0, place)
    # Under a dotted name relative imports work.
    name = ".".join((root.name, *Path(main).with_suffix("").parts))
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{main} is not a Python file")
    namespace = importlib.util.module_from_spec(spec)
    sys.modules[name] = namespace
    spec.loader.exec_module(namespace)
    return functools.reduce(getattr, entry.split("."), namespace)


def adopt(module: torch.nn.Module, made: torch.nn.Module) -> None:
    """Give `module`, which has none, the parameters, buffers and modules of `made`, under their names."""
    for kind in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
        getattr(module, kind).update(getattr(made, kind))
