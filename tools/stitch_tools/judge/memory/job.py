"""The job of the sanitizer host: what native/src/sanitizer_host.cpp reads."""

from collections.abc import Sequence

from stitch_tools.errors import WorkerError
from stitch_tools.judge.memory.case import SanitizerCase
from stitch_tools.models import DTYPE_BYTES
from stitch_tools.protocol.memory import PackEntry

# DLPack's codes of the kinds of numbers; the rest of a type's name is its size.
_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "complex": 5, "bool": 6}
_CPU, _CUDA = 1, 2
UNPOISONED = -1


def host_job(
    case: SanitizerCase,
    program: str,
    libraries: Sequence[str],
    *,
    poison: int,
    threads: int = 0,
    calls: int = 1,
) -> str:
    """The job's text.

    Args:
        case: whose weights and inputs the program gets.
        program: path of the built library.
        libraries: loaded before the program, with their names visible to it.
        poison: byte that outputs and workspace hold before a call, or UNPOISONED.
        threads: for stitch_init.
        calls: forwards, each in memory of its own.

    Raises:
        WorkerError: a path or name that a line cannot hold.
    """
    by_name = {entry["name"]: entry for entry in case.weights.parameters}
    lines = [
        *(f"library {path}" for path in libraries),
        f"program {program}",
        f"device {_CUDA if case.trial.on_gpu else _CPU}",
        f"threads {threads}",
        f"poison {poison}",
        f"calls {calls}",
        *(_tensor("param", entry) for entry in case.weights.parameters),
        *(_tensor("input", entry) for entry in case.inputs.manifest),
        *(_tensor("state", by_name[name]) for name in case.trial.updated),
    ]
    if any("\n" in line for line in lines):
        raise WorkerError("a tensor's name or a path holds a line break", hint="rename it")
    return "\n".join(lines) + "\n"


def _tensor(kind: str, entry: PackEntry) -> str:
    dtype, shape, stride = entry["dtype"], entry["shape"], entry["stride"]
    code, bits = _CODES[dtype.rstrip("0123456789")], 8 * DTYPE_BYTES[dtype]
    numbers = [entry["offset"], entry["nbytes"], code, bits, len(shape), *shape, *stride]
    return f"{kind} {' '.join(map(str, numbers))} {entry['name']}"
