"""A library call as text: what the emitters of both targets share."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from stitch_planner.stitcher.lower.kernel_ir import Kernel, LibraryCall, LibraryOp, View

CallArgument = View | tuple[View, ...] | str | None
"""An address, an array of addresses (empty: none), C++ text, or a null pointer."""


@dataclass(frozen=True)
class CallText:
    """One object of a header class: `init(...)` once, `run(...)` on every forward, as StitchStatus."""

    header: str
    """"stitch/cpu/gemm.h"."""
    type: str
    """Class: "stitch::cpu::Gemm"."""
    init: tuple[CallArgument, ...]
    """Arguments of init; addresses may only be parameters here."""
    run: tuple[CallArgument, ...]
    chosen: str = ""
    """What a person should know of the choice ("oneDNN matmul, weights packed")."""
    uses_dnnl: bool = False
    """Whether the class needs libdnnl; its error text is then taken from `lib`."""


def call_texts(kernels: Iterable[Kernel], text: Callable[[LibraryOp], CallText]) -> dict[str, CallText]:
    """The text of each library call, by its name."""
    return {kernel.name: text(kernel.operation) for kernel in kernels if isinstance(kernel, LibraryCall)}


def argument_text(item: CallArgument, address: Callable[[View], str]) -> str:
    """An argument of a call; `address` gives the text of a window's address."""
    if isinstance(item, View):
        return address(item)
    if isinstance(item, tuple) and item:
        return "{" + ", ".join(map(address, item)) + "}"
    return item if isinstance(item, str) else "nullptr"


def flag(value: bool) -> str:
    """A C++ bool."""
    return "true" if value else "false"


def braced(values: Sequence[int]) -> str:
    """A braced list of numbers."""
    return "{" + ", ".join(map(str, values)) + "}"


def enumerator(name: str) -> str:
    """A kind as our headers spell it: `gelu_erf` is `kGeluErf`."""
    return "k" + "".join(part.capitalize() for part in name.split("_"))


COLUMNS = 110


def wrapped(statement: str, indent: int) -> list[str]:
    """A statement in lines that end behind commas and fit behind `indent` columns, where commas allow it."""
    lines: list[str] = []
    line, *pieces = statement.split(", ")
    for piece in pieces:
        if len(line) + len(piece) + indent + 3 > COLUMNS:
            lines.append(f"{line},")
            line = f"    {piece}"
        else:
            line = f"{line}, {piece}"
    return [*lines, line]
