"""One target interpreter kept warm: a zygote, and the children that it forks on request."""

import contextlib
import os
import socket
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Self, TypeVar

from stitch_tools.confine import linux
from stitch_tools.confine.sandbox import LEVELS
from stitch_tools.errors import EnvironmentMissingError, SandboxError, StoreError, WorkerError
from stitch_tools.machine.devices import usable_cpus
from stitch_tools.machine.isolation import BOOTSTRAP, fix_for
from stitch_tools.models.verdict import SandboxLevel
from stitch_tools.protocol.messages import Done, Fd, OperationFailedError, decode_reply, encode
from stitch_tools.protocol.messages_extension import ExtensionBuilt
from stitch_tools.protocol.messages_session import ChildLimits, Role, SpawnChild, ZygoteReady
from stitch_tools.protocol.wire import Channel, ChannelClosedError, ChannelTimeoutError, ProtocolError
from stitch_tools.run.child import Child
from stitch_tools.run.child_environment import target_environment
from stitch_tools.run.data_plane import Plane, find_plane
from stitch_tools.run.gpu_canary import GpuCanary
from stitch_tools.run.interpreter import Interpreter
from stitch_tools.storage.scratch import Scratch, make_scratch, remove_tree

ReplyT = TypeVar("ReplyT")

_SERVE_MODULES: dict[Role, str] = {
    "reference": "stitch_tools.worker.reference.reference_operations",
    "worker": "stitch_tools.worker.candidate.candidate_server",
}
_START_TIMEOUT_S = 120.0
_SPAWN_TIMEOUT_S = 30.0


class TargetSession:
    """A warm zygote in the target interpreter. Use as a context manager; one per run.

    Start it before any lock is taken and from the main thread: only then does the kernel itself end the
    zygote with us (from another thread a closed socket does it).
    """

    def __init__(
        self,
        interpreter: Interpreter,
        *,
        require_sandbox: SandboxLevel | None = None,
        at_most: SandboxLevel = "full",
        threads: int | None = None,
        scratch_root: Path | None = None,
        gpu: GpuCanary | None = None,
        stock_extensions: bool = False,
    ) -> None:
        """Nothing starts before `start` or `with`.

        Args:
            interpreter: from `find_interpreter`.
            require_sandbox: refuse to start with less than this level.
            at_most: use no stronger level, for tools that cannot work inside one.
            threads: OpenMP threads of every child; default: all cores that we may use.
            scratch_root: where scratch folders are made; default: the system's temporary folder.
            gpu: how to ask whether the GPU works; default: by a computation in a fresh process.
            stock_extensions: build a program's extensions exactly as torch does, behind its whole headers.
        """
        self.interpreter = interpreter
        self.threads = threads or usable_cpus()
        self.sandbox_level: SandboxLevel = "process"
        self.sandbox_reason = ""
        """Why the level is not a stronger one; "" for full."""
        self.gpu = gpu or GpuCanary()
        """Whether the GPU still answers; asked by whoever runs programs on it."""
        self.unbuilt: set[str] = set()
        """Ids of programs whose segments could not be built for a worker: no other worker tries it again."""
        self.failed_extensions: dict[str, ExtensionBuilt] = {}
        """What the compiler said of extensions that do not build, by their key."""
        self.stock_extensions = stock_extensions
        self.torch_version = ""
        self.cuda_version: str | None = None
        self._require = require_sandbox
        self._at_most: SandboxLevel = at_most
        self._scratch_root = scratch_root
        self._scratch: Scratch | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._control: Channel | None = None
        self._errors: IO[bytes] | None = None
        self._children: set[Child] = set()
        self._lock = threading.Lock()
        self._count = 0
        self._plane: Plane | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def start(self) -> None:
        """Start the zygote, which imports torch, and find the isolation level.

        Raises:
            EnvironmentMissingError: the interpreter cannot import torch, or this is not Linux on x86-64.
            SandboxError: the level is below the required one.
        """
        if not linux.is_supported():
            raise EnvironmentMissingError(
                "programs can be run and checked on x86-64 Linux only",
                hint="Use a Linux machine (WSL2 counts); docs, planning and CUDA compilation work here.",
            )
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            self._launch()
            try:
                hello = self._receive(ZygoteReady, _START_TIMEOUT_S)
            except OperationFailedError as error:
                raise EnvironmentMissingError(
                    f"{self.interpreter.path} cannot import torch: {error}",
                    hint=f"Try it by hand: {self.interpreter.path} -c 'import torch'. Or use --python.",
                ) from error
            self._adopt(hello)
            undo.pop_all()

    def fits(
        self, interpreter: Interpreter, *, require_sandbox: SandboxLevel | None, threads: int | None
    ) -> bool:
        """Whether it runs, and is what a session with these arguments would be."""
        running = self._process is not None and self._process.poll() is None
        same = self.interpreter == interpreter and self._require == require_sandbox
        return running and same and self.threads == (threads or usable_cpus())

    def _launch(self) -> None:
        self._make_folders()
        # Reference and weights pass through our memory: no other process of this user may read it.
        linux.set_dumpable(False)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        bound = threading.current_thread() is threading.main_thread()
        with theirs:
            self._control = Channel(ours)
            self._process = subprocess.Popen(
                [
                    self.interpreter.path,
                    "-X",
                    "faulthandler",
                    str(BOOTSTRAP),
                    str(theirs.fileno()),
                    str(int(bound)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=self._errors,
                stderr=self._errors,
                cwd=self._need_folder(),
                env=target_environment(self.threads),
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )

    def _make_folders(self) -> None:
        try:
            self._scratch = make_scratch("", self._scratch_root)
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the session)
        except (OSError, StoreError) as error:
            raise EnvironmentMissingError(
                f"no scratch folder could be made: {error}",
                hint="Let TMPDIR name a folder on a disk that can be written and has space.",
            ) from error

    def _adopt(self, hello: ZygoteReady) -> None:
        found = hello.level
        self.sandbox_level = max((found, self._at_most), key=LEVELS.index)
        self.sandbox_reason = hello.level_reason
        self.torch_version = hello.torch_version
        self.cuda_version = hello.cuda_version
        if self._require and LEVELS.index(self.sandbox_level) > LEVELS.index(self._require):
            raise SandboxError(
                f"isolation level {self._require} is required, but only {self.sandbox_level} works here:"
                f" {self.sandbox_reason or 'it was limited by the caller'}",
                hint=fix_for(found, hello.landlock_abi) or "Require a lower level.",
            )

    def spawn(
        self,
        role: Role,
        *,
        readable: Sequence[Path] = (),
        writable: Sequence[Path] = (),
        env: Mapping[str, str] | None = None,
        limits: ChildLimits | None = None,
        serve_file: Path | None = None,
        loopback: bool = False,
    ) -> Child:
        """A confined child that serves `role`, ready for requests.

        Args:
            role: whose serve loop runs; a reference may also read all of its import path.
            readable: files and folders that it may read beside its interpreter.
            writable: folders that it may write beside its scratch folder (a reference's compile cache).
            env: more environment variables.
            limits: upper bounds.
            serve_file: a Python file with `serve(channel, scratch)` to run instead of the role's own.
            loopback: whether it may talk to itself over sockets, and what it starts may write to its own
                /proc folder; at level full only, where network, /proc and the root of its files are its own.

        Raises:
            SandboxError: the isolation could not be applied, or is too weak for `loopback`; nothing ran.
            WorkerError: the zygote is gone.
        """
        if loopback and self.sandbox_level != "full":
            raise SandboxError(
                "a loopback network of its own is given to a process at isolation level full only",
                hint=self.sandbox_reason or "Allow level full.",
            )
        with self._lock:
            self._count += 1
            scratch = self._need_folder() / f"{role}-{self._count}"
            own = (serve_file,) if serve_file else ()
            request = SpawnChild(
                role=role,
                serve_module=_SERVE_MODULES[role],
                serve_file=str(serve_file) if serve_file else None,
                level=self.sandbox_level,
                scratch=str(scratch),
                readable=tuple(str(path.resolve()) for path in (*readable, *own)),
                writable=tuple(str(path.resolve()) for path in writable),
                env=dict(env or {}),
                limits=limits or ChildLimits(),
                loopback=loopback,
            )
            scratch.mkdir(mode=0o700)
            child = self._fork(request, scratch)
        self._children.add(child)
        self._await_ready(child)
        return child

    def _fork(self, request: SpawnChild, scratch: Path) -> Child:
        channel, channel_end = _pair()
        control, control_end = _pair()
        with contextlib.ExitStack() as undo:
            undo.callback(remove_tree, scratch)
            undo.callback(channel.close)
            undo.callback(control.close)
            with channel_end, control_end:
                # Ours are the only ends left then, so that the end of the child is the end of the stream.
                ends = Fd(channel_end.fileno()), Fd(control_end.fileno())
                pid = self._ask_zygote(replace(request, channel=ends[0], control=ends[1]))
            # A handle instead of the number, which the kernel may give to somebody else once it has ended.
            handle = os.pidfd_open(pid)
            child = Child(
                channel,
                control,
                handle,
                pid,
                str(scratch),
                lambda: self._forget(child),
                gives_descriptors=request.role == "reference",
            )
            undo.pop_all()
        return child

    def _ask_zygote(self, request: SpawnChild) -> int:
        """Pid of the new child's init."""
        if self._control is None:
            raise WorkerError("the session has not started or is closed", hint="Use it as a context manager.")
        try:
            self._control.send(encode(request))
        except (ChannelClosedError, ChannelTimeoutError) as error:
            raise WorkerError(f"the zygote is gone: {self._tail()}", hint="Start a new session.") from error
        try:
            return self._receive(int, _SPAWN_TIMEOUT_S)
        except OperationFailedError as error:
            raise SandboxError(
                f"a child could not be started at isolation level {request.level}: {error.fault.message}",
                hint="`stitch-mcp doctor` names the level that works here.",
            ) from error

    def _await_ready(self, child: Child) -> None:
        try:
            first = child.channel.receive(_SPAWN_TIMEOUT_S)
            decode_reply(Done, first)
        except (ChannelClosedError, ChannelTimeoutError, ProtocolError):
            outcome = child.kill("closed_descriptors", grace_s=0.5)
            raise WorkerError(
                f"a child ended while it was set up: {outcome.describe()}", hint=outcome.output_tail
            ) from None
        except OperationFailedError as error:
            child.kill()
            raise SandboxError(f"a child could not be set up: {error}", hint=error.fault.traceback) from error
        child.pid = first.pid or child.pid

    def _forget(self, child: Child) -> None:
        self._children.discard(child)
        remove_tree(Path(child.scratch))

    def plane(self) -> Plane:
        """How tensors on a GPU travel between children here; tried out at the first call (half a second)."""
        if self._plane is None:
            self._plane = find_plane(self)
        return self._plane

    def _need_folder(self) -> Path:
        if self._scratch is None:
            raise WorkerError("the session has not started or is closed", hint="Use it as a context manager.")
        return self._scratch.path

    def _receive(self, kind: type[ReplyT], timeout_s: float) -> ReplyT:
        """What the zygote says next.

        Raises:
            OperationFailedError: that something failed there.
            WorkerError: nothing that makes sense.
        """
        if self._control is None:
            raise WorkerError("the session is closed")
        try:
            return decode_reply(kind, self._control.receive(timeout_s))
        except (ChannelClosedError, ChannelTimeoutError, ProtocolError) as error:
            raise WorkerError(
                f"the process that imports torch in {self.interpreter.path} failed: {error}",
                hint=self._tail() or f"Try it by hand: {self.interpreter.path} -c 'import torch'.",
            ) from error

    def _tail(self) -> str:
        if self._errors is None:
            return ""
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - 4096))
        return self._errors.read().decode("utf-8", "replace").strip()

    def close(self) -> None:
        """End every child and the zygote, and remove all scratch folders."""
        try:
            self._end()
        except BaseException:  # interrupted half-way: none of them may stay
            self._end()
            raise
        finally:
            if self._scratch is not None:
                self._scratch.remove()
                self._scratch = None

    def _end(self) -> None:
        self.gpu.close()
        for child in list(self._children):
            child.kill()
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            try:
                self._process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        if self._errors is not None:
            self._errors.close()
            self._errors = None


def _pair() -> tuple[Channel, socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    # The kernel then tells with every frame which process sent it.
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    return Channel(ours), theirs
