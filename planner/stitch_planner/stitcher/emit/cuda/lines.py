"""Text of a kernel's class under construction, and what pointwise and row classes say alike."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from stitch_planner.stitcher.emit.call_text import wrapped
from stitch_planner.stitcher.emit.scalar_text import CUDA, MEMORY_TYPES, VALUE_TYPES, constant, expression
from stitch_planner.stitcher.lower.kernel_ir import Access, Buffer, Instr


@dataclass
class Lines:
    """Text under construction, indented by two spaces a level."""

    lines: list[str] = field(default_factory=list[str])
    depth: int = 0

    def add(self, *texts: str) -> None:
        """Appends lines at the present depth; those that are too long are continued below."""
        for text in texts:
            fixed = "//" in text or text.startswith("#")
            pieces = [text] if fixed else wrapped(text, 2 * self.depth)
            self.lines.extend("  " * self.depth + piece if piece else "" for piece in pieces)

    def open(self, text: str) -> None:
        """Appends a line that opens a block."""
        self.add(text)
        self.depth += 1

    def close(self, text: str = "}") -> None:
        """Ends the innermost block; an empty one stays on its line."""
        self.depth -= 1
        if self.lines[-1].endswith("{"):
            self.lines[-1] += text
        else:
            self.add(text)

    def unrolled(self, vector: int) -> None:
        """Opens the loop over a group's elements."""
        self.add("#pragma unroll")
        self.open(f"for (int e = 0; e < {vector}; ++e) {{")


def comment_line(text: str) -> str:
    """The text as one C++ comment: names of the reference must not end it, nor continue it below."""
    return ("// " + " ".join(text.split())).rstrip("\\")


def open_class(out: Lines, name: str, comment: str, declared: dict[Buffer, str]) -> None:
    """Begins a kernel's class: its comment, and the pointers that it holds."""
    out.add(comment_line(comment))
    out.open(f"struct {name} {{")
    out.add(*declared.values(), "")


def instructions(
    out: Lines,
    instrs: Sequence[Instr],
    places: Sequence[int],
    *,
    load: Callable[[int], str],
    index: Callable[[int], str],
    loads: Sequence[Access],
    name: Callable[[int], str] | None = None,
) -> None:
    """One declaration for each instruction in `places`; constants stand where they are used."""

    def named(place: int) -> str:
        return name(place) if name else value_name(instrs, place)

    for place in places:
        instr = instrs[place]
        if instr.op == "const":
            continue
        if instr.op == "load":
            text = loaded(loads[number_of(instr)], load(number_of(instr)))
        elif instr.op == "index":
            text = index(number_of(instr))
        else:
            text = expression(instr, named, CUDA)
        out.add(f"const {VALUE_TYPES[instr.dtype]} v{place} = {text};")


def value_name(instrs: Sequence[Instr], place: int) -> str:
    """How an expression mentions a value: constants stand for themselves."""
    return constant(instrs[place], CUDA) if instrs[place].op == "const" else f"v{place}"


def loaded(access: Access, text: str) -> str:
    """A memory element as a value: bool tensors hold bytes."""
    return f"{text} != 0" if access.buffer.dtype == "bool" else text


def stored(access: Access, instr: Instr, text: str) -> str:
    """A value as a memory element; `text` is the value of `instr`."""
    kind = MEMORY_TYPES[access.buffer.dtype]
    return text if kind == VALUE_TYPES[instr.dtype] else f"static_cast<{kind}>({text})"


def number_of(instr: Instr) -> int:
    """The number of a load or of an index's axis."""
    assert isinstance(instr.value, int)
    return instr.value
