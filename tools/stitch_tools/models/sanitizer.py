"""What the sanitizers saw: memory errors, races, undefined behaviour and values that nobody wrote."""

from typing import Literal

from stitch_tools.models.base import Fact, retired

SanitizerTool = Literal["asan", "ubsan", "tsan", "init", "memcheck", "racecheck", "initcheck", "synccheck"]
"""CPU: asan, ubsan, tsan (compiled into the program) and init (two runs over memory that held other bytes).
CUDA: the four tools of compute-sanitizer."""
SanitizerStatus = Literal["clean", "findings", "not_checked"]
Severity = Literal["fatal", "suspicious", "note"]


class SanitizerFinding(Fact):
    """One defect, however often it happened."""

    rule: str
    """Stable id: heap-buffer-overflow, data-race, invalid-read, ..."""
    severity: Severity
    message: str
    """One sentence."""
    kernel: str | None = None
    """CUDA kernel or C++ function in which it happened."""
    file: str | None = None
    """Path relative to the program's folder where it lies inside it."""
    line: int | None = None
    """1-based."""
    count: int = 1
    """How many reports fell together."""

    # Checks of before named the address space, which the message says.
    _retired = retired("space")

    @property
    def doc_query(self) -> str:
        """Plain words to search documentation with."""
        return f"sanitizer {self.rule.replace('-', ' ')}"


class SanitizerRun(Fact):
    """What one tool found, or why it was not applied."""

    tool: SanitizerTool
    status: SanitizerStatus
    reason: str = ""
    """Why it was not checked; "" otherwise."""
    too_slow: bool = False
    """Whether that is since it did not finish in its time."""
    findings: tuple[SanitizerFinding, ...] = ()
    """In the program's own code."""
    library_findings: tuple[SanitizerFinding, ...] = ()
    """In libraries that it called: they do not count against it."""
    inputs: str = ""
    """Which draw it ran on: own-1 (the task's shapes) or batch-probe (a smaller leading size); "" if none."""
    wall_s: float | None = None
    """Seconds under the tool, without building; None when it did not run."""
