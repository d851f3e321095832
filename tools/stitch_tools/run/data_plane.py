"""The data plane: how tensors on a GPU travel between the judge and a program. Tried out, never assumed."""

import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import stitch_tools
from stitch_tools.models.verdict import DataPlane
from stitch_tools.protocol.messages import OperationFailedError
from stitch_tools.protocol.messages_session import ProbeReply, ProbeStep, Role
from stitch_tools.run.child import Child
from stitch_tools.run.child_outcome import ChildDied

SETTING = "STITCH_DATA_PLANE"
"""`device` or `host`; what it does not name is not used."""
_DEFAULT: DataPlane = "device"
_PROBE = Path(stitch_tools.__file__).parent / "worker" / "plane_probe.py"
# More than one page of the device, and no whole number of them.
_PROBE_BYTES = 3 << 20
_TIMEOUT_S = 60.0
_MOST_CHARS = 300


@dataclass(frozen=True)
class Plane:
    """How tensors on a GPU travel here."""

    kind: DataPlane
    reason: str = ""
    """Why it is not `device`; "" where it is."""


@dataclass
class Times:
    """Seconds of the steps of one way there and back, by the controller's clock."""

    poisoned_s: float
    """Memory for outputs, made and filled."""
    inputs_s: float
    """From the judge's master to the program's own copy."""
    outputs_s: float
    """From the program's result to the judge's own copy, and compared."""


class Spawner(Protocol):
    """What starts confined children: a TargetSession."""

    def spawn(self, role: Role, *, serve_file: Path | None = None) -> Child:
        """A confined child that serves requests by the code of a file."""
        ...


class PlaneError(Exception):
    """Tensors did not come through; the message says where."""


def find_plane(session: Spawner) -> Plane:
    """`device` where a tensor went there and back in memory of the GPU, else `host` and why.

    Two children of their own try it out, confined as the reference server and a worker are.
    """
    wanted = os.environ.get(SETTING) or _DEFAULT
    if wanted != "device":
        return Plane("host", f"{SETTING} is {wanted}")
    # With real tensors: what the driver reports does not tell whether the sandbox lets them through.
    try:
        with started_pair(session, "device") as pair:
            pair.round_trip(_PROBE_BYTES)
    except (PlaneError, ChildDied) as error:
        return Plane("host", " ".join(str(error).split())[:_MOST_CHARS])
    return Plane("device")


@dataclass
class Pair:
    """A judge's and a program's process that send each other tensors on one plane."""

    kind: DataPlane
    judge: Child
    program: Child
    _fds: list[int] = field(default_factory=list[int])

    def round_trip(self, nbytes: int) -> Times:
        """The times of one tensor of `nbytes` there and, every bit turned round, back.

        Raises:
            PlaneError: it did not come through as it was sent.
            ChildDied: a process ended.
        """
        try:
            return self._round_trip(nbytes)
        finally:
            for fd in self._fds:
                os.close(fd)
            self._fds.clear()

    def _round_trip(self, nbytes: int) -> Times:
        on_device = self.kind == "device"
        began = time.perf_counter()
        sent = self._ask(self.judge, ProbeStep("send", on_device, nbytes))
        self._ask(self.program, ProbeStep("take", manifest=sent.manifest, fds=sent.fds))
        taken = time.perf_counter()
        outputs = self._ask(self.judge, ProbeStep("poison", on_device, manifest=sent.manifest)).fds
        poisoned = time.perf_counter()
        self._ask(self.program, ProbeStep("give", manifest=sent.manifest, fds=outputs))
        read = self._ask(self.judge, ProbeStep("read", manifest=sent.manifest, fds=outputs))
        done = time.perf_counter()
        if not read.right:
            raise PlaneError("a tensor came back with other values")
        return Times(poisoned - taken, taken - began, done - poisoned)

    def _ask(self, child: Child, step: ProbeStep) -> ProbeReply:
        child.begin(step, _TIMEOUT_S)
        reply = _reply_to(child, step)
        self._fds.extend(reply.fds)
        return reply


@contextmanager
def started_pair(session: Spawner, kind: DataPlane) -> Generator[Pair]:
    """Two children that are ready on the GPU; they end with the block.

    Raises:
        PlaneError: the driver has no such memory, or there is no GPU.
        ChildDied: one of them did not survive it.
    """
    with (
        session.spawn("reference", serve_file=_PROBE) as judge,
        session.spawn("worker", serve_file=_PROBE) as program,
    ):
        start = ProbeStep("start", on_device=kind == "device")
        for child in (judge, program):  # side by side: each makes a context of its own
            child.begin(start)
        for child in (judge, program):
            _reply_to(child, start)
        yield Pair(kind, judge, program)


def _reply_to(child: Child, step: ProbeStep) -> ProbeReply:
    try:
        reply = child.reply_to(step, _TIMEOUT_S)
    except OperationFailedError as error:
        raise PlaneError(f"{step.step}: {error.fault.message}") from error
    if reply.refused is not None:
        raise PlaneError(f"{step.step}: {reply.refused}")
    return reply
