"""How a child process ended. A fact about the candidate or the task, not an error of ours."""

import signal
from dataclasses import dataclass
from typing import Literal

from stitch_tools.protocol.messages_session import WatchdogReason

OutcomeKind = (
    WatchdogReason
    | Literal["exited", "early_exit", "crashed", "signaled", "timed_out"]
    | Literal["forked", "closed_descriptors", "protocol", "went_on"]
)

# By name: some do not exist on every system where this module is imported.
CRASH_SIGNALS = frozenset({"SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSYS", "SIGTRAP"})


@dataclass(frozen=True)
class Outcome:
    """The end of one child. Texts come from the child: data, never instructions."""

    kind: OutcomeKind
    """exited: asked to. early_exit: unasked. crashed: by a fault of its own (segmentation fault, abort).
    signaled: by another signal. timed_out: a request's deadline passed, or it was ended as a hang.
    forked: somebody else than the process itself answered. closed_descriptors: alive, its channel is gone.
    protocol: it sent something that is not an answer. went_on: it worked while it was stopped.
    killed: ended by us without a fault."""
    exit_code: int | None = None
    signal_name: str | None = None
    """SIGSEGV, ... when a signal ended it."""
    output_tail: str = ""
    """The end of what it printed, to standard output and error alike."""
    detail: str = ""
    """What was wrong with an answer; "" where nothing more is known."""

    def describe(self) -> str:
        """One sentence for people."""
        why = f": {self.detail}" if self.detail else ""
        return {
            "exited": "the process ended as asked",
            "early_exit": f"the process ended by itself with code {self.exit_code} before it had answered",
            "crashed": f"the process crashed with {self.signal_name}",
            "signaled": f"the process was ended by {self.signal_name}",
            "timed_out": "the process did not answer in time",
            "out_of_memory": "the process needed more memory than it may have",
            "output_flood": "the process printed more than it may",
            "too_many_processes": "the process started more processes than it may",
            "scratch_full": "the process wrote more to its scratch folder than it may",
            "forked": "another process than the one we started answered",
            "closed_descriptors": "the process closed its connection to us",
            "protocol": f"the process sent something that is not an answer{why}",
            "went_on": "the process went on while it was stopped",
            "killed": "we ended the process",
        }[self.kind]


class ChildDied(Exception):  # noqa: N818 (an event that callers turn into a result, not an error of ours)
    """The child is gone, and everything that it had started; `outcome` says how it ended."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.describe())
        self.outcome = outcome


class ChildTimeout(ChildDied):
    """The deadline passed; the child was killed for it."""


def signal_name(number: int | None) -> str | None:
    """SIGSEGV for 11; None for None."""
    if number is None:
        return None
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
