"""Faults of vectors, model and child process: they cost meaning, never an answer, and a build mends them.

Small stand-ins for chromadb and sentence-transformers lie on the path of the child: they start in an instant,
and keep their rows in one file that can be damaged, in the tables of chromadb that we read.
"""

import os
import re
import resource
import shutil
import signal
import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from stitch_mcp.cli import main
from stitch_rag.build import BuildReport, build_index, index_status
from stitch_rag.index_location import IndexLocation
from stitch_rag.pages import add_pages
from stitch_rag.reader import Reader
from stitch_rag.sources import Root
from stitch_rag.store import IndexStore
from stitch_rag.vectors.client import START_S, VectorChild
from stitch_rag.vectors.embed import follow
from stitch_rag.vectors.meaning import (
    ENDED,
    KILLED,
    MAKES_REST,
    MODEL_KEY,
    NO_MODEL,
    NO_VECTORS,
    NOT_ANSWERED,
    NOT_ASKED,
    OTHER_MODEL,
    REPAIRS,
    STARTING,
    Meaning,
)
from stitch_rag.vectors.model import EmbeddingModel, find_model, why_no_model

CHROMADB = """
import json, sqlite3
from pathlib import Path

TABLES = (
    "CREATE TABLE IF NOT EXISTS collections (id TEXT, name TEXT)",
    "CREATE TABLE IF NOT EXISTS segments (id TEXT, scope TEXT, collection TEXT)",
    "CREATE TABLE IF NOT EXISTS embeddings (segment_id TEXT, embedding_id TEXT, vector TEXT)",
    "CREATE UNIQUE INDEX IF NOT EXISTS one ON embeddings (segment_id, embedding_id)",
)

class Collection:
    def __init__(self, path, name):
        self.path, self.name = path, name
        self.db = sqlite3.connect(path / "chroma.sqlite3")
        for table in TABLES:
            self.db.execute(table)
        if not self.db.execute("SELECT 1 FROM collections WHERE name = ?", (name,)).fetchone():
            self.db.execute("INSERT INTO collections VALUES (?, ?)", (name, name))
            self.db.execute("INSERT INTO segments VALUES (?, 'METADATA', ?)", (name, name))
        self.db.commit()
    def upsert(self, ids, embeddings):
        rows = [(self.name, name, json.dumps(row)) for name, row in zip(ids, embeddings)]
        self.db.executemany("INSERT OR REPLACE INTO embeddings VALUES (?, ?, ?)", rows)
        self.db.commit()
    def delete(self, ids):
        rows = [(self.name, name) for name in ids]
        self.db.executemany("DELETE FROM embeddings WHERE segment_id = ? AND embedding_id = ?", rows)
        self.db.commit()
    def rows(self):
        read = "SELECT embedding_id, vector FROM embeddings WHERE segment_id = ?"
        rows = self.db.execute(read, (self.name,))
        return {name: json.loads(row) for name, row in rows}
    def count(self):
        return len(self.rows())
    def get(self, include):
        return {"ids": list(self.rows())}
    def query(self, query_embeddings, n_results, include):
        with open(self.path / "questions", "a") as log:
            log.write("x")
        (asked,) = query_embeddings
        far = {name: 1 - sum(a * b for a, b in zip(asked, row)) for name, row in self.rows().items()}
        near = sorted(far, key=far.get)[:n_results]
        return {"ids": [near], "distances": [[far[name] for name in near]]}

class PersistentClient:
    def __init__(self, path):
        self.path = Path(path)
    def get_or_create_collection(self, name, embedding_function, metadata):
        return Collection(self.path, name)
    def list_collections(self):
        db = sqlite3.connect(self.path / "chroma.sqlite3")
        return [Collection(self.path, name) for (name,) in db.execute("SELECT name FROM collections")]
    def delete_collection(self, name):
        db = sqlite3.connect(self.path / "chroma.sqlite3")
        db.execute("DELETE FROM embeddings WHERE segment_id = ?", (name,))
        db.execute("DELETE FROM segments WHERE id = ?", (name,))
        db.execute("DELETE FROM collections WHERE id = ?", (name,))
        db.commit()
"""
TRANSFORMERS = """
import math, os, sys, time, zlib
from pathlib import Path

class Rows(list):
    def tolist(self):
        return list(self)

class SentenceTransformer:
    def __init__(self, folder, device):
        self.folder = Path(folder)
        starts = Path(folder).parent / "starts"
        starts.write_text(starts.read_text() + "x" if starts.exists() else "x")
        if (Path(folder) / "broken").exists():
            sys.exit(3)
        if (Path(folder) / "raises").exists():
            raise ValueError((Path(folder) / "raises").read_text())
        while (Path(folder) / "slow").exists():
            time.sleep(0.01)
        if (Path(folder) / "deaf").exists():
            os.dup2(os.pipe()[0], 0)
    def encode(self, texts, batch_size, normalize_embeddings, show_progress_bar):
        if (self.folder / "mute").exists():
            raise ValueError((self.folder / "mute").read_text())
        return Rows(self.one(text) for text in texts)
    def one(self, text):
        counts = [0.0] * 64
        for word in text.lower().split():
            counts[zlib.crc32(word.encode()) % 64] += 1.0
        length = math.sqrt(sum(value * value for value in counts)) or 1.0
        return [value / length for value in counts]
"""
QUESTION = "stow crates and cartons on a rack"


class VectorSetup:
    """An index with vectors, its toolkit and its model."""

    def __init__(self, place: IndexLocation, toolkit: Root, model: Path) -> None:
        self.place, self.toolkit, self.model = place, toolkit, model

    def build(self, *, anew: bool = False) -> BuildReport:
        return build_index(self.place, roots=[self.toolkit], vectors=True, anew=anew)

    def reader(self) -> Reader:
        return Reader(self.place.folder.parent, wait_for_vectors_s=START_S)

    @property
    def starts(self) -> int:
        """How often a model was loaded."""
        return len((self.model.parent / "starts").read_text(encoding="utf-8"))


@pytest.fixture
def setup(
    tmp_path: Path, place: IndexLocation, toolkit: Root, monkeypatch: pytest.MonkeyPatch
) -> VectorSetup:
    """Everything with the stand-ins."""
    for name, text in (("chromadb", CHROMADB), ("sentence_transformers", TRANSFORMERS)):
        (tmp_path / "packages" / name).mkdir(parents=True)
        (tmp_path / "packages" / name / "__init__.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path / "packages"))
    model = tmp_path / "models" / "words"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}", encoding="utf-8")
    monkeypatch.setenv("STITCH_EMBEDDING_MODEL", str(model))
    monkeypatch.delenv("STITCH_EMBEDDING_URL", raising=False)
    return VectorSetup(place, toolkit, model)


def ended(child: int) -> None:
    """Kill a process and wait until it is gone."""
    os.kill(child, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while Path(f"/proc/{child}/stat").exists() and time.monotonic() < deadline:
        if Path(f"/proc/{child}/stat").read_text(encoding="utf-8").split(") ")[1][0] == "Z":
            return


def test_with_vectors_a_question_is_answered_by_meaning_too(setup: VectorSetup) -> None:
    assert setup.build().vectors
    status = index_status(setup.place, roots=[setup.toolkit])
    assert status.vectors > 0
    assert status.notices == ()
    reader = setup.reader()
    assert reader.search(QUESTION).mode == "fused"
    reader.close()


def test_the_first_question_is_not_the_first_that_its_process_answers(setup: VectorSetup) -> None:
    setup.build()
    log = setup.place.vectors / "questions"
    log.unlink(missing_ok=True)
    reader = setup.reader()
    assert reader.search(QUESTION).mode == "fused"
    reader.close()
    assert log.read_text(encoding="utf-8") == "xx", "one to warm up, one that was asked"


def test_after_a_build_meaning_knows_what_is_new(setup: VectorSetup, tmp_path: Path) -> None:
    setup.build()
    reader = setup.reader()
    assert reader.search("zebras that cross quickly").mode == "fused"
    page = tmp_path / "page.md"
    page.write_text("# Crossing\n\nAnimals with stripes walk over roads.\n", encoding="utf-8")
    add_pages(setup.place, str(page))
    setup.build()
    found = reader.search("over roads animals with stripes walk")
    assert found.mode == "fused"
    chunk = next(hit for hit in found.hits if hit.symbol == "Crossing")
    store = IndexStore.open(setup.place.index)
    assert store is not None
    dense = Meaning(setup.place, START_S)
    similar = dense.ask(store, chunk.text)()
    dense.close()
    store.close()
    assert max(similar.values()) > 0.5
    reader.close()
    reader = reader_without(setup)
    without = reader.search("over roads animals with stripes walk")
    reader.close()
    assert chunk.score > next(hit.score for hit in without.hits if hit.symbol == "Crossing")


def reader_without(setup: VectorSetup) -> Reader:
    return Reader(setup.place.folder.parent, meaning=False)


def test_a_reader_without_meaning_starts_no_process(setup: VectorSetup) -> None:
    setup.build()
    before = setup.starts
    reader = reader_without(setup)
    assert reader.search(QUESTION).mode == "lexical"
    reader.close()
    assert setup.starts == before


def test_a_model_that_cannot_be_loaded_is_not_loaded_again_for_each_question(setup: VectorSetup) -> None:
    setup.build()
    before = setup.starts
    (setup.model / "broken").write_text("", encoding="utf-8")
    store = IndexStore.open(setup.place.index, writable=True)
    assert store is not None
    store.put_meta(MODEL_KEY, installed().fingerprint)
    meaning = Meaning(setup.place, START_S, retry_s=3600)
    for _ in range(4):
        assert meaning.ask(store, QUESTION)() == {}
    assert setup.starts == before + 1
    meaning.close()
    store.close()


def test_a_child_that_was_killed_is_no_broken_one(setup: VectorSetup) -> None:
    setup.build()
    child = VectorChild(installed(), setup.place.vectors)
    assert child.ready(wait_s=START_S)
    assert child.query(QUESTION, 3)
    ended(child.pid)
    assert child.query(QUESTION, 3) is None
    assert not child.broken, "somebody killed it: another will do"
    child.close()


def installed() -> EmbeddingModel:
    model = find_model()
    assert model is not None
    return model


def test_a_child_that_takes_nothing_in_is_closed_without_an_error(setup: VectorSetup) -> None:
    (setup.model / "deaf").write_text("", encoding="utf-8")
    child = VectorChild(installed(), setup.place.vectors)
    assert child.ready(wait_s=START_S)
    assert child.query(QUESTION, 3) is None
    child.close()
    assert not child.alive


def test_a_child_that_hangs_is_given_up_within_seconds_and_the_reader_is_told(setup: VectorSetup) -> None:
    setup.build()
    child = VectorChild(installed(), setup.place.vectors)
    assert child.ready(wait_s=START_S)
    os.kill(child.pid, signal.SIGSTOP)
    started = time.monotonic()
    assert child.query(QUESTION, 3) is None
    assert time.monotonic() - started < 6
    assert child.reason == "it did not answer within 3 s"
    assert not child.ready()
    child.close()


def test_vectors_of_another_model_are_told_and_not_used(setup: VectorSetup) -> None:
    first = setup.build()
    (setup.model / "weights").write_text("other", encoding="utf-8")
    reader = setup.reader()
    found = reader.search(QUESTION)
    assert (found.mode, found.notices) == ("lexical", (OTHER_MODEL,))
    assert index_status(setup.place, roots=[setup.toolkit]).notices == (OTHER_MODEL,)
    second = setup.build()
    assert second.vectors
    assert second.fingerprint != first.fingerprint
    with sqlite3.connect(setup.place.vectors / "chroma.sqlite3") as stored:
        (collections,) = stored.execute("SELECT count(*) FROM collections").fetchone()
    stored.close()
    assert collections == 1  # the first model's vectors are gone
    assert reader.search(QUESTION).mode == "fused"
    reader.close()


def test_a_model_that_is_gone_is_told_and_entries_keep_their_vectors(
    setup: VectorSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup.build()
    monkeypatch.setenv("STITCH_EMBEDDING_MODEL", str(setup.model / "nowhere"))
    types = setup.toolkit.folder / "driver_types.h"
    types.write_text("/** Nothing else. */\nint shelfAlone(void);\n", encoding="utf-8")
    report = build_index(setup.place, roots=[setup.toolkit])
    assert any("no vectors were made" in notice for notice in report.notices)
    reader = setup.reader()
    found = reader.search(QUESTION)
    assert (found.mode, found.notices) == ("lexical", (f"{NO_MODEL}{why_no_model()}",))
    assert f"no model in {setup.model / 'nowhere'}" in found.notices[0]
    reader.close()
    monkeypatch.setenv("STITCH_EMBEDDING_MODEL", str(setup.model))
    store = IndexStore.open(setup.place.index)
    assert store is not None
    meaning = Meaning(setup.place, START_S)
    text = "shelf take box: Takes a box from a shelf"
    near = meaning.ask(store, text)()
    best = store.get([max(near, key=lambda number: near[number])])
    meaning.close()
    store.close()
    assert [chunk.symbol for chunk in best.values()] == ["shelfTakeBox"], "numbers follow the entries"


@pytest.mark.parametrize("damage", ["rows", "folder"])
def test_damaged_vectors_are_made_anew_and_others_are_kept(damage: str, setup: VectorSetup) -> None:
    made = setup.build().vectors
    for file in setup.place.vectors.glob("chroma.sqlite3"):
        if damage == "rows":
            file.write_text("{ half", encoding="utf-8")
        else:
            file.unlink()
    reader = setup.reader()
    assert reader.search(QUESTION).hits is not None
    reader.close()
    assert setup.build().vectors == made
    reader = setup.reader()
    assert reader.search(QUESTION).mode == "fused"
    reader.close()
    kept = {path.name: path.read_bytes() for path in setup.place.vectors.iterdir()}
    (setup.model / "broken").write_text("", encoding="utf-8")
    report = setup.build()
    assert report.vectors is None
    assert any("failed" in notice for notice in report.notices)
    assert {path.name: path.read_bytes() for path in setup.place.vectors.iterdir()} == kept


def test_an_address_with_a_key_is_no_argument_of_a_process(tmp_path: Path) -> None:
    model = EmbeddingModel("endpoint", "http://me:hunter2@127.0.0.1:9/v1", "words", "0" * 64)
    child = VectorChild(model, tmp_path / "vectors")
    command = b""
    while not command:  # the process has just begun
        command = Path(f"/proc/{child.pid}/cmdline").read_bytes()
    child.close()
    assert sys.executable.encode() in command
    assert b"hunter2" not in command


def test_a_first_build_whose_model_cannot_be_loaded_tries_once_and_says_why(setup: VectorSetup) -> None:
    (setup.model / "broken").write_text("no weights here", encoding="utf-8")
    said: list[str] = []
    report = build_index(setup.place, roots=[setup.toolkit], vectors=True, progress=said.append)
    assert setup.starts == 1
    assert not any("anew" in sentence for sentence in said)
    (notice,) = report.notices
    assert notice.startswith("no vectors were made: the process of the embedding model failed")
    status = index_status(setup.place, roots=[setup.toolkit])
    assert (status.vectors, status.notices) == (0, ())
    assert not setup.place.vectors.exists(), "later builds would try, too"


def test_what_the_child_says_of_its_failure_is_told(setup: VectorSetup) -> None:
    (setup.model / "raises").write_text("the weights are of another format", encoding="utf-8")
    (notice,) = setup.build().notices
    assert "(ValueError: the weights are of another format)" in notice


def test_what_an_endpoint_says_of_its_failure_is_told_without_its_address(
    setup: VectorSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STITCH_EMBEDDING_URL", "http://me:hunter2@127.0.0.1:9/v1")
    monkeypatch.setenv("STITCH_EMBEDDING_MODEL", "words")
    (notice,) = setup.build().notices
    assert "Connection error" in notice
    assert "hunter2" not in notice


def test_where_no_process_can_be_started_words_answer(
    setup: VectorSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup.build()
    monkeypatch.setattr(sys, "executable", str(setup.model / "no-python"))
    reader = setup.reader()
    found = reader.search("put a box on a shelf")
    assert (found.mode, found.hits[0].symbol) == ("lexical", "shelfPutBoxAsync")
    reader.close()
    report = setup.build()
    assert report.vectors is None
    assert "it cannot be started" in report.notices[0]


def test_what_is_missing_for_a_model_is_named(
    setup: VectorSetup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert why_no_model() == ""
    assert "STITCH_EMBEDDING_MODEL" in why_no_model({"STITCH_EMBEDDING_URL": "http://127.0.0.1:9/v1"})
    assert "no model in /nowhere" in why_no_model({"STITCH_EMBEDDING_MODEL": "/nowhere"})
    # The first bytes of this file cannot be read by anybody.
    (setup.model / "weights").symlink_to("/proc/self/mem")
    assert find_model() is None
    assert f"the model in {setup.model} cannot be read" in why_no_model()
    monkeypatch.setattr(sys, "path", [str(tmp_path / "nothing")])
    assert "chromadb is not installed" in why_no_model()


def test_a_child_is_asked_by_a_process_with_more_than_a_thousand_files_open(setup: VectorSetup) -> None:
    setup.build()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1200:
        pytest.skip(f"no more than {hard} files may be open")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
    opened: list[int] = []
    try:
        while not opened or opened[-1] < 1030:
            opened.append(os.open(os.devnull, os.O_RDONLY))
        child = VectorChild(installed(), setup.place.vectors)
        assert child.ready(wait_s=START_S)
        assert child.query(QUESTION, 3)
        child.close()
    finally:
        for handle in opened:
            os.close(handle)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_model_that_fails_at_a_question_is_told_and_asked_again(setup: VectorSetup) -> None:
    setup.build()
    mute = setup.model / "mute"
    reader = setup.reader()
    assert reader.search(QUESTION).mode == "fused"
    mute.write_text("the key has expired", encoding="utf-8")
    found = reader.search(QUESTION)
    assert (found.mode, found.notices) == ("lexical", (f"{NOT_ANSWERED}ValueError: the key has expired",))
    mute.unlink()
    again = reader.search(QUESTION)
    assert (again.mode, again.notices) == ("fused", ())
    reader.close()


@pytest.mark.parametrize(("fault", "told"), [("broken", ENDED), ("raises", "ValueError: no such weights")])
def test_a_child_that_never_gets_ready_is_told_by_each_search(
    fault: str, told: str, setup: VectorSetup
) -> None:
    setup.build()
    (setup.model / fault).write_text("no such weights", encoding="utf-8")
    store = IndexStore.open(setup.place.index, writable=True)
    assert store is not None
    store.put_meta(MODEL_KEY, installed().fingerprint)
    store.close()
    reader = setup.reader()
    for _ in range(3):
        found = reader.search("put a box on a shelf")
        assert (found.mode, found.notices) == ("lexical", (f"{NOT_ANSWERED}{told}; {REPAIRS}",))
    reader.close()


def waiting_for_nothing(setup: VectorSetup) -> Reader:
    """A reader as the server has it: no question waits for the model."""
    return Reader(setup.place.folder.parent)


def until(done: Callable[[], bool]) -> None:
    """Wait until it is so, ten seconds at most."""
    deadline = time.monotonic() + 10
    while not done() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert done()


def children(setup: VectorSetup) -> list[int]:
    """Process ids of the children of this index that run."""
    found = Path("/proc").glob("[0-9]*/cmdline")
    return [int(path.parent.name) for path in found if str(setup.place.vectors).encode() in command(path)]


def command(path: Path) -> bytes:
    """The arguments of a process; nothing of one that is dead."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_damaged_vectors_are_told_from_the_next_search_on_where_nobody_waits(setup: VectorSetup) -> None:
    setup.build()
    for file in setup.place.vectors.iterdir():
        if file.is_file():
            file.write_bytes(b"{ half" * 1000)
    reader = waiting_for_nothing(setup)
    starts = setup.starts
    reader.search(QUESTION)
    until(lambda: setup.starts > starts)
    until(lambda: children(setup) == [])  # it ended, and was not asked in between
    starts = setup.starts
    for _ in range(3):
        found = reader.search(QUESTION)
        assert found.mode == "lexical"
        (notice,) = found.notices
        assert notice.startswith(NOT_ANSWERED)
        assert "Error: " in notice
        assert notice.endswith(REPAIRS)
    assert setup.starts == starts, "what is damaged is not tried again soon"
    reader.close()


def test_a_child_that_is_killed_while_it_loads_is_told_and_another_starts_soon(setup: VectorSetup) -> None:
    setup.build()
    (setup.model / "slow").write_text("", encoding="utf-8")
    store = IndexStore.open(setup.place.index, writable=True)
    assert store is not None
    store.put_meta(MODEL_KEY, installed().fingerprint)
    meaning = Meaning(setup.place, 0.0, retry_s=3600, killed_retry_s=0.5)
    meaning.ask(store, QUESTION)()
    meaning.start()
    until(lambda: len(children(setup)) == 1)
    (child,) = children(setup)
    ended(child)
    meaning.ask(store, QUESTION)()
    meaning.start()
    assert meaning.absent == f"{NOT_ANSWERED}{KILLED}"
    assert children(setup) == []
    time.sleep(0.5)
    meaning.ask(store, QUESTION)()
    meaning.start()
    until(lambda: len(children(setup)) == 1)
    assert meaning.absent == "", "another is loading"
    meaning.close()
    store.close()


def test_a_question_that_is_answered_while_the_model_loads_says_so_and_starts_it_after_its_answer(
    setup: VectorSetup,
) -> None:
    setup.build()
    starts = setup.starts
    reader = waiting_for_nothing(setup)
    found = reader.search("shelfPutBoxAsync")
    assert (found.notices, children(setup)) == ((), []), "a name does not profit"
    found = reader.search(QUESTION)
    assert (found.mode, found.notices) == ("lexical", (STARTING,))
    until(lambda: setup.starts > starts)
    until(lambda: reader.search(QUESTION).mode == "fused")
    assert reader.search(QUESTION).notices == ()
    reader.close()
    store = IndexStore.open(setup.place.index)
    assert store is not None
    meaning = Meaning(setup.place, 0.0)
    meaning.ask(store, QUESTION)()
    assert children(setup) == [], "it would share the processors with the answer"
    meaning.start()
    until(lambda: len(children(setup)) == 1)
    meaning.close()
    store.close()


@pytest.mark.usefixtures("no_packages")
def test_a_search_that_asks_no_vectors_says_so_where_they_may_help(
    setup: VectorSetup, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_HOME", str(setup.toolkit.folder.parent))
    cache = ("--cache-dir", str(setup.place.folder.parent))

    def run(*arguments: str) -> str:
        assert main(["index", *arguments, *cache]) == 0
        return capsys.readouterr().out

    run("build")
    assert NOT_ASKED not in run("search", QUESTION)
    out = run("build", "--vectors")
    assert "index search --meaning" in out.splitlines()[-1]
    made = re.search(r"^(\d+) vectors, (\d+) new$", out, re.MULTILINE)
    assert made is not None
    assert made[1] == made[2] != "0"
    assert f"\n{made[1]} vectors, 0 new\n" in run("build")
    assert NOT_ASKED in run("search", QUESTION)
    assert NOT_ASKED not in run("search", "shelfPutBoxAsync")
    assert NOT_ASKED not in run("search", "--meaning", QUESTION)


def cut_short(setup: VectorSetup, left: int) -> None:
    """What a build that was killed leaves of the vectors."""
    with closing(sqlite3.connect(setup.place.vectors / "chroma.sqlite3")) as db:
        db.execute("DELETE FROM embeddings WHERE rowid > ?", (left,))
        db.commit()


def test_vectors_that_are_missing_are_told_by_searches_and_status_until_a_build_makes_them(
    setup: VectorSetup,
) -> None:
    whole = setup.build().vectors
    cut_short(setup, 300)
    said = f"300 of {whole} vectors are there: {MAKES_REST}"
    status = index_status(setup.place, roots=[setup.toolkit])
    assert (status.vectors, status.vectors_wanted, status.notices) == (300, whole, (said,))
    reader = setup.reader()
    for _ in range(2):
        found = reader.search(QUESTION)
        assert (found.mode, found.notices) == ("fused", (said,))
    assert reader.search("shelfPutBoxAsync").notices == (), "meaning was not asked"
    assert whole is not None
    assert setup.build().vectors == whole - 300
    found = reader.search(QUESTION)
    assert (found.mode, found.notices) == ("fused", ())
    reader.close()
    assert index_status(setup.place, roots=[setup.toolkit]).notices == ()


def test_a_folder_of_vectors_that_was_emptied_is_told(setup: VectorSetup) -> None:
    whole = setup.build().vectors
    for path in setup.place.vectors.iterdir():
        path.unlink()
    said = f"0 of {whole} vectors are there: {MAKES_REST}"
    status = index_status(setup.place, roots=[setup.toolkit])
    assert (status.vectors, status.notices) == (0, (said,))
    reader = setup.reader()
    found = reader.search(QUESTION)
    assert (found.mode, found.notices) == ("lexical", (said,))
    reader.close()


def test_vectors_that_cannot_be_read_are_told_by_the_status(setup: VectorSetup) -> None:
    setup.build()
    (setup.place.vectors / "chroma.sqlite3").write_bytes(b"{ half" * 1000)
    (notice,) = index_status(setup.place, roots=[setup.toolkit]).notices
    assert notice.startswith("the vectors cannot be read: file is not a database; `stitch-mcp index build")


def test_a_first_build_of_vectors_that_was_cut_short_is_told_by_a_search(setup: VectorSetup) -> None:
    build_index(setup.place, roots=[setup.toolkit])
    setup.place.vectors.mkdir()
    reader = waiting_for_nothing(setup)
    found = reader.search(QUESTION)
    assert (found.mode, found.notices) == ("lexical", (NO_VECTORS,))
    reader.close()


def test_a_build_that_can_make_no_vectors_says_so_before_it_reads_anything(
    setup: VectorSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STITCH_EMBEDDING_MODEL", str(setup.model / "nowhere"))
    said: list[str] = []
    build_index(setup.place, roots=[setup.toolkit], vectors=True, progress=said.append)
    assert said[0] == f"there will be no vectors: {why_no_model()}"
    said.clear()
    build_index(setup.place, roots=[setup.toolkit], progress=said.append)
    assert not any("vectors" in sentence for sentence in said)


def test_the_time_that_vectors_take_yet_is_told_now_and_then(setup: VectorSetup) -> None:
    def told(every_s: float) -> list[str]:
        said: list[str] = []
        texts = {str(number): f"box {number}" for number in range(2000)}
        with closing(VectorChild(installed(), setup.place.vectors)) as child:
            assert follow(texts, child, said.append, tell_every_s=every_s) == len(texts)
        shutil.rmtree(setup.place.vectors)
        return said

    assert len(told(3600.0)) == 1, "an hour is not over"
    first, *others = told(0.0)
    assert re.fullmatch(r"0 of \d+ vectors", first)
    assert others
    assert all(re.fullmatch(r"\d+ of \d+ vectors, about \d+ s left", sentence) for sentence in others)
