"""Segments of a partial program that are built before its process starts."""

from pathlib import Path

import pytest
import torch

from stitch_planner.plan import make_plan
from stitch_planner.stitcher import stitch
from stitch_tools.check.candidate import Worker
from stitch_tools.compile.segments import RUNTIME, built_segments
from stitch_tools.graph import build_graph
from stitch_tools.models import Contract, Program, Task
from stitch_tools.processes.session import TargetSession
from stitch_tools.store import Store
from stitch_tools.worker.capture import capture
from tests.planner.stitch_support import NO_FACTS

TEXT = """
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.cumsum(torch.relu(x) + 1, 0)
"""
TASK = Task(name="case", files=(), main="reference.py")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("STITCH_CACHE_DIR", str(tmp_path / "unused"))
    return Store(tmp_path / "store")


def program_files() -> dict[str, bytes]:
    names: dict[str, type[torch.nn.Module]] = {}
    exec(compile(TEXT, "reference.py", "exec"), names)
    graph = build_graph(capture(names["Model"](), [torch.randn(4, 3)]), Contract(), None)
    plan = make_plan(graph, NO_FACTS, TASK, None)
    return dict(stitch(TASK, NO_FACTS, graph, plan, {"reference.py": TEXT.encode("utf-8")}).files)


def stored(files: dict[str, bytes], store: Store) -> Program:
    return Program(format="kernelbench", target="cpu", files=store.put_files(files), main="model_new.py")


def test_workers_get_the_segments_of_a_stitched_program_and_compile_none(
    session: TargetSession, store: Store, tmp_path: Path
) -> None:
    files = program_files()
    # A process that compiled one would fail.
    files["model_new.py"] = b"import os\nos.environ['CXX'] = 'false'\n" + files["model_new.py"]
    program = stored(files, store)
    for _ in range(2):
        with Worker(session, TASK, program, None, store, cache_dir=tmp_path / "cache") as worker:
            assert worker.folder is not None
            assert (worker.folder / "stitch_built" / "segment_0.so").is_file()
            answer = worker.load(120.0)
            assert answer.ok, answer.message
    assert len(list((tmp_path / "cache").rglob("*.so"))) == 1, "one build for both"
    assert not (tmp_path / "unused").exists()


def test_a_runtime_with_other_flags_is_left_to_build_itself(store: Store) -> None:
    files = program_files()
    files[RUNTIME] = files[RUNTIME].replace(b"'-O3'", b"'-O2'")
    assert built_segments(stored(files, store), store) == {}


def test_a_cache_that_cannot_be_written_leaves_it_to_the_program(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.joinpath("file").write_text("", encoding="utf-8")
    monkeypatch.setenv("STITCH_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert built_segments(stored(program_files(), store), store) == {}


def test_a_segment_that_does_not_compile_is_left_to_the_program(store: Store) -> None:
    files = program_files() | {"segment_0.cpp": b"#error no\n"}
    assert built_segments(stored(files, store), store) == {}
