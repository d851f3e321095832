"""Extensions of PyTorch that a program builds while it runs: built once, outside of it, and kept.

A worker that comes to a build asks here. The sources are built by a confined child that never holds a
program, and kept under all that was asked for: what a program makes of its own flags comes back to it alone.
"""

import contextlib
import functools
import json
import os
import re
import select
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from stitch_tools.compile.cache import BuildCache
from stitch_tools.compile.toolchain import Compiler, find_cpp_compiler, find_nvcc
from stitch_tools.errors import EnvironmentMissingError, StitchError
from stitch_tools.models.base import sha256_hex
from stitch_tools.models.program import Build, Program
from stitch_tools.protocol.messages import OperationFailedError, decode, encode
from stitch_tools.protocol.messages_extension import (
    BuildExtension,
    ExtensionBuilt,
    ExtensionSource,
    FindExtension,
)
from stitch_tools.protocol.wire import Channel, ChannelClosedError, ChannelTimeoutError, ProtocolError
from stitch_tools.run.child_outcome import ChildDied
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store
from stitch_tools.storage.user_cache import user_cache_dir

LEAN_HEADERS = Path(__file__).resolve().parent.parent / "native" / "lean"
_EXTENSION = re.compile(rb"cpp_extension")
_TIME_LIMIT_S = 300.0
_SEND_LIMIT_S = 10.0
_POLL_S = 0.1
_MOST_PER_WORKER = 32
_LARGEST_BYTES = 16 << 20


def names_in_python(program: Program, store: Store, words: re.Pattern[bytes]) -> bool:
    """Whether a Python source of a program in Python holds one of the words."""
    if program.format == "native":
        return False
    sources = (store.get(file.sha256) for file in program.files if file.path.endswith(".py"))
    return any(words.search(source) for source in sources)


def builds_extensions(program: Program, store: Store) -> bool:
    """Whether a source of the program names torch's way to build extensions."""
    return names_in_python(program, store, _EXTENSION)


class ExtensionBuilds:
    """Answers one worker's requests for extensions in a thread of its own until `close`."""

    def __init__(self, session: TargetSession, program_id: str, cache_dir: Path | None) -> None:
        self._session = session
        self._program_id = program_id
        self._cache = BuildCache(cache_dir or user_cache_dir())
        self._asked = 0
        self._answering = threading.Lock()
        self._hits_only = threading.Event()
        self._ours, self.line = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._thread = threading.Thread(target=self._serve, name="extension builds", daemon=True)
        self._thread.start()

    def end_builds(self) -> None:
        """From now on nothing is built, and a build that runs has ended: no compiler runs beside a timing."""
        self._hits_only.set()
        with self._answering:
            pass

    def close(self) -> None:
        """Answer no more."""
        self._hits_only.set()
        self.line.close()
        with contextlib.suppress(OSError):
            self._ours.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    def _serve(self) -> None:
        channel = Channel(self._ours)
        # A peer that sends what is no request, or does not read the answer, is answered no more.
        with (
            self._ours,
            contextlib.suppress(ProtocolError, ChannelClosedError, ChannelTimeoutError, OSError),
        ):
            while True:
                frame = channel.receive()
                for fd in frame.fds:
                    os.close(fd)
                request = decode(FindExtension, frame)
                with self._answering:
                    answer = self._find(request)
                channel.send(encode(answer), _SEND_LIMIT_S)

    def _find(self, request: FindExtension) -> ExtensionBuilt:
        self._asked += 1
        if self._asked > _MOST_PER_WORKER:
            return ExtensionBuilt()
        try:
            return self._built(request.source)
        except (StitchError, ChildDied, OperationFailedError, OSError):
            return ExtensionBuilt()  # a cache or child that fails is no matter of the program's

    def _built(self, source: ExtensionSource) -> ExtensionBuilt:
        key = self._key(source)
        known = self._session.failed_extensions.get(key) or self._cached(key)
        deadline_s = time.monotonic() + _TIME_LIMIT_S
        # In short steps: whoever ends this worker, or times it, does not wait for another's build.
        while known is None and not self._hits_only.is_set():
            with self._cache.building(key, wait_s=_POLL_S) as free:
                known = self._session.failed_extensions.get(key) or self._cached(key)
                if known is None and (free or time.monotonic() > deadline_s):
                    return self._newly_built(key, source)
        return known or ExtensionBuilt()

    def _newly_built(self, key: str, source: ExtensionSource) -> ExtensionBuilt:
        built = self._build(source)
        if built.library:
            self._keep(key, built.library, source)
        elif built.error:
            self._session.failed_extensions[key] = built
        return built

    def _build(self, source: ExtensionSource) -> ExtensionBuilt:
        lean = "" if self._session.stock_extensions else str(LEAN_HEADERS)
        request = BuildExtension(source, lean)
        with self._session.spawn("worker", readable=[LEAN_HEADERS]) as child:
            child.begin(request)
            deadline_s = time.monotonic() + _TIME_LIMIT_S
            while not select.select([child.channel], [], [], _POLL_S)[0]:
                if self._hits_only.is_set() or time.monotonic() > deadline_s:
                    return ExtensionBuilt()
            return child.reply_to(request)

    def _key(self, source: ExtensionSource) -> str:
        session = self._session
        facts = {
            "request": encode(FindExtension(source)).message,
            "interpreter": session.interpreter.path,
            "torch": [session.torch_version, session.cuda_version],
            "compilers": [_version_of(find_cpp_compiler), _version_of(find_nvcc) if source.archs else ""],
            "headers": None if session.stock_extensions else _lean_texts(),
        }
        return sha256_hex(json.dumps(facts, sort_keys=True).encode("utf-8"))

    def _cached(self, key: str) -> ExtensionBuilt | None:
        build = self._cache.find(key)
        return ExtensionBuilt(library=Path(str(build.artifact)).read_bytes()) if build else None

    def _keep(self, key: str, library: bytes, source: ExtensionSource) -> None:
        if len(library) > _LARGEST_BYTES:
            return
        build = Build(
            program_id=self._program_id,
            ok=True,
            toolchain="nvcc" if source.archs else "cpp",
            compiler=f"torch.utils.cpp_extension of torch {self._session.torch_version}",
            artifact_sha256=sha256_hex(library),
            sandbox=self._session.sandbox_level,
        )
        with self._cache.workspace() as work:
            path = work / "library.so"
            path.write_bytes(library)
            self._cache.publish(key, build, path, work)


def _version_of(find: Callable[[], Compiler]) -> str:
    try:
        return find().version_line
    except EnvironmentMissingError:
        return ""


@functools.cache
def _lean_texts() -> str:
    return "".join(path.read_text(encoding="utf-8") for path in sorted(LEAN_HEADERS.rglob("*.h")))
