"""Messages of the session, the zygote, each child's init, the tool runner and the probe of the data plane."""

from dataclasses import field
from typing import Literal

from stitch_tools.protocol.free_memory import available_bytes
from stitch_tools.protocol.memory import PackEntry
from stitch_tools.protocol.messages import Done, Fault, Fd, Level, Message, Notice, Operation

Role = Literal["reference", "worker"]
_NOT_YET = Fd(-1)
_GIB = 1 << 30
_SHARE_OF_FREE = 0.9
WatchdogReason = Literal["killed", "out_of_memory", "output_flood", "too_many_processes", "scratch_full"]


class ZygoteReady(Message):
    """The zygote's first words: it has imported torch and found out how well it can isolate."""

    torch_version: str
    cuda_version: str | None
    level: Level
    level_reason: str
    """Why the level is not a stronger one; "" for full."""
    landlock_abi: int


def _most_of_the_free_memory() -> int:
    return int(available_bytes() * _SHARE_OF_FREE)


class ChildLimits(Message):
    """Upper bounds of one child and everything that it starts."""

    memory_bytes: int = field(default_factory=_most_of_the_free_memory)
    """Memory beyond what the zygote gave it; by default nine tenths of what is free now."""
    scratch_bytes: int = 2 * _GIB
    """Size of its scratch folder (and of its /dev/shm), which count as memory at level full."""
    output_bytes: int = 16 << 20
    """Printed bytes, both streams together; more is a flood."""
    processes: int = 64
    shadow_memory: bool = False
    """Whether a sanitizer's shadow memory is reserved: terabytes of addresses that RLIMIT_DATA would count.
    The watchdog over resident memory then bounds it alone."""


class SpawnChild(Operation[int], op="spawn"):
    """Fork a confined child that serves a role."""

    role: Role
    serve_module: str
    serve_file: str | None
    """A Python file whose `serve` runs instead of the module's."""
    level: Level
    scratch: str
    """At level full a file system of its own, gone with it."""
    readable: tuple[str, ...]
    writable: tuple[str, ...]
    env: dict[str, str]
    limits: ChildLimits
    loopback: bool
    """Level full: whether it may use the network of its own namespace, where itself alone is reached, and
    what it starts may write to its own /proc folder; pid 1 must have called `prepare_for_tool`."""
    channel: Fd = _NOT_YET
    """Requests of the controller. Known when the request is sent."""
    control: Fd = _NOT_YET
    """The line between the controller and the child's init."""


class PauseTree(Operation[Done], op="pause"):
    """Stop the child and everything it started."""


class ResumeTree(Operation[bool], op="resume"):
    """Let the child go on."""


class KillTree(Notice, op="kill"):
    """End the child and everything it started; the report of its end follows."""


class ChildEnded(Notice, op="ended"):
    """The init's report of how the child ended."""

    exit_code: int | None
    signal: int | None
    reason: WatchdogReason | None
    """Why the init ended it; None where it ended by itself."""
    output_tail: str


class InitFailed(Notice, op="failed"):
    """The init's report that it could not do its work."""

    fault: Fault


class CommandEnded(Message):
    """How a command ended, and what it printed."""

    exit_code: int | None
    """None where the confined process itself did not survive."""
    timed_out: bool = False
    wall_s: float = 0.0
    stdout: str = ""
    stderr: str = ""
    reports: dict[str, str] = field(default_factory=dict[str, str])
    """Text of the files whose names begin with the request's `reports`, by name."""


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


class CompilerRun(Notice, op="compile"):
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


class CompilerEnded(Notice, op="compiler_ended"):
    """How a compiler ended; exactly one of the fields is given."""

    status: int | None = None
    """As `os.wait` tells it."""
    not_started: int | None = None
    """The error's number."""
    not_isolated: str | None = None


class ProbeReply(Message):
    """Reply of a step of the data plane's probe."""

    refused: str | None = None
    """The driver's reason against memory for two processes."""
    manifest: list[PackEntry] = field(default_factory=list[PackEntry])
    fds: tuple[Fd, ...] = ()
    right: bool = False


class ProbeStep(Operation[ProbeReply], op="probe"):
    """One step of the data plane's probe."""

    step: Literal["start", "send", "poison", "take", "give", "read"]
    """start: come into being on the device. The judge sends inputs, from a master of random bytes that stays,
    and poisons memory for outputs. The program takes a copy of the inputs into its own memory, and gives it
    back with every bit turned round, straight into the outputs where it can reach them. The judge reads
    whether a copy of the outputs is what the program had to compute."""
    on_device: bool = False
    nbytes: int = 0
    manifest: list[PackEntry] = field(default_factory=list[PackEntry])
    fds: tuple[Fd, ...] = ()
    """The pack of a step that is given one."""
