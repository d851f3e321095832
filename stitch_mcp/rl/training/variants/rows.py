"""The family of row programs: its tasks, the choices that make a program of it, and the rendered source."""

import itertools
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from stitch_tools.storage.store import write_atomically

ACTIVATIONS = ("nn.functional.silu", "sigmoid", "tanh", "relu")
"""As they stand behind `torch.`; the place is the number that the source files know."""


@dataclass(frozen=True)
class Axis:
    """One choice that a variant makes."""

    name: str
    macro: str
    values: Mapping[str, str]
    """Word of each value, and what the macro is defined as."""

    def word(self, value: str) -> str:
        """How a policy writes the value."""
        return f"{self.name}:{value}"


_SHORTCUT = Axis("shortcut", "SHORTCUT", {"none": "0", "bfloat16": "1", "skip": "2"})
"""`bfloat16` is wrong under an fp32 contract, `skip` is a cheat: a policy has to learn to leave them."""
AXES: Mapping[str, Sequence[Axis]] = {
    "cpu": (
        Axis("math", "MATH", {"polynomial": "0", "library": "1", "double": "2"}),
        Axis("walk", "WALK", {"rows": "0", "columns": "1"}),
        Axis("threads", "THREADS", {"all": "0", "one": "1"}),
        _SHORTCUT,
    ),
    "cuda": (
        Axis("math", "MATH", {"float": "0", "double": "1"}),
        Axis("walk", "WALK", {"rows": "0", "columns": "1"}),
        Axis("loads", "LOADS", {"four": "4", "single": "1"}),
        _SHORTCUT,
    ),
}
"""The choices for each kind of target. Every combination compiles."""


class UnusableChoiceError(ValueError):
    """Words that choose no variant."""


@dataclass(frozen=True)
class RowsTask:
    """One task of the family."""

    activation: int
    """Place in ACTIVATIONS."""
    rows: int
    columns: int
    """A multiple of 4."""

    @property
    def name(self) -> str:
        """Its name, which is also that of its file."""
        return f"rows_{self.activation_word}_{self.rows}x{self.columns}"

    @property
    def activation_word(self) -> str:
        """The activation's own name."""
        return ACTIVATIONS[self.activation].rpartition(".")[2]

    def words(self) -> Sequence[str]:
        """The task as a small policy reads it."""
        return (f"act:{self.activation_word}", f"rows:{self.rows}", f"columns:{self.columns}")

    def write_reference(self, folder: Path) -> Path:
        """The path of its reference, written into `folder`."""
        template = string.Template(_text("reference.txt"))
        source = template.substitute(
            activation=ACTIVATIONS[self.activation], rows=self.rows, columns=self.columns
        )
        path = folder / f"{self.name}.py"
        # Several training processes write the same one.
        write_atomically(path, source.encode("utf-8"))
        return path.resolve()


def axes_of(target: str) -> Sequence[Axis]:
    """The choices of a program for `cpu` or `cuda...`."""
    return AXES[target.partition(":")[0]]


def choice_words(target: str) -> Sequence[str]:
    """Every word that a choice may consist of."""
    return [axis.word(value) for axis in axes_of(target) for value in axis.values]


def all_choices(target: str) -> Iterator[tuple[str, ...]]:
    """Every variant as its words, in the order of the axes."""
    return itertools.product(*([axis.word(value) for value in axis.values] for axis in axes_of(target)))


def read_choice(text: str, target: str) -> tuple[str, ...]:
    """The words of a choice in the order of the axes.

    Raises:
        UnusableChoiceError: an axis is not chosen, or twice, or something else is written.
    """
    known = set(choice_words(target))
    words = text.split()
    if foreign := [word for word in words if word not in known]:
        raise UnusableChoiceError(f"{foreign[0][:40]!r} is no choice")
    chosen: list[str] = []
    for axis in axes_of(target):
        named = [word for word in words if word.startswith(f"{axis.name}:")]
        if len(named) != 1:
            raise UnusableChoiceError(f"{axis.name} is chosen {len(named)} times, not once")
        chosen += named
    return tuple(chosen)


def render_variant(task: RowsTask, choice: Sequence[str], target: str) -> dict[str, str]:
    """The files of the program that these words choose."""
    suffix = "cu" if target.startswith("cuda") else "cpp"
    values = dict(word.split(":", 1) for word in choice)
    macros = [f"#define ACTIVATION {task.activation}"]
    macros += [f"#define {axis.macro} {axis.values[values[axis.name]]}" for axis in axes_of(target)]
    return {f"program.{suffix}": "\n".join([*macros, "", _text(f"rows.{suffix}")])}


def _text(name: str) -> str:
    return files("stitch_mcp.rl.training.variants").joinpath(name).read_text(encoding="utf-8")
