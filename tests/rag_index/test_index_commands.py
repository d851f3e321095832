"""`stitch-mcp index ...` as it is typed."""

import json
import shlex
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from stitch_mcp.cli import main
from stitch_mcp.cli.options import settings
from stitch_mcp.documentation import _target
from stitch_rag.build import build_index
from stitch_rag.index_location import IndexLocation
from stitch_rag.sources import Root


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(["index", *arguments])
    return code, capsys.readouterr().out


@pytest.fixture
def cache(toolkit: Root, place: IndexLocation) -> str:
    build_index(place, roots=[toolkit])
    return str(place.folder.parent)


def test_search_prints_one_object_with_hits_and_mode(capsys: pytest.CaptureFixture[str], cache: str) -> None:
    code, out = run(capsys, "search", "put a box", "-k", "2", "--cache-dir", cache, "--json")
    found = json.loads(out)
    assert (code, found["command"], found["mode"], len(found["hits"])) == (0, "index search", "lexical", 2)
    hit = found["hits"][0]
    assert hit["symbol"] == "shelfPutBoxAsync"
    assert {
        "id",
        "kind",
        "signature",
        "summary",
        "text",
        "path",
        "line",
        "source",
        "version",
        "score",
    } <= hit.keys()


def test_search_without_an_index_says_how_to_build_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, out = run(capsys, "search", "pinned memory", "--cache-dir", str(tmp_path))
    assert code == 0
    assert "Copy from pinned host memory" in out
    assert "stitch-mcp index build" in out


def test_show_prints_an_entry_in_full(capsys: pytest.CaptureFixture[str], cache: str) -> None:
    code, out = run(capsys, "show", "cudart/shelfPutBoxAsync", "--cache-dir", cache)
    assert code == 0
    assert "Parameter count: How many boxes" in out
    assert "cuda_runtime_api.h:27 (cudart 98.7, CUDA toolkit)" in out
    assert out.count("Puts a box on a shelf") == 1


def test_show_begins_with_when_a_note_applies(capsys: pytest.CaptureFixture[str], cache: str) -> None:
    out = run(capsys, "show", "pinned-memory", "--cache-dir", cache)[1]
    assert out.index("Host-to-device copies take a visible share") < out.index("## What to do")


def test_build_status_and_clear_work_on_a_toolkit_that_cuda_home_names(
    capsys: pytest.CaptureFixture[str], toolkit: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_HOME", str(toolkit.folder.parent))
    cache = ("--cache-dir", str(tmp_path / "mine"))
    for name in ("status", "search"):
        arguments = ("shelfFull", *cache, "--json") if name == "search" else (*cache, "--json")
        assert run(capsys, name, *arguments)[0] == 0
    code, out = run(capsys, "clear", *cache, "--json")
    assert (code, json.loads(out)["freed_bytes"]) == (0, 0)


def test_a_build_that_could_make_no_vectors_ends_with_the_code_of_what_is_missing(
    capsys: pytest.CaptureFixture[str],
    toolkit: Root,
    tmp_path: Path,
    no_packages: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_HOME", str(toolkit.folder.parent))
    monkeypatch.setenv("STITCH_EMBEDDING_MODEL", str(tmp_path / "nowhere"))
    cache = ("--cache-dir", str(tmp_path / "mine"), "--json")
    code, out = run(capsys, "build", "--vectors", *cache)
    found = json.loads(out)
    assert (code, found["exit_code"], found["ok"], found["vectors"]) == (5, 5, False, None)
    assert any("STITCH_EMBEDDING_MODEL" in notice or "nowhere" in notice for notice in found["notices"])
    assert any(f"{sys.executable} -m pip install" in notice for notice in found["notices"])
    assert json.loads(run(capsys, "search", "shelfFull", *cache)[1])["confidence"] == "exact"
    assert run(capsys, "build", *cache)[0] == 0


@pytest.mark.parametrize("command", ["build", "status"])
def test_an_interpreter_that_is_named_and_does_not_run_is_an_error_and_takes_nothing_out(
    capsys: pytest.CaptureFixture[str], cache: str, command: str, tmp_path: Path
) -> None:
    options = ("--python", str(tmp_path / "none"), "--cache-dir", cache, "--json")
    code, out = run(capsys, command, *options)
    assert code != 0
    assert "cannot be run" in json.loads(out)["error"]["message"]
    found = json.loads(run(capsys, "search", "shelfFull", "--cache-dir", cache, "--json")[1])
    assert found["confidence"] == "exact"


def test_the_packages_of_the_interpreter_that_was_named_stay_until_another_is(
    capsys: pytest.CaptureFixture[str],
    toolkit: Root,
    tmp_path: Path,
    bare_python: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def search() -> str:
        out = run(capsys, "search", "wheelOnly", "--cache-dir", cache, "--json")[1]
        return json.loads(out)["confidence"]

    monkeypatch.setenv("CUDA_HOME", str(toolkit.folder.parent))
    monkeypatch.delenv("STITCH_PYTHON", raising=False)
    cache, python = str(tmp_path / "mine"), tmp_path / "v" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "v"], check=True)
    (packages,) = (tmp_path / "v").glob("lib/python*/site-packages")
    (packages / "nvidia" / "nccl" / "include").mkdir(parents=True)
    header = packages / "nvidia" / "nccl" / "include" / "nccl.h"
    header.write_text("/** Only here. */ int wheelOnly(void);", encoding="utf-8")
    page = tmp_path / "page.md"
    page.write_text("# Boxes\n\nStack them.\n", encoding="utf-8")
    assert run(capsys, "build", "--python", str(python), "--cache-dir", cache, "--json")[0] == 0
    for arguments in (("add", str(page)), ("build",), ("remove", str(page))):
        assert run(capsys, *arguments, "--cache-dir", cache, "--json")[0] == 0
        found = json.loads(run(capsys, "status", "--cache-dir", cache, "--json")[1])
        assert (found["fresh"], found["python"]) == (True, str(python)), arguments
        assert search() == "exact"
    run(capsys, "build", "--python", str(bare_python), "--cache-dir", cache, "--json")
    assert search() != "exact"


def test_a_bad_bound_is_a_usage_error(capsys: pytest.CaptureFixture[str], cache: str) -> None:
    code, out = run(capsys, "search", "box", "--max-tokens", "0", "--cache-dir", cache, "--json")
    assert (code, json.loads(out)["error"]["code"]) == (2, "usage")


def test_an_empty_question_is_a_usage_error(capsys: pytest.CaptureFixture[str], cache: str) -> None:
    code, out = run(capsys, "search", "  ", "--cache-dir", cache, "--json")
    assert (code, json.loads(out)["error"]["code"]) == (2, "usage")


def test_where_nothing_is_found_the_next_thing_to_try_is_said(
    capsys: pytest.CaptureFixture[str], cache: str
) -> None:
    assert "try other words" in run(capsys, "search", "xyzzy", "--cache-dir", cache)[1]
    out = run(capsys, "search", "box", "--library", "triton", "--cache-dir", cache)[1]
    assert "library 'triton' is not in this index" in out
    assert "search without filters, or try other words" in out


def test_the_command_that_shows_a_hit_works_as_it_is_printed(
    capsys: pytest.CaptureFixture[str], cache: str
) -> None:
    out = run(capsys, "search", "pinned host memory", "--kind", "note", "--cache-dir", cache)[1]
    (line,) = (line for line in out.splitlines() if line.startswith("one in full: "))
    program, group, *arguments = shlex.split(line.removeprefix("one in full: "))
    assert (program, group) == ("stitch-mcp", "index")
    assert "## When not to" in run(capsys, *arguments)[1]


def test_waiting_for_meaning_without_vectors_says_how_to_get_them(
    capsys: pytest.CaptureFixture[str], cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STITCH_EMBEDDING_MODEL", cache)
    out = run(capsys, "search", "put a box on a shelf", "--meaning", "--cache-dir", cache)[1]
    assert "no vectors were built: `stitch-mcp index build --vectors`" in out
    assert "no vectors; `stitch-mcp index build --vectors`" in run(capsys, "status", "--cache-dir", cache)[1]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is empty"),
        ("\nno JSON", "questions.jsonl:2 is no JSON"),
        ('{"kind": "name"}', "questions.jsonl:1 is no question: `question`: Field required"),
        (None, "cannot be read"),
    ],
)
def test_a_file_that_holds_no_questions_is_told_so_by_line(
    capsys: pytest.CaptureFixture[str], cache: str, tmp_path: Path, content: str | None, said: str
) -> None:
    path = tmp_path / "questions.jsonl"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    code, out = run(capsys, "eval", str(path), "--cache-dir", cache, "--json")
    assert code == 2
    assert said in json.loads(out)["error"]["message"]


def test_a_set_of_questions_is_measured_by_kind(
    capsys: pytest.CaptureFixture[str], cache: str, tmp_path: Path
) -> None:
    rows = [("name", "shelfFull", "shelfFull"), ("words", "put a box on the shelf", "shelfPutBoxAsync")]
    lines = [json.dumps({"kind": kind, "question": asked, "answers": [name]}) for kind, asked, name in rows]
    (tmp_path / "q.jsonl").write_text(
        "\n".join([*lines, lines[0].replace('"shelfFull"]', '"x"]')]), encoding="utf-8"
    )
    code, out = run(capsys, "eval", str(tmp_path / "q.jsonl"), "--cache-dir", cache, "--json")
    found = json.loads(out)
    assert (code, found["scores"]["questions"], found["kinds"]["words"]["recall_1"]) == (0, 3, 1.0)
    assert found["scores"]["recall_1"] == pytest.approx(2 / 3, abs=1e-4)
    assert found["median_ms"] <= found["p95_ms"]
    assert len(found["misses"]) == 1


def test_a_question_that_begins_with_a_dash_is_told_how_to_be_asked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["index", "search", "-arch=sm_90a"]) == 2
    assert "index search -- '-lineinfo'" in capsys.readouterr().err


def test_the_packages_of_an_interpreter_with_torch_count_before_those_of_one_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where references run is where NVIDIA's wheels are."""
    for name in ("STITCH_PYTHON", "CONDA_PREFIX", "VIRTUAL_ENV"):
        monkeypatch.delenv(name, raising=False)
    venv.create(tmp_path / ".venv", with_pip=False)
    _, target = _target(settings(workspace=str(tmp_path)), "")
    assert target is not None
    assert target.torch_version


def test_a_build_says_whose_packages_it_read(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, bare_python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    code, out = run(capsys, "build", "--cache-dir", str(tmp_path / "cache"), "--python", str(bare_python))
    assert code == 0
    assert f"packages of {bare_python} (--python names another)" in out
