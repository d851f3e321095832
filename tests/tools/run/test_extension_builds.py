"""Extensions that a program builds when it is loaded: built once for all workers, and as it would itself."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stitch_tools.compile.cache import BuildCache
from stitch_tools.judge.check_options import CheckOptions
from stitch_tools.models.program import Program
from stitch_tools.run.candidate_worker import Answer, Worker
from stitch_tools.run.child_outcome import ChildTimeout
from stitch_tools.run.extension_builds import ExtensionBuilds
from stitch_tools.run.interpreter import find_interpreter
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store
from tests.tools.check_support import AFFINE, checked, make_task, model_new

CANDIDATE = """
import ctypes, os
import torch
from pathlib import Path
from torch.utils import cpp_extension

{before}
source = Path("source.cpp").absolute()
source.write_bytes('''{source}'''.encode('latin-1'))
path = cpp_extension.load("plain", [str(source)], is_python_module=False, verbose=False)
NUMBER = ctypes.CDLL(os.path.join(cpp_extension._get_build_directory("plain", False), "plain.so")).number()
assert NUMBER == 7, NUMBER

class ModelNew(torch.nn.Module):
    def forward(self, x):
        return x * 2.0 + 1.0
"""
FLAGS = """
import functools
LIMITS = ['-fconstexpr-ops-limit=9223372036854775807', '-fconstexpr-loop-limit=2147483647']
cpp_extension.load = functools.partial(cpp_extension.load, extra_cflags=LIMITS)
"""
RIGHT = 'extern "C" int number() { return 7; }'


def children_below(root: Path) -> list[Path]:
    """Scratch folders, of which each child has one."""
    return sorted(root.glob("*/worker-*"))


def wait_until(holds: Callable[[], bool]) -> bool:
    deadline_s = time.monotonic() + 30.0
    while not holds() and time.monotonic() < deadline_s:
        time.sleep(0.05)
    return holds()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("session")


@pytest.fixture(scope="module")
def session(root: Path) -> Iterator[TargetSession]:
    with TargetSession(find_interpreter(None, root), threads=2, scratch_root=root) as session:
        yield session


def candidate(store: Store, source: str = RIGHT, before: str = "") -> Program:
    return model_new(store, CANDIDATE.format(source=source, before=before))


def load(
    session: TargetSession, store: Store, program: Program, cache: Path, *, hits_only: bool = False
) -> Answer:
    with Worker(session, make_task(store, AFFINE), program, None, store, cache_dir=cache) as worker:
        assert worker.extensions is not None
        if hits_only:
            worker.extensions.end_builds()
        return worker.load(120.0)


def test_an_extension_is_built_once_for_all_workers(session: TargetSession, tmp_path: Path) -> None:
    store, cache = Store(tmp_path / "store"), tmp_path / "cache"
    program = candidate(store)
    assert load(session, store, program, cache).ok
    (entry,) = BuildCache(cache).folder.glob("builds/*/*")
    made = (entry / "entry.json").stat().st_mtime_ns
    # Without a compiler that works it can only come from the cache.
    again = candidate(store, before="cpp_extension._run_ninja_build = None")
    assert load(session, store, again, cache).ok
    assert (entry / "entry.json").stat().st_mtime_ns == made


def test_nothing_is_built_for_a_program_that_is_timed(session: TargetSession, tmp_path: Path) -> None:
    store, cache = Store(tmp_path / "store"), tmp_path / "cache"
    assert load(session, store, candidate(store), cache, hits_only=True).ok, "it builds its own"
    assert BuildCache(cache).summary().entries == 0


def test_what_the_compiler_says_is_the_program_s_error_and_asked_for_once(
    session: TargetSession, tmp_path: Path
) -> None:
    store, cache = Store(tmp_path / "store"), tmp_path / "cache"
    program = candidate(store, source='extern "C" int number() { return seven; }')
    before = set(session.failed_extensions)
    for _ in range(2):
        answer = load(session, store, program, cache)
        assert (answer.status, answer.step) == ("not_loadable", "load")
        assert "return seven; }" in answer.message
    assert len(set(session.failed_extensions) - before) == 1


@pytest.mark.parametrize(
    ("before", "source"),
    [
        ("os.environ['CXX'] = 'g++'", RIGHT),
        ("", f"// d\u00e9part\n{RIGHT}"),
        (
            "Path('seven.h').write_text('#define SEVEN 7')",
            '#include "seven.h"\n' + RIGHT.replace("7", "SEVEN"),
        ),
    ],
    ids=["another compiler", "a source that is not UTF-8", "a header beside it"],
)
def test_what_cannot_be_asked_for_is_built_by_the_program(
    session: TargetSession, tmp_path: Path, before: str, source: str
) -> None:
    store, cache = Store(tmp_path / "store"), tmp_path / "cache"
    assert load(session, store, candidate(store, source, before), cache).ok
    assert BuildCache(cache).summary().entries == 0


def endless(store: Store) -> Program:
    """A program whose build does not end: nothing but the constant's value takes long."""
    slow = "constexpr long f(long n) { long s = 0; for (long i = 0; i < n; ++i) s += i; return s; }"
    return candidate(store, f"{slow} constexpr long S = f(1L << 40); {RIGHT}", FLAGS)


def test_a_build_ends_with_the_worker_that_asked_for_it(
    session: TargetSession, root: Path, tmp_path: Path
) -> None:
    store, cache = Store(tmp_path / "store"), tmp_path / "cache"
    program = endless(store)
    before = children_below(root)
    with Worker(session, make_task(store, AFFINE), program, None, store, cache_dir=cache) as worker:
        worker.begin_load()
        assert wait_until(lambda: len(children_below(root)) == len(before) + 2), "worker and build"
        began = time.monotonic()
        assert worker.extensions is not None
        worker.extensions.end_builds()
        assert len(children_below(root)) == len(before) + 1
        assert time.monotonic() - began < 5.0
    assert not [row for row in threading.enumerate() if row.name == "extension builds"]


def test_a_worker_that_ends_does_not_wait_for_the_build_of_another(
    session: TargetSession, root: Path, tmp_path: Path
) -> None:
    store, cache = Store(tmp_path / "store"), tmp_path / "cache"
    task, program = make_task(store, AFFINE), endless(store)
    before = children_below(root)
    with Worker(session, task, program, None, store, cache_dir=cache) as builder:
        builder.begin_load()
        assert wait_until(lambda: len(children_below(root)) == len(before) + 2), "worker and build"
        with Worker(session, task, program, None, store, cache_dir=cache) as waiting:
            with pytest.raises(ChildTimeout):
                waiting.load(3.0)
            began = time.monotonic()
        assert time.monotonic() - began < 5.0
        assert len(children_below(root)) == len(before) + 2, "the build goes on"


def test_a_build_that_never_ends_is_a_program_that_timed_out(session: TargetSession, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    options = CheckOptions(init_timeout_s=8.0, cache_dir=tmp_path / "cache", trace=False)
    check = checked(session, store, make_task(store, AFFINE), endless(store), options)
    assert check.status == "timed_out", check.message
    assert "while it was loaded" in check.message


@pytest.mark.parametrize("noise", [b"no frame of ours", b'STW1\x00\x00\x00\x0f{"op": "spawn"}'])
def test_what_is_no_request_ends_the_answers(session: TargetSession, tmp_path: Path, noise: bytes) -> None:
    builds = ExtensionBuilds(session, "0" * 64, tmp_path)
    builds.line.sendall(noise)
    builds.line.settimeout(10.0)
    with contextlib.suppress(ConnectionResetError):
        assert builds.line.recv(1 << 16) == b""
    builds.close()
