"""The worker seen from the controller: load, initialise, run. Its answers are claims."""

from collections.abc import Sequence
from pathlib import Path
from typing import Self, TypeVar

from stitch_tools.compile.headers import find_onednn
from stitch_tools.compile.segments import built_segments, place_segments
from stitch_tools.errors import WorkerError
from stitch_tools.machine.device_lock import shared_device, shared_key
from stitch_tools.models.program import Build, Program
from stitch_tools.models.task import Contract, ReferenceFacts, Task
from stitch_tools.protocol.messages import Fault, Fd, Operation, OperationFailedError
from stitch_tools.protocol.messages_candidate import (
    InitProgram,
    LoadNative,
    LoadPython,
    ReloadWeights,
    RunProgram,
    StepReply,
)
from stitch_tools.protocol.messages_reference import WeightsMade
from stitch_tools.protocol.messages_session import ChildLimits
from stitch_tools.run.extension_builds import ExtensionBuilds, builds_extensions
from stitch_tools.run.reference_server import Expectation, Inputs
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.scratch import Scratch, make_scratch
from stitch_tools.storage.store import Store

ReplyT = TypeVar("ReplyT")
_MAX_CHARS = 8000
_MAX_REASON_CHARS = 200


Answer = StepReply
"""A claim of the worker, cut to a size that a report can hold."""


class Worker:
    """One candidate in a child of its own. `child` is for other rooms' requests."""

    def __init__(
        self,
        session: TargetSession,
        task: Task,
        program: Program,
        build: Build | None,
        store: Store,
        *,
        readable: Sequence[Path] = (),
        memory_bytes: int | None = None,
        kept: Sequence[str] = (),
        reset: Sequence[str] = (),
        cache_dir: Path | None = None,
    ) -> None:
        """Start the child; the program is not loaded yet.

        Args:
            session: the target interpreter.
            task: reference and contract.
            program: the candidate.
            build: its build; None only for KernelBench-style programs.
            store: where the sources lie.
            readable: what it may read beside the program.
            memory_bytes: memory that it may use; None is nine tenths of what is free.
            kept: buffers whose bytes are compared before and after calls.
            reset: buffers and plain attributes that a `ModelNew` finds before each call as it made them.
            cache_dir: root of our caches; None is the user's cache folder.
        """
        self._kept, self._reset = tuple(kept), tuple(reset)
        self._task, self._program, self._build = task, program, build
        self._threads = session.threads
        self._device = shared_key(task.target)
        self._scratch: Scratch | None = None
        self.extensions: ExtensionBuilds | None = None
        """Where the program asks for extensions that it builds; None where it names no such build."""
        self._loading: Operation[StepReply] | None = None
        visible = list(readable)
        env: dict[str, str] = {}
        if program.format == "native":
            if build is None or build.artifact is None:
                raise WorkerError("a native program is run from its build", hint="Compile it first.")
            visible += [Path(build.artifact), *map(Path, build.libraries)]
        try:
            if program.format != "native":
                self._scratch = make_scratch("program")
                _place_files(program, store, session, self._scratch.path, cache_dir)
                # It builds itself in the child, which could not find or read a library of another prefix.
                env, libraries = _onednn(session.interpreter.prefix)
                visible += [self._scratch.path, *libraries]
            limits = None if memory_bytes is None else ChildLimits(memory_bytes=memory_bytes)
            if builds_extensions(program, store):
                self.extensions = ExtensionBuilds(session, program.program_id, cache_dir)
            self.child = session.spawn("worker", readable=visible, env=env, limits=limits)
        except BaseException:
            self._remove_folder()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End the child."""
        try:
            self.child.close()
        finally:
            self._remove_folder()

    @property
    def folder(self) -> Path | None:
        """Where the program's files lie for it to read; None where only its build is run."""
        return self._scratch.path if self._scratch else None

    def begin_load(self) -> None:
        """Ask for `load` without waiting for it; only `load` may follow."""
        self._loading = self._load_request()
        self.child.begin(self._loading)

    def load(self, timeout_s: float) -> Answer:
        """Load the program's library or file, or wait for that where it has begun."""
        if self._loading is None and self.extensions is not None:
            self.begin_load()  # it may compile for minutes, for which no timing has to wait
        if self._loading is None:
            return self._call(self._load_request(), timeout_s)
        request, self._loading = self._loading, None
        return self._answer(request, timeout_s)

    def _load_request(self) -> Operation[StepReply]:
        device = self._task.target.partition(":")[0]
        if self._program.format == "native" and self._build is not None and self._build.artifact is not None:
            libraries = tuple(self._build.libraries)
            return LoadNative(self._build.artifact, libraries, device, self._threads)
        contract = self._task.contract
        return LoadPython(
            folder=str(self.folder),
            main=self._program.main,
            device=device,
            matmul_precision=contract.matmul_precision,
            conv_precision=contract.conv_precision,
            extensions=(Fd(self.extensions.line.fileno()),) if self.extensions else (),
        )

    def init(self, weights: WeightsMade, timeout_s: float, *, load: bool = True) -> Answer:
        """Give the program its weights; with `load` a `ModelNew` that made others by these names, too."""
        return self._call(InitProgram(weights, self._kept, load, self._reset), timeout_s)

    def reload(self, weights: WeightsMade, timeout_s: float) -> Answer:
        """Other weights into the same `ModelNew`; status `not_reloadable` when names do not agree."""
        return self._call(ReloadWeights(weights.parameters, self._kept, weights.fds[0]), timeout_s)

    def run(
        self,
        inputs: Inputs,
        outputs_fd: int,
        expectation: Expectation,
        *,
        reuse: bool,
        timeout_s: float,
        again: bool = False,
    ) -> Answer:
        """One forward into the output memory.

        Args:
            inputs: of the draw.
            outputs_fd: poisoned memory.
            expectation: what is expected of the draw.
            reuse: put the inputs into the memory of the inputs before.
            timeout_s: longest wait.
            again: the output memory is that of the call before: the program sees the same addresses.
        """
        request = RunProgram(
            inputs=inputs.manifest,
            structure=inputs.structure,
            layout=expectation.layout,
            shared=inputs.shared,
            reuse=reuse,
            places=inputs.places,
            again=again,
            output_structure=expectation.structure,
            generator=expectation.generator,
            inputs_fd=Fd(inputs.fds[0]),
            outputs_fd=Fd(outputs_fd),
        )
        return self._call(request, timeout_s)

    def call(self, operation: Operation[ReplyT], timeout_s: float) -> ReplyT:
        """The reply to a request, of another room's too; no timing runs on the task's GPU meanwhile.

        Raises as `Child.call`.
        """
        with shared_device(self._device, purpose=f"program {self._program.program_id[:12]}"):
            return self.child.call(operation, timeout_s)

    def _call(self, request: Operation[StepReply], timeout_s: float) -> Answer:
        try:
            return read_answer(self.call(request, timeout_s))
        except OperationFailedError as error:
            return fault_answer(error.fault)

    def _answer(self, request: Operation[StepReply], timeout_s: float) -> Answer:
        try:
            return read_answer(self.child.reply_to(request, timeout_s))
        except OperationFailedError as error:
            return fault_answer(error.fault)

    def _remove_folder(self) -> None:
        if self.extensions is not None:
            self.extensions.close()
        if self._scratch is not None:
            self._scratch.remove()


def read_answer(reply: StepReply) -> Answer:
    """The claim in a worker's reply, cut to a size that a report can hold."""
    # A report quotes these texts: a hostile program must not fill it.
    status, step, message = (text[:_MAX_CHARS] for text in (reply.status, reply.step, reply.message))
    lists = reply.held, reply.changed, reply.earlier_inputs, reply.earlier_outputs
    held, changed, *earlier = (tuple(name[:100] for name in names[:50]) for names in lists)
    unspoiled, container = (text[:_MAX_REASON_CHARS] for text in (reply.unspoiled, reply.container))
    return Answer(
        status, step, message, reply.generator, held, changed, unspoiled, reply.loaded, container, *earlier
    )


def fault_answer(fault: Fault) -> Answer:
    """The claim in an exception that no handler foresaw: foreign code raised it, so it is the program's."""
    status = "out_of_memory" if fault.kind == "out_of_memory" else "error"
    return Answer(status, "worker", f"{fault.kind}: {fault.message}"[:_MAX_CHARS])


def kept_buffers(contract: Contract, facts: ReferenceFacts) -> tuple[str, ...]:
    """The buffers that no call may change: those that the reference leaves alone, unless they are ignored."""
    if contract.buffers == "ignored":
        return ()
    return tuple(name for name in facts.buffers if name not in facts.mutated_buffers)


def reset_state(contract: Contract, facts: ReferenceFacts) -> tuple[str, ...]:
    """Buffers and plain attributes that the reference's forward changes, and whose change is not compared."""
    return facts.changed_attributes + (() if contract.buffers == "updated" else facts.mutated_buffers)


def _place_files(
    program: Program, store: Store, session: TargetSession, folder: Path, cache_dir: Path | None
) -> None:
    """Put the files of a program in Python into a folder, and its native segments where it is a stitched one.

    Without these each worker would compile them anew.
    """
    store.materialize(program.files, folder, "TMPDIR")
    built = built_segments(
        program,
        store,
        prefixes=(session.interpreter.prefix,),
        require_sandbox=session.sandbox_level,
        cache_dir=cache_dir,
        unbuilt=session.unbuilt,
    )
    place_segments(built, folder)


def _onednn(prefix: Path) -> tuple[dict[str, str], list[Path]]:
    """The variable that names oneDNN's folder, and what to read there; both empty where it was not found."""
    library = find_onednn((prefix,))
    if library.include is None or library.shared_object is None:
        return {}, []
    root = library.include.parent.absolute()
    return {"STITCH_ONEDNN": str(root)}, [library.include, library.shared_object]
