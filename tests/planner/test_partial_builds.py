"""Segments of a partial program that are built before its process starts."""

import re
import sys
from pathlib import Path

import pytest
import torch

from stitch_planner.planning import make_plan
from stitch_planner.stitcher import stitch
from stitch_tools.compile.segments import RUNTIME, built_segments, place_segments
from stitch_tools.errors import StoreError
from stitch_tools.graph import build_graph
from stitch_tools.models.program import Program
from stitch_tools.models.task import Contract, Task
from stitch_tools.run.candidate_worker import Worker
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store
from stitch_tools.worker.capture.graph_capture import capture
from tests.planner.stitch_support import NO_FACTS

TEXT = """
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.logcumsumexp(torch.relu(x) + 1, 0)
"""
WITH_CONSTANT = """
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.searchsorted(torch.tensor([-1.0, 0.0, 1.0]), torch.relu(x) + 1)
"""
TASK = Task(name="case", files=(), main="reference.py")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("STITCH_CACHE_DIR", str(tmp_path / "unused"))
    return Store(tmp_path / "store")


def program_files(text: str = TEXT) -> dict[str, bytes]:
    names: dict[str, type[torch.nn.Module]] = {}
    exec(compile(text, "reference.py", "exec"), names)
    graph = build_graph(capture(names["Model"](), [torch.randn(4, 3)]), Contract(), None)
    plan = make_plan(graph, NO_FACTS, TASK, None)
    return dict(stitch(TASK, NO_FACTS, graph, plan, {"reference.py": text.encode("utf-8")}).files)


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


def test_a_header_that_cannot_be_read_leaves_it_to_the_program(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "include").mkdir()
    (tmp_path / "lib").mkdir()
    (tmp_path / "include" / "dnnl.h").write_text("", encoding="utf-8")
    (tmp_path / "lib" / "libdnnl.so.3").write_text("", encoding="utf-8")
    (tmp_path / "include" / "dnnl_damaged.h").symlink_to("/proc/self/mem")  # a file whose read fails
    monkeypatch.setenv("STITCH_ONEDNN", str(tmp_path))
    files = program_files()
    files["segment_0.cpp"] = b'#include "dnnl.h"\n' + files["segment_0.cpp"]
    assert built_segments(stored(files, store), store) == {}


def test_segments_that_were_not_built_are_not_tried_again_for_the_next_worker(
    session: TargetSession, store: Store, tmp_path: Path
) -> None:
    program = stored(program_files() | {"segment_0.cpp": b"#error no\n"}, store)
    for name in ("first", "second"):
        with Worker(session, TASK, program, None, store, cache_dir=tmp_path / name) as worker:
            assert worker.folder is not None
            assert not (worker.folder / "stitch_built").exists()
    assert (tmp_path / "first").exists()
    assert not (tmp_path / "second").exists(), "nothing was compiled for the second worker"


def test_a_library_that_is_gone_leaves_it_to_the_program(tmp_path: Path) -> None:
    whole = tmp_path / "whole.so"
    whole.write_bytes(b"library")
    folder = tmp_path / "program"
    folder.mkdir()
    place_segments({"stitch_built/a.so": whole, "stitch_built/b.so": tmp_path / "gone.so"}, folder)
    assert list(folder.iterdir()) == []
    place_segments({"stitch_built/a.so": whole}, folder)
    assert (folder / "stitch_built" / "a.so").read_bytes() == b"library"


def test_a_folder_that_cannot_be_written_is_named_with_the_way_out(tmp_path: Path) -> None:
    library = tmp_path / "whole.so"
    library.write_bytes(b"library")
    (tmp_path / "stitch_built").mkdir()
    (tmp_path / "stitch_built" / "b.so").mkdir()
    with pytest.raises(StoreError, match=r"cannot write .*b\.so") as caught:
        place_segments({"stitch_built/a.so": library, "stitch_built/b.so": library}, tmp_path)
    assert "TMPDIR" in caught.value.hint
    assert not (tmp_path / "stitch_built").exists(), "the program would load what is there"


def test_a_constant_s_file_that_is_damaged_is_noticed_when_it_is_read(tmp_path: Path) -> None:
    files = program_files(WITH_CONSTANT)
    for path, data in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(data)
    sys.path.insert(0, str(tmp_path))
    from stitch_runtime.segments import constant  # pyright: ignore[reportMissingImports]  # just written

    (call,) = re.findall(
        r"^CONSTANT_0 = (constant\(.*\))$", files["model_new.py"].decode("utf-8"), re.MULTILINE
    )
    (path,) = (tmp_path / "constants").iterdir()
    whole = path.read_bytes()

    def read() -> torch.Tensor:
        return eval(call, {"constant": constant, "torch": torch})

    assert read().tolist() == [-1.0, 0.0, 1.0]
    for damaged in (whole[:-4], whole[:-1], whole[:-1] + b"\x7f", whole + b"more"):
        path.write_bytes(damaged)
        with pytest.raises(RuntimeError, match=f"{path.name} is damaged"):
            read()
