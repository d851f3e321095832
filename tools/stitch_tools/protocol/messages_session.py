"""Messages of the session, the zygote, each child's init, the tool runner and the probe of the data plane."""

from dataclasses import dataclass, field
from typing import Literal

from stitch_tools.protocol.memory import PackEntry
from stitch_tools.protocol.messages import Done, Fault, Fd, Level, Notice, Operation

Role = Literal["reference", "worker"]
_NOT_YET = Fd(-1)
WatchdogReason = Literal["killed", "out_of_memory", "output_flood", "too_many_processes", "scratch_full"]


@dataclass(frozen=True)
class ZygoteReady:
    """The zygote's first words: it has imported torch and found out how well it can isolate."""

    python_version: str
    torch_version: str
    cuda_version: str | None
    level: Level
    level_reason: str
    """Why the level is not a stronger one; "" for full."""
    landlock_abi: int


@dataclass(frozen=True)
class ChildLimits:
    """Upper bounds of one child and everything that it starts; `processes.limits` says what each means."""

    memory_bytes: int
    scratch_bytes: int
    output_bytes: int
    processes: int
    shadow_memory: bool


@dataclass(frozen=True)
class ChildSpawned:
    """The new child's init."""

    pid: int


@dataclass(frozen=True)
class SpawnChild(Operation[ChildSpawned], op="spawn"):
    """Fork a confined child that serves a role."""

    role: Role
    serve_module: str
    serve_file: str | None
    """A Python file whose `serve` runs instead of the module's."""
    level: Level
    scratch: str
    readable: tuple[str, ...]
    writable: tuple[str, ...]
    env: dict[str, str]
    limits: ChildLimits
    loopback: bool
    channel: Fd = _NOT_YET
    """Requests of the controller. Known when the request is sent."""
    control: Fd = _NOT_YET
    """The line between the controller and the child's init."""


@dataclass(frozen=True)
class TreeResumed:
    """Reply of `ResumeTree`."""

    went_on: bool
    """Whether anything used a CPU while all should have stood still."""


@dataclass(frozen=True)
class PauseTree(Operation[Done], op="pause"):
    """Stop the child and everything it started."""


@dataclass(frozen=True)
class ResumeTree(Operation[TreeResumed], op="resume"):
    """Let the child go on."""


@dataclass(frozen=True)
class KillTree(Notice, op="kill"):
    """End the child and everything it started; the report of its end follows."""


@dataclass(frozen=True)
class ChildEnded(Notice, op="ended"):
    """The init's report of how the child ended."""

    exit_code: int | None
    signal: int | None
    reason: WatchdogReason | None
    """Why the init ended it; None where it ended by itself."""
    stdout_tail: str
    stderr_tail: str
    peak_rss_bytes: int
    left_behind: int


@dataclass(frozen=True)
class InitFailed(Notice, op="failed"):
    """The init's report that it could not do its work."""

    fault: Fault


@dataclass(frozen=True)
class CommandEnded:
    """How a command ended, and what it printed."""

    exit_code: int
    timed_out: bool
    wall_s: float
    stdout: str
    stderr: str
    reports: dict[str, str]
    """Text of the files whose names begin with the request's `reports`, by name."""


@dataclass(frozen=True)
class ExecuteCommand(Operation[CommandEnded], op="execute"):
    """Run a command in the scratch folder, with the message's descriptors, for at most `limit_s` seconds."""

    command: tuple[str, ...]
    """`{0}`, `{1}`, ... stand for the descriptors' numbers."""
    files: dict[str, str]
    """Written into the folder before."""
    env: dict[str, str]
    limit_s: float
    reports: str
    fds: tuple[Fd, ...]


@dataclass(frozen=True)
class CompilerRun:
    """What `compiler_run` is started with, as its argument."""

    command: tuple[str, ...]
    folder: str
    level: Level | None
    """None where the system has no isolation."""
    readable: tuple[str, ...]
    writable: tuple[str, ...]
    limits: dict[str, int]
    """By RLIMIT name."""
    report: int
    """Descriptor that `CompilerEnded` is written to as a line of JSON."""
    parent: int
    """Pid whose end is ours."""


@dataclass(frozen=True)
class CompilerEnded:
    """How a compiler ended; exactly one of the fields is given."""

    status: int | None = None
    """As `os.wait` tells it."""
    not_started: int | None = None
    """The error's number."""
    not_isolated: str | None = None


@dataclass(frozen=True)
class ProbeReply:
    """Reply of a step of the data plane's probe."""

    refused: str | None = None
    """The driver's reason against memory for two processes."""
    manifest: list[PackEntry] = field(default_factory=list[PackEntry])
    fds: tuple[Fd, ...] = ()
    right: bool = False


@dataclass(frozen=True)
class ProbeStart(Operation[ProbeReply], op="start"):
    """Come into being on the device."""

    on_device: bool


@dataclass(frozen=True)
class ProbeSend(Operation[ProbeReply], op="send"):
    """The judge's part: inputs for the program, from a master of random bytes that stays."""

    on_device: bool
    nbytes: int


@dataclass(frozen=True)
class ProbePoison(Operation[ProbeReply], op="poison"):
    """The judge's part: memory for the program's outputs, that holds what it does not compute."""

    on_device: bool
    manifest: list[PackEntry]


@dataclass(frozen=True)
class ProbeTake(Operation[ProbeReply], op="take"):
    """The program's part: a copy of the inputs, in its own memory."""

    manifest: list[PackEntry]
    fd: Fd


@dataclass(frozen=True)
class ProbeGive(Operation[ProbeReply], op="give"):
    """The program's part: every bit turned round, straight into the outputs where it can reach them."""

    manifest: list[PackEntry]
    fd: Fd


@dataclass(frozen=True)
class ProbeRead(Operation[ProbeReply], op="read"):
    """The judge's part: whether a copy of the outputs is what the program had to compute."""

    manifest: list[PackEntry]
    fd: Fd
