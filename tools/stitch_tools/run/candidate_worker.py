"""The worker seen from the controller: load, initialise, run. Its answers are claims."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, cast

from stitch_tools.compile.headers import find_onednn
from stitch_tools.compile.segments import built_segments, place_segments
from stitch_tools.errors import WorkerError
from stitch_tools.models import Build, Contract, Program, ReferenceFacts, Task
from stitch_tools.protocol.wire import Frame
from stitch_tools.run.child_limits import Limits
from stitch_tools.run.reference_server import Expectation, Inputs, Weights
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.scratch import Scratch, make_scratch
from stitch_tools.storage.store import Store

_MAX_CHARS = 8000
_MAX_REASON_CHARS = 200


@dataclass(frozen=True)
class Answer:
    """What the worker says of one step; status `ok`, or the program's own trouble."""

    status: str
    step: str
    message: str
    blob: bytes = b""
    held: tuple[str, ...] = ()
    """Outputs that lie in the memory of the inputs."""
    changed: tuple[str, ...] = ()
    """Buffers that no call may change, and that hold something else now."""
    unspoiled: str = ""
    """Why a GPU's shared memory was not full of NaN patterns before the call; "" where it was."""

    @property
    def ok(self) -> bool:
        """Whether the step was done."""
        return self.status == "ok"


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
            cache_dir: root of our caches; None is the user's cache folder.
        """
        self._kept = list(kept)
        self._task, self._program, self._build, self._store = task, program, build, store
        self._threads = session.threads
        self._scratch: Scratch | None = None
        self._loading = False
        visible = list(readable)
        env: dict[str, str] = {}
        if program.format == "native":
            if build is None or build.artifact is None:
                raise WorkerError("a native program is run from its build", hint="Compile it first.")
            visible += [Path(build.artifact), *map(Path, build.libraries)]
        try:
            if program.format != "native":
                self._scratch = make_scratch("program")
                store.materialize(program.files, self._scratch.path, "TMPDIR")
                self._place_segments(session, cache_dir)
                # It builds itself in the child, which could not find or read a library of another prefix.
                env, libraries = _onednn(session.interpreter.prefix)
                visible += [self._scratch.path, *libraries]
            limits = Limits(memory_bytes=memory_bytes)
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
        self.child.ask({"op": "load", **self._load_message()})
        self._loading = True

    def load(self, timeout_s: float) -> Answer:
        """Load the program's library or file, or wait for that where it has begun."""
        if self._loading:
            self._loading = False
            return read_answer(self.child.answer(timeout_s))
        return read_answer(self.child.request({"op": "load", **self._load_message()}, timeout_s=timeout_s))

    def _load_message(self) -> dict[str, Any]:
        device = self._task.target.partition(":")[0]
        if self._build is not None and self._program.format == "native":
            return {
                "format": "native",
                "path": self._build.artifact,
                "libraries": list(self._build.libraries),
                "device": device,
                "threads": self._threads,
            }
        return {
            "format": "kernelbench",
            "folder": str(self.folder),
            "main": self._program.main,
            "matmul_precision": self._task.contract.matmul_precision,
            "conv_precision": self._task.contract.conv_precision,
            "device": device,
        }

    def init(self, weights: Weights, timeout_s: float) -> Answer:
        """Give the program its weights."""
        message = {
            "op": "init",
            "parameters": weights.parameters,
            "init": weights.init,
            "init_structure": weights.init_structure,
            "scale": weights.scale,
            "training": weights.training,
            "kept": self._kept,
        }
        return read_answer(self.child.request(message, weights.generator, weights.fds, timeout_s))

    def reload(self, weights: Weights, timeout_s: float) -> Answer:
        """Other weights into the same `ModelNew`; status `not_reloadable` when names do not agree."""
        message = {"op": "reload", "parameters": weights.parameters, "kept": self._kept}
        return read_answer(self.child.request(message, fds=weights.fds[:1], timeout_s=timeout_s))

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
        message = {
            "op": "run",
            "inputs": inputs.manifest,
            "structure": inputs.structure,
            "layout": expectation.layout,
            "shared": inputs.shared,
            "reuse": reuse,
            "places": inputs.places,
            "again": again,
            "output_structure": expectation.structure,
        }
        fds = (inputs.fds[0], outputs_fd)
        return read_answer(self.child.request(message, expectation.generator, fds, timeout_s))

    def _place_segments(self, session: TargetSession, cache_dir: Path | None) -> None:
        """Put a stitched program's native parts beside it: else each worker would compile them anew.

        Raises:
            StoreError: there is no room for them.
        """
        if self._scratch is None:
            return
        places = built_segments(
            self._program,
            self._store,
            prefixes=(session.interpreter.prefix,),
            require_sandbox=session.sandbox_level,
            cache_dir=cache_dir,
            unbuilt=session.unbuilt,
        )
        place_segments(places, self._scratch.path)

    def _remove_folder(self) -> None:
        if self._scratch is not None:
            self._scratch.remove()


def read_answer(frame: Frame) -> Answer:
    """The claim in a frame. Nothing in it is believed to have the right type."""
    message = frame.message
    if message["ok"] is not True:
        # An exception that no handler foresaw: foreign code raised it, so it is the program's.
        error = message.get("error")
        fields = cast(dict[str, object], error) if isinstance(error, dict) else {}
        status = "out_of_memory" if fields.get("kind") == "out_of_memory" else "error"
        return Answer(status, "worker", f"{fields.get('kind')}: {fields.get('message')}"[:_MAX_CHARS])
    status, step, text = (str(message.get(name))[:_MAX_CHARS] for name in ("status", "step", "message"))
    held, changed = (_names(message.get(name)) for name in ("held", "changed"))
    unspoiled = str(message.get("unspoiled", ""))[:_MAX_REASON_CHARS]
    return Answer(status, step, text, frame.blob, held, changed, unspoiled)


def kept_buffers(contract: Contract, facts: ReferenceFacts) -> tuple[str, ...]:
    """The buffers that no call may change: those that the reference leaves alone, unless they are ignored."""
    if contract.buffers == "ignored":
        return ()
    return tuple(name for name in facts.buffers if name not in facts.mutated_buffers)


def _names(claim: object) -> tuple[str, ...]:
    names = cast(list[object], claim)[:50] if isinstance(claim, list) else []
    return tuple(str(name)[:100] for name in names)


def _onednn(prefix: Path) -> tuple[dict[str, str], list[Path]]:
    """The variable that names oneDNN's folder, and what to read there; both empty where it was not found."""
    library = find_onednn((prefix,))
    if library.include is None or library.shared_object is None:
        return {}, []
    root = library.include.parent.absolute()
    return {"STITCH_ONEDNN": str(root)}, [library.include, library.shared_object]
