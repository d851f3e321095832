"""Our side of the child process: started without waiting, asked with a deadline, given up on a fault."""

import base64
import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

from stitch_rag.vectors.embedder import KEY
from stitch_rag.vectors.messages import VectorReply, VectorRequest
from stitch_rag.vectors.model import ADDRESS, EmbeddingModel

IDLE_S = 600.0
"""The child ends by itself after this time without a question."""
START_S = 120.0
_QUERY_S = 10.0
"""For an endpoint's answer."""
_LOCAL_QUERY_S = 3.0
"""... for a model's of this machine, which takes 30 ms, and half a second among many busy processes."""
_ADD_S = 600.0
_END_S = 5.0
"""In which a process whose output ended is to be gone: then its exit code says why it ended."""
_BY_OTHERS = tuple(-number for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
"""Exit codes of what somebody killed, or the system where memory is short; a crash has others."""
_LONGEST_REASON = 400
_SHORTEST_PART, _SHORTEST_NAMED = 6, 3
"""Letters of a part of an address that may be a secret ("v1" is none), and of what is meant as one."""


class VectorChild:
    """One child process. Every failure is an answer of None: the search goes on without vectors."""

    def __init__(
        self, model: EmbeddingModel, folder: Path, *, idle_s: float = IDLE_S, threads: int = 1
    ) -> None:
        """Starts the process; it takes seconds to become ready, and nobody waits for it here.

        Args:
            model: what embeds.
            folder: where the vectors lie.
            idle_s: time without a question after which it ends.
            threads: of the model. One question is answered fastest by one: on busy cores several wait for
                each other, 480 ms instead of 60.
        """
        self.reason = ""
        """What the child said of its last failure, without the endpoint's address."""
        self.stored = 0
        """How many vectors there were when it became ready."""
        self._secrets = _secrets(model.place) if model.kind == "endpoint" else []
        self._limit_s = _QUERY_S if model.kind == "endpoint" else _LOCAL_QUERY_S
        self._rest = b""
        self._ready = self._owed = self._useful = self._given_up = self._ended = False
        # An address may hold a key, and everybody may read the arguments of a process.
        place, address = ("", {ADDRESS: model.place}) if model.kind == "endpoint" else (model.place, {})
        command = [sys.executable, "-m", "stitch_rag.vectors.child", model.kind, place, model.name]
        folder.mkdir(parents=True, exist_ok=True)
        # A process of its own: torch and chromadb take 15 CPU seconds to import, and the server must start in
        # one.
        self._process = subprocess.Popen(
            [*command, model.fingerprint, str(folder), str(idle_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={
                **os.environ,
                **address,
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                "OMP_NUM_THREADS": str(threads),
            },
        )

    @property
    def alive(self) -> bool:
        """Whether the process is there, and not one that was given up and takes its time to die."""
        return not self._given_up and self._process.poll() is None

    @property
    def broken(self) -> bool:
        """Whether it was given up, or ended without ever having answered: another would fare no better."""
        return not self.alive and (self._given_up or (self._process.returncode != 0 and not self._useful))

    @property
    def killed(self) -> bool:
        """Whether others killed it before it answered anything: another may fare better."""
        return self.broken and not self._given_up and self._process.returncode in _BY_OTHERS

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def ready(self, *, wait_s: float = 0.0) -> bool:
        """Whether it answers questions; waits at most `wait_s` seconds for that.

        Of a process that ended before, what it said of its failure becomes the reason.
        """
        if not (self._ready or self._given_up or self._ended):
            answer = self._without_failure(self._read(wait_s))
            self._ready = bool(answer)
            self.stored = answer.get("stored", 0) if answer else 0
        return self._ready and self.alive

    def query(self, text: str, count: int) -> dict[str, float] | None:
        """Similarity (up to 1) by id of the nearest texts; None where the child does not answer."""
        return self.begin_query(text, count)()

    def begin_query(self, text: str, count: int) -> Callable[[], dict[str, float] | None]:
        """Ask, and leave the child to it. What comes back waits for the answer, as `query` does, once."""
        sent = self._send({"query": text, "count": count})

        def answered() -> dict[str, float] | None:
            answer = self._answer(self._limit_s) if sent else None
            return None if answer is None else dict(answer.get("hits", ()))

        return answered

    def ids(self) -> set[str] | None:
        """The ids that are stored."""
        answer = self._ask({"ids": True}, _ADD_S)
        return None if answer is None else set(answer.get("ids", ()))

    def add(self, rows: list[tuple[str, str]]) -> bool:
        """Whether the texts were stored under their ids."""
        return self._ask({"add": rows}, _ADD_S) is not None

    def drop(self, names: list[str]) -> bool:
        """Whether the texts with these ids were removed."""
        return self._ask({"drop": names}, _ADD_S) is not None

    def leave_alone(self) -> bool:
        """Remove the vectors of all other models, which nobody asks any more; whether that worked."""
        return self._ask({"alone": True}, _ADD_S) is not None

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                # What a dead process did not take is written once more here.
                with contextlib.suppress(OSError):
                    pipe.close()

    def _ask(self, request: VectorRequest, limit_s: float) -> VectorReply | None:
        return self._answer(limit_s) if self._send(request) else None

    def _send(self, request: VectorRequest) -> bool:
        if self._owed:
            self._answer(_QUERY_S)  # of a question that was given up: it must not be taken for the next one's
        pipe = self._process.stdin
        if pipe is None or not self.ready():
            return False
        try:
            pipe.write(json.dumps(request).encode("utf-8") + b"\n")
            pipe.flush()
        except OSError:
            return False
        # One answer is due: it has to be read, even if nobody waits for it any more.
        self._owed = True
        return True

    def _answer(self, limit_s: float) -> VectorReply | None:
        answer = self._read(limit_s)
        self._owed = False
        if answer is None:
            if not self._ended:
                self._given_up = True
                self.reason = f"it did not answer within {limit_s:.0f} s"
            self._process.kill()  # late answers would be taken for those of the next question
        self._useful = self._useful or answer is not None
        return self._without_failure(answer)

    def _without_failure(self, answer: VectorReply | None) -> VectorReply | None:
        """The answer, unless it reports a failure."""
        if answer is None or "error" not in answer:
            return answer
        self.take_reason(answer["error"])
        return None

    def take_reason(self, text: str) -> None:
        """Keep the child's message on a failure, without secrets."""
        text = " ".join(text.split())
        for secret in self._secrets:
            text = text.replace(secret, "(address)")
        self.reason = text[:_LONGEST_REASON]

    def _read(self, limit_s: float) -> VectorReply | None:
        """The next line; None where none comes in time."""
        pipe = self._process.stdout
        if pipe is None:
            return None
        poll = select.poll()  # select() takes no descriptor above 1023, and a server may have more open
        poll.register(pipe, select.POLLIN)
        deadline = time.monotonic() + limit_s
        while b"\n" not in self._rest:
            left = max(0.0, deadline - time.monotonic())
            if not poll.poll(left * 1e3):
                return None
            data = os.read(pipe.fileno(), 1 << 20)
            if not data:
                self._ended = True
                self._await_end()
                return None
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)

    def _await_end(self) -> None:
        """Wait for a process whose output ended; from then on it counts as dead."""
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:  # only its output ended
            self._given_up = True
            self._process.kill()
            self._process.wait()


def _secrets(address: str) -> list[str]:
    """What no message may contain of an endpoint: address, parts of it, and key; the longest first.

    An address may hold a key, in its path, too. Libraries like to repeat the whole, servers a part.
    """
    beginning, _, query = address.partition("?")
    user, _, place = (beginning.partition("://")[2] or beginning).rpartition("@")
    named = [*re.split(r"[&=;#/]", query), *user.split(":"), os.environ.get(KEY, "").strip()]
    parts = [part for part in re.split(r"[/:#]", place) if len(part) >= _SHORTEST_PART]
    header = base64.b64encode(unquote(user).encode("utf-8", errors="replace")).decode("ascii")
    secrets = {address, header, *parts, *(part for part in named if len(part) >= _SHORTEST_NAMED)}
    return sorted((secrets | {unquote(part) for part in secrets}) - {""}, key=len, reverse=True)
