"""What a run teaches for the next one, from a fixed vocabulary: no text of a model or a reference."""

from typing import Literal

from stitch_tools.models.base import Fact

LessonOutcome = Literal["gain", "no_gain", "rejected"]


class Lesson(Fact):
    """What became of one program that a model wrote."""

    run_id: str
    number: int
    """The program's number in that run."""
    target: str
    """`cpu` or `cuda`."""
    ops: tuple[str, ...]
    """Kinds of the operations that cost most, sorted."""
    bound: str
    """What limits the costliest step by the plan: memory, compute, launch; "" where it is not known."""
    techniques: tuple[str, ...]
    """Which the program has and the one that it was made from has not; of a draft all."""
    outcome: LessonOutcome
    gain: float | None = None
    """Speed over that of the program it was made from; of a draft over eager. None: not measured."""
    problem: str = ""
    """Status, and rules of the findings, of a program that does not count."""

    @property
    def sentence(self) -> str:
        """The lesson as a line of a prompt."""
        what = f"{' + '.join(self.ops)} on {self.target}{f', {self.bound}-bound' if self.bound else ''}"
        how = ", ".join(self.techniques) or "no technique that has a name"
        if self.outcome == "rejected":
            return f"{what}: a program with {how} was wrong ({self.problem})"
        speed = "not measured" if self.gain is None else f"{self.gain:.2f} times the speed"
        return f"{what}: {how} gave {speed}"
