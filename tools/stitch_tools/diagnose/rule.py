"""The type of a rule: what it looks for, what it found, and what helps."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from stitch_tools.diagnose.evidence import ProfileEvidence
from stitch_tools.models.profile import BoundBy, Quantity


@dataclass(frozen=True)
class Seen:
    """A cause that is there, with the time that its remedy may save."""

    cause: str
    low_us: float
    expected_us: float
    high_us: float
    evidence: tuple[Quantity, ...] = ()
    kernel: str = ""
    module: str = ""
    file: str | None = None
    line: int | None = None
    action: str = ""
    """In place of the rule's own, where what was found says more."""
    doc_query: str = ""


Looked = Seen | str | None
"""What was seen; or why it is ruled out; or None where nothing tells."""


@dataclass(frozen=True)
class DiagnosisRule:
    """A row of the table."""

    name: str
    target: Literal["cuda", "cpu", "both"]
    look: Callable[[ProfileEvidence], Looked]
    action: str
    doc_query: str
    skill: str = ""
    bound_by: BoundBy = "unknown"
    """What limits the whole where this is the largest cause."""

    def applies(self, evidence: ProfileEvidence) -> bool:
        """Whether it is a rule for the profile's target."""
        return self.target == "both" or (self.target == "cuda") == evidence.on_gpu
