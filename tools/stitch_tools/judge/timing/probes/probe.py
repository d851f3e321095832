"""The seam between a timing and its probes: what a probe is given, and what it reports."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from stitch_tools.judge.timing.output_check import OutputCheck
from stitch_tools.judge.timing.program_runners import LoadedProgram, programs_among
from stitch_tools.judge.timing.rounds import Rounds
from stitch_tools.judge.timing.runners import Runner
from stitch_tools.judge.timing.setup import Setup
from stitch_tools.machine.devices import Target
from stitch_tools.models.conditions import TimingDoubt
from stitch_tools.run.reference_server import Inputs

Stage = Literal["running", "finished"]
"""When a probe looks: while the loops of the rounds still serve calls, or when these have ended."""


@dataclass(frozen=True)
class ProbeContext:
    """A program whose rounds are over, and everything that a probe may look at."""

    setup: Setup
    target: Target
    loaded: LoadedProgram
    program: Runner
    runners: Sequence[Runner]
    """All of them, the program included."""
    draws: Sequence[Inputs]
    """What the rings were made of."""
    rounds: Rounds
    """What empty batches took too long is charged already."""
    overhead_limit_s: float | None
    """What an empty batch may cost the program (`call_overhead`)."""
    cpu_s: float | None
    """CPU time that the program and its children used in the rounds; None where it is not known."""
    say: Callable[[str], None]
    """Takes sentences on the progress."""

    @property
    def throughput_s(self) -> float:
        """Seconds per call of the program in the rounds, of many in a row."""
        return self.rounds.series[self.program.name].throughput_s()

    @property
    def latency_s(self) -> float:
        """Seconds of a call by itself."""
        return self.rounds.series[self.program.name].latency_s()

    @property
    def others_disturb(self) -> bool:
        """Whether others than the program disturbed: it is stopped while the baselines are visited."""
        return self.rounds.disturbance(without=programs_among(self.rounds.series)).is_large


@dataclass(frozen=True)
class ProbeReport:
    """What one probe showed. Only doubts and wrong outputs decide anything."""

    doubts: tuple[TimingDoubt, ...] = ()
    outputs: tuple[OutputCheck, ...] = ()
    """Of outputs that the probe compared with the reference."""
    not_checked: tuple[str, ...] = ()
    """What this probe does not cover, for people."""


class Probe(Protocol):
    """One look at whether a program's times are what its calls cost."""

    @property
    def stage(self) -> Stage:
        """When it looks. A doubt ends the stage `running`: its other probes would only cost time."""
        ...

    def look(self, context: ProbeContext) -> ProbeReport:
        """Look once.

        Raises:
            RunnerFailedError: the program failed meanwhile.
        """
        ...
