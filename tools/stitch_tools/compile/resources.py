"""What `ptxas -v` says about each kernel: registers, shared memory, spills, per architecture."""

import re
import shutil
import subprocess
from collections.abc import Sequence

from stitch_tools.models.program import KernelResources

_ENTRY = re.compile(r"Compiling entry function '(?P<kernel>[^'\n]+)' for '(?P<arch>[^'\n]+)'")
_STACK = re.compile(
    r"(?P<stack>\d{1,12}) bytes stack frame, (?P<stores>\d{1,12}) bytes spill stores, "
    r"(?P<loads>\d{1,12}) bytes spill loads"
)
_PROPERTIES = re.compile(r"Function properties for (?P<name>\S+)")
_REGISTERS = re.compile(r"Used (?P<registers>\d{1,6}) registers")
_SHARED = re.compile(r"(?P<bytes>\d{1,12})(?:\+(?P<more>\d{1,12}))? bytes smem")
_CONSTANT = re.compile(r"(\d{1,12}) bytes cmem\[\d+\]")


def parse_resources(output: str) -> tuple[KernelResources, ...]:
    """One row per kernel and architecture, in the order of the report; any text is survived."""
    rows: list[KernelResources] = []
    kernel, arch = "", ""
    subject = ""
    frame = (0, 0, 0)
    for line in output.splitlines():
        if entry := _ENTRY.search(line):
            kernel, arch, frame = entry["kernel"], entry["arch"], (0, 0, 0)
        elif properties := _PROPERTIES.search(line):
            subject = properties["name"]
        elif stack := _STACK.search(line):
            # Device functions that were not inlined have frames of their own, which count for no kernel.
            if subject in ("", kernel):
                frame = (int(stack["stores"]), int(stack["loads"]), int(stack["stack"]))
        elif (used := _REGISTERS.search(line)) and kernel:
            rows.append(_row(line, kernel, arch, int(used["registers"]), frame))
            kernel = ""
    names = demangle([row.kernel for row in rows])
    return tuple(row.model_copy(update={"kernel": name}) for row, name in zip(rows, names, strict=True))


def demangle(symbols: Sequence[str]) -> list[str]:
    """Readable names of the symbols by c++filt, or the symbols where there is no c++filt."""
    program = shutil.which("c++filt")
    if program is None or not symbols:
        return list(symbols)
    try:
        completed = subprocess.run(
            [program],
            input="\n".join(symbols) + "\n",
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.SubprocessError, UnicodeError):
        return list(symbols)
    names = completed.stdout.split("\n")[: len(symbols)]
    return names if len(names) == len(symbols) and all(names) else list(symbols)


def _row(line: str, kernel: str, arch: str, registers: int, frame: tuple[int, int, int]) -> KernelResources:
    shared = _SHARED.search(line)
    return KernelResources(
        kernel=kernel,
        arch=arch,
        registers=registers,
        shared_bytes=int(shared["bytes"]) + int(shared["more"] or 0) if shared else 0,
        constant_bytes=sum(int(size) for size in _CONSTANT.findall(line)),
        stack_bytes=frame[2],
        spill_store_bytes=frame[0],
        spill_load_bytes=frame[1],
    )
