"""Our own failures. What a candidate does wrong is a result, never one of these.

Every error says what happened (`message`) and what to do next (`hint`). Only the CLI maps them to exit codes.
"""


class StitchError(Exception):
    """A failure of ours or of the environment, with a stable `code` and a `hint` that names the next step."""

    code = "internal"

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(StitchError):
    """The caller asked for something that cannot be: a bad argument, an unknown id, a conflicting option."""

    code = "usage"


class TaskError(UsageError):
    """The reference cannot be used: syntax error, missing entry, wrong inputs, exception in forward."""

    code = "task"


class EnvironmentMissingError(StitchError):
    """Something this machine needs is not there: a compiler, torch in the target interpreter, a library."""

    code = "environment"


class SandboxError(EnvironmentMissingError):
    """The isolation that was required is not available here."""

    code = "sandbox"


class StoreError(StitchError):
    """The run folder or store cannot be read or written: locked, full, read-only, damaged, newer schema."""

    code = "store"


class LockedError(StoreError):
    """Another process holds the lock; the message names its pid and host."""

    code = "locked"


class WorkerError(StitchError):
    """A process of ours (zygote, reference server) failed in a way that is not the candidate's doing."""

    code = "worker"


class CertificateError(StitchError):
    """The archive is damaged or is not a certificate."""

    code = "certificate"


class InterruptedRunError(StitchError):
    """The user stopped the run; everything finished so far is kept and the hint says how to resume."""

    code = "interrupted"


class BudgetError(StitchError):
    """The time or money that the caller allowed is spent; everything finished so far is kept."""

    code = "budget"
