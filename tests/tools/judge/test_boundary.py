"""What a program gets hold of beside its inputs: attackers in Python and C++ that are told where to look."""

import ctypes
import json
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from stitch_tools.machine.isolation import probe_isolation
from stitch_tools.models.program import Build, Program
from stitch_tools.protocol import memory
from stitch_tools.run.candidate_worker import Worker
from stitch_tools.run.interpreter import find_interpreter
from stitch_tools.run.reference_server import Inputs, ReferenceServer
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store
from stitch_tools.worker.tensors import map_pack
from tests.tools.check_support import build, make_program, make_task

ATTACKERS = Path(__file__).parent / "attackers"
ZOO_HEADER = Path(__file__).parent / "zoo" / "native" / "zoo.h"
LIBC = ctypes.CDLL(None, use_errno=True)
REFERENCE = """
import torch

SOURCE = "{source}"

class Model(torch.nn.Module):
    def forward(self, x):
        return x * 2.0 + 1.0

def get_inputs():
    return [torch.randn(32, 64)]

def get_init_inputs():
    return []
"""
LEVELS = ("full", "fs+net", "process")


def fresh_secret() -> str:
    return "stitch-secret-" + secrets.token_hex(12)


@dataclass
class Plants:
    """What an attacker would like to have, and where it really lies."""

    root: Path
    source: str
    environment: str
    home: str
    segment: int
    port: int
    listener: socket.socket
    unix: socket.socket
    abstract: socket.socket

    @property
    def victim(self) -> Path:
        """A file of the user's."""
        return self.root / "home" / "victim"

    @property
    def shared(self) -> Path:
        """A file in the memory folder that all processes share."""
        return Path("/dev/shm") / f"stitch-{self.source[-8:]}"

    def needles(self) -> dict[str, str]:
        """What attackers look for, masked as they unmask it."""
        plain = {"source": self.source, "environment": self.environment, "home": self.home}
        return {name: bytes(byte ^ 0x5A for byte in text.encode()).hex() for name, text in plain.items()}


@pytest.fixture(scope="module")
def plants(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plants]:
    root = tmp_path_factory.mktemp("plants")
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        lines = [socket.socket(family) for family in (socket.AF_INET, socket.AF_UNIX, socket.AF_UNIX)]
        for line in lines:
            stack.enter_context(line)
        name = fresh_secret()
        for line, address in zip(lines, (("127.0.0.1", 0), str(root / "line"), "\0" + name), strict=True):
            line.bind(address)
            line.listen()
            line.setblocking(False)
        segment = LIBC.shmget(0, 4096, 0o1600)
        stack.callback(LIBC.shmctl, segment, 0, None)
        found = Plants(
            root, fresh_secret(), fresh_secret(), fresh_secret(), segment, lines[0].getsockname()[1], *lines
        )
        patch.setenv("STITCH_PLANTED", found.environment)
        patch.setenv("HOME", str(root / "home"))
        (root / "home").mkdir()
        found.victim.write_text(found.home, encoding="utf-8")
        found.victim.chmod(0o640)
        found.shared.write_text(found.home, encoding="utf-8")
        stack.callback(found.shared.unlink)
        LIBC.shmat.restype = ctypes.c_void_p
        ctypes.memmove(LIBC.shmat(segment, None, 0), found.home.encode(), len(found.home))
        yield found


class BoundarySetup:
    """A session at one level, with the reference loaded."""

    def __init__(self, session: TargetSession, plants: Plants, stack: ExitStack) -> None:
        self.session, self.plants = session, plants
        self.level = session.sandbox_level
        self.store = Store(plants.root / self.level / "store")
        self.task = make_task(self.store, REFERENCE.replace("{source}", plants.source))
        self.reference = stack.enter_context(ReferenceServer(session, self.task, self.store))
        self.reference.observe()

    def told(self) -> dict[str, Any]:
        """Everything that a program would otherwise have to guess."""
        folder = self.reference._folder
        stored = [path for path in self.store.root.rglob("*") if path.is_file()]
        return {
            "needles": self.plants.needles(),
            "paths": [
                str(path)
                for path in (folder / "reference.py", self.plants.victim, self.plants.shared, *stored)
            ],
            "victim": str(self.plants.victim),
            "socket": str(self.plants.root / "line"),
            "abstract": self.plants.abstract.getsockname().decode(),
            "port": self.plants.port,
            "pids": {"the controller": os.getpid(), "the reference server": self.reference.child.pid},
            "segment": self.plants.segment,
            "default_seed": torch.default_generator.initial_seed(),
        }

    def python_attacker(self) -> tuple[Program, None]:
        files = {
            "program.py": (ATTACKERS / "raid.py").read_bytes(),
            "told.json": json.dumps(self.told()).encode(),
        }
        return make_program(self.store, files, "program.py", "kernelbench"), None

    def native_attacker(self) -> tuple[Program, Build]:
        told = self.told()
        quoted = ", ".join(json.dumps(path) for path in told["paths"])
        numbers = ", ".join(str(pid) for pid in (1, *told["pids"].values()))
        header = (
            f"const char* const kPaths[] = {{{quoted}}};\nconst int kPids[] = {{{numbers}}};\n"
            f"const char kSocket[] = {json.dumps(told['socket'])};\nconst int kSegment = {told['segment']};\n"
        )
        files = {
            "raid.cpp": (ATTACKERS / "raid.cpp").read_bytes(),
            "zoo.h": ZOO_HEADER.read_bytes(),
            "told.h": header.encode(),
        }
        program = make_program(self.store, files, "raid.cpp")
        built = build(program, self.store)
        assert built.ok, built.diagnostics
        return program, built

    def raid(self, program: Program, built: Build | None) -> str:
        """What the attacker printed; it computes rightly beside, so that nothing stops it."""
        with Worker(self.session, self.task, program, built, self.store) as worker:
            weights = self.reference.set_weights()
            assert worker.load(120).ok
            assert worker.init(weights, 60).ok
            weights.close()
            inputs = self.reference.make_draw("own-1")
            self.call(worker, inputs)
            if self.level == "full":
                self.look_into(worker, inputs)
            inputs.close()
        return worker.child.kill().output_tail

    def call(self, worker: Worker, inputs: Inputs) -> None:
        expectation = self.reference.expect()
        fd = memory.create(expectation.nbytes)
        self.reference.prime(fd, expectation)
        answer = worker.run(inputs, fd, expectation, reuse=False, timeout_s=120)
        assert answer.ok, answer
        assert self.reference.compare(fd, expectation, answer.generator).right
        os.close(fd)

    def look_into(self, worker: Worker, inputs: Inputs) -> None:
        """From outside: the worker's whole memory holds its inputs, and nothing of what it must not have."""
        manifest: Any = inputs.manifest
        x = map_pack(inputs.fds[0], manifest)[0]
        (master,) = (x[0].double() * 2.0 + 1.0,)
        secret = {
            "source": self.plants.source.encode(),
            "environment": self.plants.environment.encode(),
            "home": self.plants.home.encode(),
            "seed": inputs.seed.to_bytes(8, "little"),
            "seed as text": str(inputs.seed).encode(),
            "expected output": master.numpy().tobytes(),
        }
        held = memory_of(worker.child.pid, {"inputs": x[0].numpy().tobytes(), **secret})
        assert held == {"inputs"}
        if os.geteuid() == 0:  # others may not look into an undumpable process: then this is not shown
            judge = memory_of(self.reference.child.pid, {**secret})
            assert {"source", "expected output"} <= judge


def memory_of(pid: int, needles: dict[str, bytes]) -> set[str]:
    """Which of the needles lie in a process' memory, seen from outside."""
    held: set[str] = set()
    folder = Path(f"/proc/{pid}")
    with (folder / "maps").open(encoding="utf-8") as maps, (folder / "mem").open("rb", 0) as space:
        for line in maps:
            span, mode, _, _, _, *name = line.split()
            if mode[0] != "r" or (name and name[0].startswith(("/usr", "/lib", "[v"))) or ".so" in line:
                continue
            begin, end = (int(word, 16) for word in span.split("-"))
            space.seek(begin)
            try:
                data = space.read(end - begin)
            except OSError:
                continue
            held |= {name for name, needle in needles.items() if needle in data}
    return held


@pytest.fixture(scope="module", params=LEVELS)
def setup(request: pytest.FixtureRequest, plants: Plants) -> Iterator[BoundarySetup]:
    scratch = plants.root / "scratch"
    with (
        ExitStack() as stack,
        TargetSession(
            find_interpreter(None, plants.root), at_most=request.param, threads=1, scratch_root=scratch
        ) as session,
    ):
        if session.sandbox_level != request.param:
            pytest.skip(f"level {request.param} does not work here: {session.sandbox_reason}")
        yield BoundarySetup(session, plants, stack)


ALLOWED: dict[str, set[str]] = {
    "full": set(),
    # What Landlock has no rules for: modes and times of the user's files, and memory shared by number.
    "fs+net": {"changes", "control", "shared_memory"},
    "process": {"files", "changes", "other_processes", "control", "devices", "shared_memory"},
}
"""By level the attacks of raid.py that get something; SECURITY.md has the sentence."""


def test_a_program_in_python_gets_nothing_that_its_level_does_not_give(setup: BoundarySetup) -> None:
    before = (setup.plants.victim.read_bytes(), setup.plants.victim.stat().st_mode)
    text = setup.raid(*setup.python_attacker())
    (line,) = [row for row in text.splitlines() if row.startswith("LOOT ")]
    loot: dict[str, list[str]] = json.loads(line.removeprefix("LOOT "))
    print(setup.level, loot)
    assert set(loot) <= ALLOWED[setup.level], loot
    if setup.level == "full":
        assert (setup.plants.victim.read_bytes(), setup.plants.victim.stat().st_mode) == before
    elif setup.level == "fs+net":
        assert setup.plants.victim.read_bytes() == before[0]
        assert set(loot["changes"]) <= {"chmod", "chown", "times", "attribute"}
        assert all(what.startswith("affinity") for what in loot["control"])
    assert nobody_called(setup.plants)
    assert setup.reference.child.is_alive()


def test_a_native_program_gets_nothing_that_its_level_does_not_give(setup: BoundarySetup) -> None:
    text = setup.raid(*setup.native_attacker())
    lines = [row.split()[1] for row in text.splitlines() if row.startswith("LOOT ")]
    print(setup.level, sorted(set(lines)), text[-1500:])
    assert "RAIDED" in text
    assert set(lines) <= NATIVE_ALLOWED[setup.level]
    assert nobody_called(setup.plants)


NATIVE_ALLOWED: dict[str, set[str]] = {
    "full": set(),
    "fs+net": {"chmod", "segment"},
    "process": {"read", "reopened", "opened", "chmod", "signal", "segment"},
}


def nobody_called(plants: Plants) -> bool:
    """Whether no connection arrived."""
    for line in (plants.listener, plants.unix, plants.abstract):
        try:
            line.accept()
        except BlockingIOError:
            continue
        return False
    return True


BUILDING = """
#include "zoo.h"

TAKING

struct Program : zoo::Base {
  void forward(zoo::Call&) {}
};

ZOO_PROGRAM(Program)
"""
TAKING = {
    "assembled in": r"""asm(".data\nstolen: .incbin \"VICTIM\"\n.text");""",
    "included by the assembler": r"""asm(".include \"VICTIM\"");""",
    "included": 'const char* stolen =\n#include "VICTIM"\n;',
    "included as a system header": "const char* stolen =\n#include <VICTIM>\n;",
    "included by a detour": f'const char* stolen =\n#include "{"../" * 20}.VICTIM"\n;',
}
"""How a source asks its compiler for a file."""


@pytest.mark.parametrize("way", TAKING)
def test_a_build_takes_nothing_in_from_outside_the_program(plants: Plants, way: str) -> None:
    if probe_isolation() == "process":
        pytest.skip("level process has no file rules")
    # The attackers before, at weaker levels, may have changed the file. Quoted, it is C++ too.
    plants.victim.write_text(json.dumps(plants.home), encoding="utf-8")
    plants.victim.chmod(0o644)
    source = BUILDING.replace("TAKING", TAKING[way]).replace("VICTIM", str(plants.victim))
    store = Store(plants.root / "builds" / "store")
    program = make_program(store, {"p.cpp": source.encode(), "zoo.h": ZOO_HEADER.read_bytes()}, "p.cpp")
    built = build(program, store)
    assert built.artifact is None
    (refusal,) = [row.message for row in built.diagnostics if "lies outside the program" in row.message]
    assert str(plants.victim) in refusal


def test_a_program_that_builds_itself_takes_no_more_than_it_may_read(setup: BoundarySetup) -> None:
    files = {
        "program.py": (ATTACKERS / "builds.py").read_bytes(),
        "victim.txt": str(setup.plants.victim).encode(),
    }
    setup.plants.victim.write_text(setup.plants.home, encoding="utf-8")
    setup.plants.victim.chmod(0o644)
    text = setup.raid(make_program(setup.store, files, "program.py", "kernelbench"), None)
    assert ("BUILT" in text) is (setup.level == "process"), text[-1500:]
    assert "BUILT" in text or "file not found" in text
