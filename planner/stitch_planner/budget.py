"""What ends a run between two steps: somebody asks it to stop, or its time is over."""

import threading
import time
from dataclasses import dataclass, field

from stitch_planner.policy import open_step
from stitch_planner.runs.run import Run
from stitch_tools.errors import BudgetError, InterruptedRunError
from stitch_tools.models.remedy import Remedy

_TELLING = ("review", "decision", "certificate", "finished")
"""Steps that measure nothing, and take no time to speak of."""


@dataclass(frozen=True)
class Budget:
    """The limits of one call of `solve`."""

    stop: threading.Event = field(default_factory=threading.Event)
    """When set, no further step is started."""
    end_s: float = float("inf")
    """A time.monotonic() value after which no further step is started."""

    def check(self, run: Run) -> None:
        """Refuse to begin the next step where the run has to end here.

        Raises:
            InterruptedRunError: it was asked to stop.
            BudgetError: its time is over.
        """
        # Checked between steps only: a step in flight ends with its event, so that nothing that it measured
        # is lost.
        kept = f"before the step '{open_step(run.state)}'; everything up to it is kept"
        if self.stop.is_set():
            raise InterruptedRunError(f"stopped {kept}", remedies=(resume_remedy(run.run_id),))
        # What all instruments looked at is worth another second: to decide, to certify and to tell it.
        if time.monotonic() > self.end_s and open_step(run.state) not in _TELLING:
            raise BudgetError(f"the time limit was reached {kept}", remedies=(resume_remedy(run.run_id),))


def resume_remedy(run_id: str) -> Remedy:
    """The call that resumes a run."""
    return Remedy(tool="solve", arguments={"run_id": run_id}, why="resume the run")
