"""The job of the sanitizer host: what native/src/sanitizer_host.cpp reads."""

from collections.abc import Mapping, Sequence
from typing import Any

from stitch_tools.errors import WorkerError

# DLPack's type codes; the worker's table is the same with torch's types as keys.
_TYPES = {
    "float64": (2, 64),
    "float32": (2, 32),
    "float16": (2, 16),
    "bfloat16": (4, 16),
    "int64": (0, 64),
    "int32": (0, 32),
    "int16": (0, 16),
    "int8": (0, 8),
    "uint8": (1, 8),
    "bool": (6, 8),
    "complex64": (5, 64),
    "complex128": (5, 128),
}
_DEVICES = {"cpu": 1, "cuda": 2}
UNPOISONED = -1


def host_job(
    program: str,
    *,
    device: str,
    libraries: Sequence[str],
    parameters: Sequence[Mapping[str, Any]],
    inputs: Sequence[Mapping[str, Any]],
    state: Sequence[str] = (),
    threads: int = 0,
    poison: int = 0xFF,
    calls: int = 1,
) -> str:
    """The job's text.

    Args:
        program: path of the built library.
        device: `cpu` or `cuda`.
        libraries: loaded before the program, with their names visible to it.
        parameters: manifest of the weights' pack.
        inputs: manifest of the inputs' pack.
        state: names in `parameters` of the buffers that the program updates.
        threads: for stitch_init.
        poison: byte that outputs and workspace hold before a call, or UNPOISONED.
        calls: forwards, each in memory of its own.

    Raises:
        WorkerError: a path or name that a line cannot hold.
    """
    by_name = {entry["name"]: entry for entry in parameters}
    lines = [
        *(f"library {path}" for path in libraries),
        f"program {program}",
        f"device {_DEVICES[device]}",
        f"threads {threads}",
        f"poison {poison}",
        f"calls {calls}",
        *(_tensor("param", entry) for entry in parameters),
        *(_tensor("input", entry) for entry in inputs),
        *(_tensor("state", by_name[name]) for name in state),
    ]
    if any("\n" in line for line in lines):
        raise WorkerError("a tensor's name or a path holds a line break", hint="rename it")
    return "\n".join(lines) + "\n"


def _tensor(kind: str, entry: Mapping[str, Any]) -> str:
    code, bits = _TYPES[entry["dtype"]]
    shape, stride = entry["shape"], entry["stride"]
    numbers = [entry["offset"], entry["nbytes"], code, bits, len(shape), *shape, *stride]
    return f"{kind} {' '.join(map(str, numbers))} {entry['name']}"
