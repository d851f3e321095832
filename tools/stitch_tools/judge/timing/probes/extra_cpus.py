"""Does the program use more CPUs than it may?"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stitch_tools.confine.process_tree import descendants
from stitch_tools.judge.timing.probes.probe import ProbeContext, ProbeReport, Stage
from stitch_tools.models.conditions import TimingDoubt

_BUSIER = 1.2
_SLACK_S = 0.5
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class ExtraCpus:
    """Compares the CPU time of all of the program's processes with what its threads can use."""

    stage: Stage = "running"

    def look(self, context: ProbeContext) -> ProbeReport:
        """A doubt where the program used more."""
        # On a GPU threads of the driver work, too.
        if context.setup.cuda or context.cpu_s is None:
            return ProbeReport()
        doubt = extra_cpus(context.cpu_s, context.program.history, context.setup.session.threads)
        return ProbeReport((doubt,) if doubt else ())


def extra_cpus(cpu_s: float, history: Sequence[tuple[int, float]], threads: int) -> TimingDoubt | None:
    """The doubt where so much CPU time is more than the threads can use in the batches' time."""
    wall_s = sum(seconds for _, seconds in history)
    if cpu_s <= _BUSIER * threads * wall_s + _SLACK_S:
        return None
    return TimingDoubt(rule="extra_cpus", observed=cpu_s / wall_s, expected=threads)


def cpu_seconds(pid: int) -> float | None:
    """CPU time so far of a child's process, and of all that it started; None where it is gone.

    Its parent is an init of its own, which gets what lost its parent.
    """
    fields = _stat(pid)
    if fields is None:
        return None
    family = [int(fields[1])]
    family += descendants(family[0])
    # User and system time, and both again of children that it waited for.
    ticks = sum(int(word) for fields in filter(None, map(_stat, family)) for word in fields[11:15])
    return ticks / _TICKS_PER_S


def _stat(pid: int) -> list[str] | None:
    """What the kernel says of a process, from its state on; None where it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()  # The name in parentheses may hold anything.
