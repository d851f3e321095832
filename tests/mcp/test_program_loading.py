"""Stitched programs loaded from their certificates: a partial one, and one of several inputs and outputs."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import stitch_mcp
from stitch_mcp.program_loading import some_names
from stitch_planner.planning import make_plan
from stitch_planner.stitcher import stitch
from stitch_tools.errors import UsageError
from stitch_tools.graph import capture_graph
from stitch_tools.models.environment import Environment
from stitch_tools.models.program import STITCHER, Program, ProgramFormat
from stitch_tools.models.verdict import Check, Finding
from stitch_tools.run.reference_server import ReferenceServer
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.certificate import Certificate, seal_certificate, write_certificate
from stitch_tools.storage.store import Store
from stitch_tools.task.references import load_task

EXAMPLES = Path(__file__).parents[2] / "examples"
PARTIAL = """
import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(8, 6)
        self.register_buffer("scale", torch.rand(6), persistent=False)

    def forward(self, x, shift):
        return torch.logcumsumexp(torch.relu(self.first(x)) * self.scale + shift, 1) * 2


def get_inputs():
    return [torch.randn(4, 8), torch.randn(4, 6)]
"""
LOAD_AND_FORK = """
import os, sys, tempfile
from pathlib import Path
import stitch_mcp

stitch_mcp.load_program(sys.argv[1])
count = lambda: len(list(Path(tempfile.gettempdir()).glob("stitch-program-*")))
before = count()
if os.fork() == 0:
    sys.exit()
os.wait()
print(before, count())
"""
Namespace = dict[str, Any]


def certificate_of(
    session: TargetSession, reference: Path, folder: Path, written: str = "", **found: Any
) -> tuple[Path, ProgramFormat]:
    """A certificate, which nobody checked, of a program, and its format.

    Args:
        session: where the reference is observed.
        reference: the task.
        folder: where it goes.
        written: a `ModelNew`; "" for the program that the stitcher writes.
        found: fields of the check.
    """
    store = Store(folder / "store")
    task = load_task(str(reference), workspace=reference.parent, store=store)
    with ReferenceServer(session, task, store) as server:
        facts = server.observe()
        graph = None if written else capture_graph(server.child, task, facts, None)
    sources = {file.path: store.get(file.sha256) for file in task.files}
    if graph is None:
        texts = {"program.py": written.encode()}
        files = store.put_files(texts)
        program = Program(format="kernelbench", target="cpu", files=files, main="program.py")
    else:
        stitched = stitch(task, facts, graph, make_plan(graph, facts, task, None), sources)
        texts = stitched.files
        files = store.put_files(texts)
        program = Program(
            format=stitched.format, target="cpu", files=files, main=stitched.main, author=STITCHER
        )
    entries = {
        "task.json": task.canonical_json(),
        "facts.json": facts.canonical_json(),
        "program.json": program.canonical_json(),
        **{f"task/{path}": data for path, data in sources.items()},
        **{f"program/{path}": data for path, data in texts.items()},
    }
    draft = Certificate(
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        run_id="by-hand",
        task_id=task.task_id,
        program_id=program.program_id,
        target="cpu",
        check=Check(program_id=program.program_id, task_id=task.task_id, status="accepted", **found),
        bench=None,
        environment=Environment(stitch_version="test", platform="test"),
        files=(),
    )
    path = folder / "stitched.stitch.zip"
    write_certificate(seal_certificate(draft, entries), path)
    return path, program.format


def executed(text: str) -> Namespace:
    """The names that a reference defines."""
    namespace: Namespace = {"__name__": "reference"}
    exec(compile(text, "reference.py", "exec"), namespace)
    return namespace


@pytest.fixture(scope="module", autouse=True)
def _own_cache(  # pyright: ignore[reportUnusedFunction]  # pytest calls it
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STITCH_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def partial(tmp_path_factory: pytest.TempPathFactory, two_threads: TargetSession) -> Path:
    """The certificate of a program that leaves one operation to PyTorch."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("partial")
    (folder / "model.py").write_text(PARTIAL, encoding="utf-8")
    path, written = certificate_of(two_threads, folder / "model.py", folder)
    assert written == "kernelbench"
    return path


@pytest.fixture
def model() -> Any:
    """Another instance of the partial program's reference."""
    return executed(PARTIAL)["Model"]()


WRITTEN = """
import torch


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(8, 6)
        self.register_buffer("scale", torch.rand(6))

    def __call__(self, x, shift):
        return [torch.logcumsumexp(torch.relu(self.first(x)) * self.scale + shift, 1) * 2]
"""


def test_what_a_check_found_of_shapes_and_containers_holds_for_the_loaded_program(
    tmp_path: Path, two_threads: TargetSession
) -> None:
    torch = pytest.importorskip("torch")
    from stitch_tools.worker.program_module import ProgramError

    (tmp_path / "model.py").write_text(PARTIAL, encoding="utf-8")
    note = Finding(rule="other_container", severity="note", message="returns [tensor], the reference tensor")
    path, _ = certificate_of(
        two_threads, tmp_path / "model.py", tmp_path, WRITTEN, flags=("unguarded",), findings=(note,)
    )
    original = executed(PARTIAL)["Model"]()
    loaded = stitch_mcp.load_program(path, weights=original)
    x, shift = torch.randn(4, 8), torch.randn(4, 6)
    with torch.no_grad():
        torch.testing.assert_close(loaded(x, shift), original(x, shift))
        with pytest.raises(ProgramError, match=r"input 0: made for float32\[4, 8\], given float32\[5, 8\]"):
            loaded(torch.randn(5, 8), torch.randn(5, 6))
    with pytest.raises(RuntimeError, match="no gradients"):
        loaded(x.requires_grad_(), shift)


NORM = """
import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(8)

    def forward(self, x):
        return torch.relu(self.norm(x))


def get_inputs():
    return [torch.randn(4, 8)]
"""
OWN_NORM = NORM.partition("\n\ndef")[0].replace("class Model", "class ModelNew")


@pytest.mark.parametrize("written", ["", OWN_NORM], ids=["native", "python"])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_a_module_in_the_other_mode_is_refused_where_numbers_would_differ(
    tmp_path: Path, mode: str, written: str, two_threads: TargetSession
) -> None:
    torch = pytest.importorskip("torch")
    (tmp_path / "model.py").write_text(NORM, encoding="utf-8")
    if mode == "eval":
        (tmp_path / "model.task.toml").write_text(
            'reference = "model.py"\n[contract]\nmode = "eval"\n', encoding="utf-8"
        )
    path, _ = certificate_of(two_threads, tmp_path / "model.py", tmp_path, written)
    model = executed(NORM)["Model"]().train(mode == "eval")
    with pytest.raises(UsageError, match=f"{mode} mode; .* BatchNorm1d uses the statistics") as caught:
        stitch_mcp.load_program(path, weights=model)
    assert f"weights.{mode}()" in caught.value.hint
    assert stitch_mcp.load_program(path, weights=model.state_dict()).training is (mode == "train")
    model.train(mode == "train")
    loaded, x = stitch_mcp.load_program(path, weights=model), torch.randn(4, 8)
    loaded.train(mode == "train")
    with pytest.warns(UserWarning, match=f"in {mode} mode, and stays in it"):
        loaded.train(mode == "eval")
    assert loaded.training is (mode == "train")
    with torch.no_grad():
        torch.testing.assert_close(loaded(x), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_partial_program_gets_weights_and_arguments_as_the_reference_does(
    partial: Path, model: Any
) -> None:
    import torch

    fast = stitch_mcp.load_program(partial, weights=model)
    assert list(fast.state_dict()) == list(model.state_dict())
    x, shift = torch.randn(4, 8), torch.randn(4, 6)
    with torch.no_grad():
        expected = model(x, shift)
        torch.testing.assert_close(fast(x, shift), expected)
        torch.testing.assert_close(fast(shift=shift, x=x), expected)
        with pytest.raises(TypeError, match="shift is missing"):
            fast(x)
    later = executed(PARTIAL)["Model"]()
    later.scale.copy_(model.scale)  # a state_dict lacks it
    fast.load_state_dict(later.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(fast(x, shift), later(x, shift))


@pytest.mark.slow
def test_a_loaded_program_s_files_go_when_its_process_ends_and_not_with_a_fork(
    partial: Path, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOAD_AND_FORK, str(partial)],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stdout) == (0, "1 1\n"), done.stderr
    assert list(tmp_path.glob("stitch-*")) == []


@pytest.mark.slow
def test_a_partial_program_is_compiled_once_for_all_processes_that_load_it(
    partial: Path, model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setenv("STITCH_CACHE_DIR", str(tmp_path / "unused"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    cache = tmp_path / "cache"
    stitch_mcp.load_program(partial, cache_dir=cache)
    built = {path: path.stat().st_mtime_ns for path in cache.rglob("*.so")}
    assert built
    x, shift = torch.randn(4, 8), torch.randn(4, 6)
    fast = stitch_mcp.load_program(partial, weights=model, cache_dir=cache)
    with torch.no_grad():
        torch.testing.assert_close(fast(x, shift), model(x, shift))
    assert {path: path.stat().st_mtime_ns for path in cache.rglob("*.so")} == built
    assert not (tmp_path / "unused").exists()
    assert list(tmp_path.glob("stitch-segments-*")) == [], "where the program itself compiles"


@pytest.mark.slow
def test_a_partial_program_refuses_gradients_in_words(partial: Path) -> None:
    import torch

    fast = stitch_mcp.load_program(partial)
    x, shift = torch.randn(4, 8, requires_grad=True), torch.randn(4, 6)
    with pytest.raises(RuntimeError, match="no gradients"):
        fast(x, shift)
    with torch.no_grad():
        assert fast(x, shift).shape == (4, 6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("first.bias"), r"lack first\.bias"),
        (lambda state: state.update(second=state["first.bias"] + 1), "knows no weights named second"),
        (lambda state: state.update({"first.bias": state["first.bias"][:1]}), r"first\.bias has shape"),
    ],
)
def test_a_partial_program_refuses_weights_of_another_module(
    partial: Path, model: Any, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    state = dict(model.state_dict())
    change(state)
    with pytest.raises(UsageError, match=message):
        stitch_mcp.load_program(partial, weights=state)


@pytest.mark.slow
def test_a_stitched_program_of_two_inputs_and_three_outputs_computes_what_its_reference_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, two_threads: TargetSession
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setenv("STITCH_CACHE_DIR", str(tmp_path / "cache"))
    path, written = certificate_of(two_threads, EXAMPLES / "two_towers.task.toml", tmp_path)
    assert written == "native"
    namespace = executed((EXAMPLES / "two_towers.py").read_text(encoding="utf-8"))
    reference = namespace["Model"](*namespace["get_init_inputs"]())
    fast = stitch_mcp.load_program(path, weights=reference)
    queries, documents = namespace["get_inputs"]()
    with torch.no_grad():
        expected = reference(queries, documents)
        for found in (fast(queries, documents), fast(documents=documents, queries=queries)):
            assert type(found) is tuple
            for ours, theirs in zip(found, expected, strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    with pytest.raises(UsageError, match="knows no weights named third"):
        stitch_mcp.load_program(path, weights={**reference.state_dict(), "third": torch.zeros(1)})


def test_names_that_are_left_out_of_a_message_are_counted() -> None:
    assert some_names(list("abcde")) == "a, b, c, d, e"
    assert some_names(list("abcdefghij")) == "a, b, c, d, e, ... (5 more)"
