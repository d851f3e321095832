"""Vectors live in a child process: it may be missing, fail or end, and the search goes on without it."""

import hashlib
import importlib
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from stitch_rag.build import build_index, index_status
from stitch_rag.chunks import Chunk
from stitch_rag.index_location import IndexLocation
from stitch_rag.reader import Reader
from stitch_rag.search import Filters
from stitch_rag.sources import Root
from stitch_rag.vectors.adapter import MINILM_CUDA, adapter_for, sample_of
from stitch_rag.vectors.client import START_S, VectorChild
from stitch_rag.vectors.embed import embedded_texts, vectors_of, worth_embedding
from stitch_rag.vectors.embedder import LocalModel
from stitch_rag.vectors.model import EmbeddingModel, find_model, folder_fingerprint

QUESTION = "stow crates and cartons on a rack"


def installed() -> EmbeddingModel:
    model = find_model()
    if model is None:
        pytest.skip("chromadb, sentence-transformers or an offline model is not installed")
    return model


def test_a_model_is_found_by_folder_or_not_at_all(tmp_path: Path) -> None:
    assert find_model({"STITCH_EMBEDDING_MODEL": str(tmp_path)}) is None


def test_other_weights_have_another_fingerprint(tmp_path: Path) -> None:
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(bytes(200_000))
    before = folder_fingerprint(tmp_path)
    weights.write_bytes(bytes(199_999) + b"x")
    assert folder_fingerprint(tmp_path) != before


def test_the_adapter_is_for_one_model_and_brings_what_is_asked_for_alike_together() -> None:
    folder = Path(installed().place)
    adapter = adapter_for(folder)
    if adapter is None:
        pytest.skip("another model is installed")
    texts = ["which thread am I", "index of a thread in its block", "free memory of the device"]
    transformers = importlib.import_module("sentence_transformers")
    plain = transformers.SentenceTransformer(str(folder), device="cpu")
    before = plain.encode(texts, normalize_embeddings=True)
    after = LocalModel(str(folder)).embed(texts)
    assert [round(sum(value * value for value in row), 3) for row in after] == [1.0] * 3

    def ahead(rows: Sequence[Sequence[float]]) -> float:
        """How much nearer the second text is to the first than the third is."""
        first, near, far = rows
        return sum(a * b for a, b in zip(first, near, strict=True)) - sum(
            a * b for a, b in zip(first, far, strict=True)
        )

    assert ahead(after) > ahead(before.tolist())


def test_another_model_gets_no_adapter_and_one_that_gets_it_has_another_fingerprint(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    assert adapter_for(tmp_path) is None
    before = folder_fingerprint(tmp_path)
    fits = hashlib.sha256(sample_of(tmp_path / "model.safetensors")).hexdigest()
    fitting = replace(MINILM_CUDA, fits=fits)
    assert adapter_for(tmp_path, fitting)
    assert folder_fingerprint(tmp_path, fitting) != before


def test_weights_that_differ_in_their_middle_have_another_fingerprint(tmp_path: Path) -> None:
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(bytes(4_000_000))
    before = folder_fingerprint(tmp_path)
    weights.write_bytes(bytes(2_000_000) + b"x" * 10_000 + bytes(1_990_000))
    assert folder_fingerprint(tmp_path) != before


def test_a_damaged_adapter_leaves_the_model_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    before = folder_fingerprint(tmp_path)
    fits = hashlib.sha256(sample_of(tmp_path / "model.safetensors")).hexdigest()
    fitting = replace(MINILM_CUDA, fits=fits)
    for damaged in (replace(fitting, sha256="0" * 64), replace(fitting, file="none.safetensors")):
        assert adapter_for(tmp_path, damaged) is None
        assert folder_fingerprint(tmp_path, damaged) == before


def test_another_text_of_an_entry_has_another_vector() -> None:
    chunk = Chunk("cudaStackBox", "function", "cudart", "1", brief="Stacks a box.")
    other = Chunk("cudaStackBox", "function", "cudart", "1", brief="Stacks two boxes.")
    assert embedded_texts(chunk) == ["cuda stack box: Stacks a box.  "]
    assert vectors_of(chunk).keys().isdisjoint(vectors_of(other))
    assert worth_embedding(chunk)
    assert not worth_embedding(Chunk("x", "macro", "cudart", "1"))


def test_each_way_to_ask_has_a_vector_of_its_own() -> None:
    asked = ("boxes fall down", "the rack is full")
    note = Chunk("Stack boxes", "note", "notes", None, brief="There are boxes.", asked=asked)
    symbol = Chunk("cudaStackBox", "function", "cudart", "1", brief="Stacks a box.", asked=asked)
    assert embedded_texts(note)[1:] == [*asked, "Stack boxes", "There are boxes."]
    assert embedded_texts(symbol)[1:] == [*asked]
    assert worth_embedding(Chunk("x", "macro", "cudart", "1", asked=asked))


def test_a_child_that_cannot_start_is_not_ready_and_answers_nothing(tmp_path: Path) -> None:
    model = EmbeddingModel("folder", str(tmp_path / "no-model"), "", "0" * 64)
    child = VectorChild(model, tmp_path / "vectors")
    assert not child.ready(wait_s=START_S)
    assert child.query("box", 3) is None
    assert child.ids() is None
    assert not child.add([("a", "b")])
    child.close()
    assert not child.alive


def test_a_search_goes_on_without_vectors_where_the_model_is_missing(
    toolkit: Root, place: IndexLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_index(place, roots=[toolkit])
    place.vectors.mkdir()
    monkeypatch.setenv("STITCH_EMBEDDING_MODEL", str(place.folder / "nowhere"))
    reader = Reader(place.folder.parent, wait_for_vectors_s=START_S)
    assert reader.search(QUESTION).mode == "lexical"
    reader.close()
    built = build_index(place, roots=[toolkit], vectors=True)
    assert built.vectors is None
    assert "pip install" in built.notices[-1]


def test_searching_imports_neither_torch_nor_chromadb(place: IndexLocation) -> None:
    code = (
        "import sys; from pathlib import Path; from stitch_rag.reader import Reader\n"
        "Reader(Path(sys.argv[1])).search('shared memory bank conflicts')\n"
        "print([name for name in ('torch', 'chromadb', 'numpy') if name in sys.modules])"
    )
    command = [sys.executable, "-c", code, str(place.folder.parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize("built", [True, False])
def test_a_first_search_does_not_wait_for_what_reads_headers_and_pages(
    built: bool, toolkit: Root, place: IndexLocation
) -> None:
    if built:
        build_index(place, roots=[toolkit])
    code = (
        "import sys; from pathlib import Path\n"
        "from stitch_mcp.config import Config; from stitch_mcp.documentation import open_reader\n"
        "reader = open_reader(Config(Path(), cache_dir=Path(sys.argv[1])))\n"
        "assert reader.search(sys.argv[2]).confidence == 'exact'\n"
        "print(sorted(name for name in sys.modules if name in sys.argv[3:]))"
    )
    heavy = ["stitch_rag.build", "stitch_rag.pages", "stitch_rag.extract.declarations", "http.client"]
    name = "shelfTakeBox" if built else "threadIdx"
    command = [sys.executable, "-c", code, str(place.folder.parent), name, *heavy]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stdout + done.stderr


@pytest.mark.slow
def test_meaning_finds_what_words_do_not_and_the_child_ends_with_its_reader(
    toolkit: Root, place: IndexLocation
) -> None:
    installed()
    report = build_index(place, roots=[toolkit], vectors=True)
    assert report.vectors
    assert build_index(place, roots=[toolkit]).vectors == 0, "nothing changed, nothing is embedded again"
    status = index_status(place, roots=[toolkit])
    assert (status.vectors, status.vectors_wanted, status.notices) == (report.vectors, report.vectors, ())
    reader = Reader(place.folder.parent)
    try:
        assert reader.search(QUESTION).hits == (), (
            "no word of it is in the index, and the model is not there yet"
        )
    finally:
        reader.close()
    reader = Reader(place.folder.parent, wait_for_vectors_s=START_S)
    try:
        # Of the made-up headers alone: what our notes say of racks and crates changes with each note.
        of_headers = Filters(libraries=("cudart",))
        found, named = reader.search(QUESTION, filters=of_headers), reader.search("shelfPutBoxAsync")
    finally:
        reader.close()
    assert (found.mode, named.mode) == ("fused", "lexical")
    assert "shelfPutBoxAsync" in [hit.symbol for hit in found.hits[:5]]


@pytest.mark.slow
def test_a_child_that_nobody_asks_ends_by_itself(tmp_path: Path) -> None:
    child = VectorChild(installed(), tmp_path / "vectors", idle_s=0.5)
    assert child.ready(wait_s=START_S)
    pid, status = os.waitpid(child.pid, 0)
    assert (pid, status) == (child.pid, 0)
    assert child.query("box", 1) is None
    child.close()
