"""The job of the sanitizer host: what native/src/sanitizer_host.cpp reads."""

from collections.abc import Mapping, Sequence
from typing import Any

from stitch_tools.errors import WorkerError
from stitch_tools.protocol.memory import ITEM_BYTES

# DLPack's codes of the kinds of numbers; the rest of a type's name is its size.
_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "complex": 5, "bool": 6}
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
    dtype = entry["dtype"]
    code, bits = _CODES[dtype.rstrip("0123456789")], 8 * ITEM_BYTES[dtype]
    shape, stride = entry["shape"], entry["stride"]
    numbers = [entry["offset"], entry["nbytes"], code, bits, len(shape), *shape, *stride]
    return f"{kind} {' '.join(map(str, numbers))} {entry['name']}"
