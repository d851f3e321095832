"""The reference server seen from the controller: loads a task, observes it, makes draws, compares outputs."""

import os
import secrets
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeVar

from stitch_tools.errors import EnvironmentMissingError, LockedError, TaskError, WorkerError
from stitch_tools.machine.device_lock import DEVICE_WAIT_S, shared_device, shared_key
from stitch_tools.machine.device_memory import DeviceMemory, Waiter, device_memory
from stitch_tools.models.task import ReferenceFacts, Task
from stitch_tools.models.verdict import DataPlane, OutputError, Sensitivity
from stitch_tools.protocol import memory
from stitch_tools.protocol.memory import PackEntry
from stitch_tools.protocol.messages import Fault, Fd, Operation, OperationFailedError
from stitch_tools.protocol.messages_reference import (
    DRAW_UNAVAILABLE,
    DRAW_UNDECIDED,
    Agreement,
    BitsCompared,
    CompareBits,
    CompareOutputs,
    Construct,
    Expectation,
    ExpectOutputs,
    LoadReference,
    MakeDraw,
    MakeOutputs,
    MeasureSensitivity,
    ObserveReference,
    PrimeOutputs,
    ReferenceSource,
    Scale,
    SetWeights,
    WeightsMade,
)
from stitch_tools.protocol.messages_session import ChildLimits
from stitch_tools.run.child import Child
from stitch_tools.run.child_outcome import ChildDied
from stitch_tools.run.last_words import own_words
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.scratch import make_scratch
from stitch_tools.storage.store import Store

ReplyT = TypeVar("ReplyT")
_SEED_BITS = 62
_TIMEOUT_S = 600.0
_HINTS = {
    "syntax": "Correct the line, then run again.",
    "missing_import": "The module is there and lacks the name: another version of it may be meant.",
    "missing_entry": "Name the entry in task.toml (`entry = ...`) or as path.py:Object.",
    "missing_inputs": "Define the function, or name another with `inputs = ...` in task.toml.",
    "missing_init_inputs": "Define the function, or name another with `init_inputs = ...` in task.toml.",
    "wrong_inputs": (
        "The input maker must return a list or tuple with one item for each argument of forward: [x] for one "
        "argument, [(a, b)] for one that is itself a tuple."
    ),
    "out_of_memory": "Make the task's inputs smaller, free memory, or use a machine with more.",
    "unsupported_dtype": "Use one of these types, or give its bytes: x.view(torch.uint8).",
    "output": "Return tensors, numbers, or tuples, lists and dicts of them.",
}
_EXIT_HINT = (
    "Something in it ends the process, and leaves no traceback: look for os._exit, or for a library that"
    " calls exit()."
)
_CONFINED = ("PermissionError", "Read-only file system", "Operation not permitted", "Network is unreachable")
_CONFINED_HINT = (
    "References run in a sandbox: they read their own folder and what task.toml lists, write only below the "
    "temporary folder (TMPDIR), and reach no network."
)


class NoDeviceError(EnvironmentMissingError):
    """The task's device is not in this machine."""

    code = "environment"


class ReferenceMemoryError(TaskError):
    """There was not enough memory for the reference, or for what is computed beside it."""


class DrawUnavailable(Exception):  # noqa: N818 (an answer, not an error: this kind of draw does not apply)
    """The reference server cannot make, or cannot judge, this draw; the message says why."""


class DrawUndecided(DrawUnavailable):
    """On this draw the reference itself is further off than the contract allows; the message says where."""


@dataclass
class Inputs:
    """Inputs of one draw in shared memory, whose descriptors this process holds; `close` after their use."""

    fds: tuple[int, ...]
    kind: str
    manifest: list[PackEntry]
    structure: object
    shared: bool
    seed: int
    places: tuple[tuple[int, int], ...]
    """Which of them lie in each other's memory."""

    def close(self) -> None:
        """Close the descriptors."""
        for fd in self.fds:
            os.close(fd)
        self.fds = ()


@dataclass(frozen=True)
class Comparison:
    """How the outputs of one draw compare."""

    outputs: tuple[OutputError, ...]
    overrun: bool
    """Whether bytes beside the outputs were written to."""
    inputs_intact: bool | None
    same_generator: bool | None
    agreement: Agreement | None = None
    """What KernelBench's rule says; None on draws that are ours."""
    decided: bool = True
    """Whether anything was compared; else the reference itself is too far off everywhere."""

    @property
    def right(self) -> bool:
        """Whether outputs and memory are as they should be."""
        return not (self.overrun or self.inputs_intact is False or any(row.problem for row in self.outputs))


class ReferenceServer:
    """A task's reference in a sandboxed child, warm until closed. `child` is for other rooms' requests."""

    limited: bool
    """Whether the caller bounds what it may use."""
    plane: DataPlane | None
    """How tensors travel to programs and back: `host` from the first on that had to; None on a CPU."""

    def __init__(
        self,
        session: TargetSession,
        task: Task,
        store: Store,
        *,
        writable: Sequence[Path] = (),
        env: Mapping[str, str] | None = None,
        limits: ChildLimits | None = None,
        call_limit_s: float = _TIMEOUT_S,
    ) -> None:
        """Start the server and load the reference.

        Args:
            session: the target interpreter.
            task: what to load.
            store: where the task's files lie.
            writable: folders that it may write beside its scratch folder (a compile cache).
            env: more environment variables.
            limits: upper bounds; an oracle that does not fit below them gives way to a weaker one.
            call_limit_s: seconds that one request may take, which is a TaskError then.

        Raises:
            TaskError: the reference cannot be loaded; the message names file and line.
            NoDeviceError: the task's device is not here.
        """
        self.task = task
        self._session = session
        self._sensitivity: tuple[Sensitivity, ...] | None = None
        self._writable, self._env, self._limits = tuple(writable), dict(env or {}), limits
        self.limited = limits is not None
        self._call_limit_s = call_limit_s
        self._device = shared_key(task.target)
        self._scratch = make_scratch("task")
        self._folder = self._scratch.path
        try:
            store.materialize(task.files, self._folder, "TMPDIR")
            self.child = self._start()
            with self._sharing():
                self.plane = session.plane().kind if task.target.startswith("cuda") else None
        except BaseException:
            self._scratch.remove()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End the server and remove its folder."""
        try:
            self.child.close()
        finally:
            self._scratch.remove()

    def stop(self) -> None:
        """End the process, which keeps memory; `revive` starts another."""
        self.child.close()

    def revive(self) -> None:
        """Start a new server if the old one died."""
        if not self.child.is_alive():
            self.child = self._start()

    def observe(self, memory: DeviceMemory | None = None) -> ReferenceFacts:
        """What one look at the reference tells; constructs it with weights of its own.

        Where memory runs out beside others, it looks once more, alone. `memory` is what they share, by
        default that of the task's device.

        Raises:
            TaskError: inputs cannot be made or do not fit, or forward raises.
            ReferenceMemoryError: there is not enough memory for it.
        """
        request = ObserveReference(_seed(), _seed(), _seed(), _seed())
        try:
            observed = self.call(request)
        except ReferenceMemoryError as error:
            memory = memory or device_memory(self.task.target)
            if memory is None or not memory.is_shared():
                raise
            self.stop()
            try:
                with memory.claim(0, Waiter(DEVICE_WAIT_S, "looking at a reference"), alone=True):
                    self.revive()
                    observed = self.call(request)
            except LockedError as locked:
                # Other jobs did not end in time.
                raise error from locked
        return ReferenceFacts.model_validate(observed)

    def set_weights(
        self, *, gain: float | None = None, positive: bool = False, on_host: bool = False
    ) -> WeightsMade:
        """A fresh secret set of weights, which the reference now has, too.

        With `gain` the weights are of order 1, whatever the initialisers give (`order_one_weights.py`).
        With `on_host` they lie in memory of the host in any case.

        Raises:
            DrawUnavailable: weights of order 1 are asked for, and the reference has none to fill.
        """
        scale = None if gain is None else Scale(gain, positive)
        made = self.call(SetWeights(_users_seed(), scale, self._on_device(on_host)))
        self._note_plane(made.parameters, made.fds, on_host=on_host)
        return made

    def construct(self) -> None:
        """Give the reference fresh weights that nobody else gets: nothing is copied for a program."""
        self.call(Construct(_users_seed()))

    def sensitivity(self) -> tuple[Sensitivity, ...]:
        """How the reference reacts to other inputs and weights; measured once, since no program matters."""
        # Five seeds of their own: none of a draw that a program will see.
        if self._sensitivity is None:
            measured = self.call(MeasureSensitivity(_seed(), _seed(), _seed(), _seed(), _seed()))
            self._sensitivity = tuple(map(Sensitivity.model_validate, measured))
        return self._sensitivity

    def make_draw(
        self, kind: str, *, shared: bool = False, seed: int | None = None, on_host: bool = False
    ) -> Inputs:
        """Inputs from a fresh secret seed (or `seed`); in memory that may be written to when `shared`.

        With `on_host` they lie in memory of the host in any case.

        Raises:
            DrawUnavailable: the kind does not apply to this task.
        """
        seed = _seed() if seed is None else seed
        made = self.call(MakeDraw(kind, seed, _users_seed(), shared, self._on_device(on_host)))
        self._note_plane(made.inputs, made.fds, on_host=on_host)
        return Inputs(made.fds, kind, made.inputs, made.structure, shared, seed, made.places)

    def expect(self, updated_buffers: Sequence[str] = ()) -> Expectation:
        """Run reference and oracle on the current draw.

        Raises:
            DrawUnavailable: the reference refuses the draw.
            DrawUndecided: it cannot tell right from wrong.
        """
        return self.call(ExpectOutputs(tuple(updated_buffers)))

    def make_outputs(self, nbytes: int) -> int:
        """The descriptor of memory for the outputs of one call; the caller closes it."""
        if self.plane == "device":
            if fds := self.call(MakeOutputs(nbytes)):
                return fds[0]
            self.plane = "host"
        return memory.create(nbytes)

    def prime(self, outputs_fd: int, expectation: Expectation) -> None:
        """Poison the output memory, and put the updated buffers' values into it."""
        self.call(PrimeOutputs(expectation.layout, Fd(outputs_fd)))

    def compare(self, outputs_fd: int, expectation: Expectation, generator_after: bytes = b"") -> Comparison:
        """Compare what lies in the output memory with the oracle."""
        compared = self.call(CompareOutputs(expectation.layout, generator_after, Fd(outputs_fd)))
        return Comparison(
            tuple(map(OutputError.model_validate, compared.outputs)),
            compared.overrun,
            compared.inputs_intact,
            compared.same_generator,
            compared.agreement,
            compared.decided,
        )

    def same_bits(self, first_fd: int, second_fd: int, expectation: Expectation) -> bool:
        """Whether two output memories hold the same bytes."""
        return self._compare_bits(first_fd, second_fd, expectation).same

    def same_results(self, first_fd: int, second_fd: int, expectation: Expectation) -> bool:
        """Whether two output memories hold the same bytes, and more than one value repeated."""
        compared = self._compare_bits(first_fd, second_fd, expectation)
        return compared.same and not compared.constant

    def call(self, operation: Operation[ReplyT]) -> ReplyT:
        """The reply to a request, of another room's too; the caller closes its descriptors.

        Raises:
            DrawUnavailable: the server has, or can judge, no such draw.
            TaskError: the server did not survive it, or the reference failed.
            WorkerError: the server itself failed.
        """
        return self._exchange(self.child, operation)

    def _compare_bits(self, first_fd: int, second_fd: int, expectation: Expectation) -> BitsCompared:
        return self.call(CompareBits(expectation.layout, (Fd(first_fd), Fd(second_fd))))

    def _sharing(self) -> AbstractContextManager[None]:
        """No timing runs on the task's GPU meanwhile."""
        return shared_device(self._device, purpose=f"reference {self.task.name}")

    def _on_device(self, on_host: bool) -> bool:
        return not on_host and self.plane == "device"

    def _note_plane(self, manifest: list[PackEntry], fds: tuple[int, ...], *, on_host: bool) -> None:
        """Where the GPU had no memory left to hand out, or a tensor was not on it, all go by the host now."""
        if self._on_device(on_host) and manifest and not memory.is_on_device(fds[0]):
            self.plane = "host"

    def _start(self) -> Child:
        task, contract = self.task, self.task.contract
        readable = (self._folder, *map(Path, task.search_path))
        child = self._session.spawn(
            "reference", readable=readable, writable=self._writable, env=self._env, limits=self._limits
        )
        source = ReferenceSource(
            folder=str(self._folder),
            main=task.main,
            entry=task.entry,
            inputs=task.inputs,
            init_inputs=task.init_inputs,
            search_path=tuple(task.search_path),
            mode=contract.named_mode,
            device=task.target.partition(":")[0],
            keep_structure=contract.input_structure == "kept",
        )
        load = LoadReference(
            source=source,
            rtol=contract.tolerance.rtol,
            atol=contract.tolerance.atol,
            matmul_precision=contract.matmul_precision,
            conv_precision=contract.conv_precision,
            input_low=contract.input_low,
            input_high=contract.input_high,
            input_writes=contract.input_writes == "compared",
        )
        try:
            self._exchange(child, load)
        except BaseException:
            child.kill()
            raise
        return child

    def _exchange(self, child: Child, operation: Operation[ReplyT]) -> ReplyT:
        try:
            with self._sharing():
                return child.call(operation, self._call_limit_s)
        except ChildDied as death:
            raise _death_of_reference(death, self._run_it()) from death
        except OperationFailedError as error:
            raise _fault(self.task, error.fault, self._run_it()) from error

    def _run_it(self) -> str:
        """What to do about a fault that says no more itself."""
        task = self.task
        return f"Call {task.entry} of {task.main} on {task.inputs}() with {self._session.interpreter.path}."


def _seed() -> int:
    return secrets.randbits(_SEED_BITS)


def _users_seed() -> int:
    """A seed that a program can read (`torch.initial_seed`): of a size that users choose."""
    return secrets.randbelow(1 << secrets.choice((10, 20, 31)))


def _fault(task: Task, fault: Fault, last_hint: str) -> Exception:
    if fault.kind == DRAW_UNAVAILABLE:
        return DrawUnavailable(fault.message)
    if fault.kind == DRAW_UNDECIDED:
        return DrawUndecided(fault.message)
    if fault.kind == "no_device":
        return NoDeviceError(
            f"{fault.message}; the task's target is {task.target}",
            hint="Use a machine with such a GPU and a CUDA build of torch, or {target} cpu.",
            options=("target",),
        )
    if fault.traceback and fault.kind != "out_of_memory":
        # Not a ReferenceFault: the server itself failed.
        return WorkerError(
            f"the reference server failed: {fault.kind}: {fault.message}", hint=fault.traceback
        )
    file, line = fault.file, fault.line
    where = f"{file}:{line}: " if file and line else f"{file}: " if file else ""
    text = f"\n    {fault.source_line}" if fault.source_line else ""
    hint = fault.hint or _HINTS.get(fault.kind, last_hint)
    if any(word in fault.message for word in _CONFINED):
        hint = _CONFINED_HINT
    kind = ReferenceMemoryError if fault.kind == "out_of_memory" else TaskError
    return kind(f"{where}{fault.message}{text}", hint=hint)


def _death_of_reference(death: ChildDied, last_hint: str) -> TaskError:
    outcome = death.outcome
    hint = {"out_of_memory": _HINTS["out_of_memory"], "early_exit": _EXIT_HINT}.get(outcome.kind, last_hint)
    printed = own_words(outcome.output_tail)
    tail = f"\n{printed[-1000:]}" if printed else ""
    kind = ReferenceMemoryError if outcome.kind == "out_of_memory" else TaskError
    return kind(f"the reference did not survive: {outcome.describe()}{tail}", hint=hint)
