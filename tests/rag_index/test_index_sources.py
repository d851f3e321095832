"""Docstrings, compilers' messages, and our sentences for undocumented symbols."""

import itertools
import json
import re
import sys
import tomllib
from pathlib import Path

import pytest

from stitch_rag.chunks import Chunk
from stitch_rag.diagnostics import message_chunks
from stitch_rag.docstrings import DocstringSource, docstring_chunks, read_docstrings
from stitch_rag.glossary import explained, phrase_texts
from stitch_rag.inputs import docstring_input
from stitch_rag.language import language_chunks
from stitch_tools.errors import EnvironmentMissingError

TARGET = DocstringSource(sys.executable, "9.9")
LINE = json.dumps(
    [
        "torch.stack_boxes",
        "function",
        "",
        "stack_boxes(a, b) -> Tensor\n\nStacks :class:`Box` a on b. Twice.",
        "9",
    ]
)


def bare(symbol: str, brief: str = "") -> Chunk:
    return Chunk(symbol, "function", "cublas", "1", brief=brief)


def test_a_docstring_becomes_an_entry_with_its_signature() -> None:
    (chunk,) = docstring_chunks([LINE, LINE, "printed by an import"], TARGET)
    assert (chunk.symbol, chunk.kind, chunk.library) == ("torch.stack_boxes", "docstring", "torch")
    assert chunk.signature == "stack_boxes(a, b) -> Tensor"
    assert chunk.brief == "Stacks Box a on b."
    assert (chunk.version, chunk.aliases) == ("9.9", ("stack_boxes",))


def test_what_a_module_brings_again_from_another_is_one_entry() -> None:
    again = LINE.replace("torch.stack_boxes", "torch.shelf.boxes.stack_boxes")
    other = LINE.replace("torch.stack_boxes", "torch.shelf.stack_boxes").replace("Twice", "Thrice")
    first, second = docstring_chunks([again, LINE, other], TARGET)
    assert (first.symbol, first.aliases) == (
        "torch.stack_boxes",
        ("stack_boxes", "torch.shelf.boxes.stack_boxes"),
    )
    assert second.symbol == "torch.shelf.stack_boxes"


def test_what_modules_print_when_they_are_imported_is_no_entry() -> None:
    noise = ["17", '"abcde"', "null", "[1, 2]", '{"a": 1, "b": 2, "c": 3, "d": 4, "e": 5}', "[" * 50, ""]
    triton = json.dumps(["triton.jit", "function", "jit(fn)", "Compiles \ud800 a kernel.", "3.9"])
    lines = [*noise, LINE, triton]
    found = {chunk.symbol: chunk for chunk in docstring_chunks(lines, TARGET)}
    assert set(found) == {"torch.stack_boxes", "triton.jit"}
    assert (found["triton.jit"].version, found["triton.jit"].text) == ("3.9", "Compiles ? a kernel.")


def test_an_interpreter_without_torch_has_no_docstrings_and_one_that_is_none_says_so(tmp_path: Path) -> None:
    assert docstring_input(DocstringSource(sys.executable, None)) is None
    with pytest.raises(EnvironmentMissingError, match="tells no docstrings: No such file"):
        read_docstrings(DocstringSource(str(tmp_path / "python"), "2.13"))


def installed_for_a_user(folder: Path, monkeypatch: pytest.MonkeyPatch, torch: str) -> list[Chunk]:
    """What is read of a torch that lies where a user installs packages for himself alone."""
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    package = folder / ".local" / "lib" / version / "site-packages" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(torch, encoding="utf-8")
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.delenv("PYTHONUSERBASE", raising=False)
    return read_docstrings(DocstringSource(str(Path(sys.base_prefix) / "bin" / version), "9.9"))


def test_packages_that_a_user_installed_for_himself_alone_are_documented(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = installed_for_a_user(tmp_path, monkeypatch, 'def stack():\n    """Stacks boxes."""\n')
    assert [(chunk.symbol, chunk.brief) for chunk in found] == [("torch.stack", "Stacks boxes.")]


CLASSES = '''
class Base:
    """Holds boxes."""
    def shelve(self, high):
        """Puts the box on a shelf."""

class Tensor(Base):
    def stack(self):
        """stack() -> Tensor

        See :func:`torch.stack`
        """
    def stack_(self):
        """In-place version of :meth:`~Tensor.stack`"""
    def see(self):
        pass
    see.__doc__ = "see() -> list\\n\\nSee what is in the box, and tell all of it. " + "Thing by thing. " * 9
    @property
    def full(self):
        """Whether nothing more fits."""
    label = "no docstring of its own"
'''


def test_methods_of_the_classes_that_extensions_meet_are_documented_but_not_referrals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {row.symbol: row for row in installed_for_a_user(tmp_path, monkeypatch, CLASSES)}
    assert set(found) == {
        "torch.Base",
        "torch.Tensor",
        "torch.Tensor.full",
        "torch.Tensor.see",
        "torch.Tensor.shelve",
    }
    shelve = found["torch.Tensor.shelve"]
    assert (shelve.signature, shelve.brief) == (
        "torch.Tensor.shelve(self, high)",
        "Puts the box on a shelf.",
    )
    assert shelve.aliases == ("shelve",)
    assert found["torch.Tensor.full"].signature == ""


def test_every_compiler_message_says_what_it_means_and_what_to_do() -> None:
    chunks = list(message_chunks())
    assert len(chunks) >= 20
    assert all(chunk.brief and chunk.text.startswith("What to do: ") for chunk in chunks)
    assert len({chunk.symbol for chunk in chunks}) == len(chunks)


def test_an_undocumented_symbol_gets_our_sentence_and_a_documented_one_our_words() -> None:
    gemm, documented, other = explained(
        [bare("cublasDgemm"), bare("cublasSaxpy", "Header's own."), bare("x")]
    )
    assert gemm.brief.startswith("Matrix multiply (general matrix product, GEMM) in double precision")
    assert "our words" in gemm.text
    assert documented.brief == "Header's own."
    assert "y = alpha x + y" in documented.keywords
    assert (other.brief, other.keywords) == ("", "")


def test_how_people_ask_leads_to_a_symbol_and_is_never_shown() -> None:
    chunk = Chunk("cudaMalloc", "function", "cudart", "13.0", brief="Allocate memory on the device")
    found = explained([chunk])[0]
    assert any("buffer" in said for said in found.asked)
    assert (found.brief, found.text) == (chunk.brief, chunk.text)


def test_phrases_of_several_lines_add_up_and_each_way_to_ask_is_one() -> None:
    rows = itertools.chain.from_iterable(tomllib.loads(text).items() for text in phrase_texts())
    lines = [said for key, said in rows if "tiled_partition" in key.split()]
    (found,) = explained([bare("tiled_partition")])
    assert len(lines) >= 2
    assert len(found.asked) >= sum(said.count(", ") + 1 for said in lines) - 1
    assert len(set(found.asked)) == len(found.asked)


def test_each_file_of_phrases_lists_names_with_phrases_and_no_phrase_of_a_name_twice() -> None:
    for text in phrase_texts():
        assert text.startswith("# How people ask for names of ") or "the names that most programs use" in text
        for names, said in tomllib.loads(text).items():
            phrases = re.split(r"[,;] ", said)
            assert names.split()
            assert all(phrases)
            assert len(set(phrases)) == len(phrases), names


def test_names_that_no_header_explains_are_told_once_and_as_code_writes_them() -> None:
    chunks = list(language_chunks())
    assert len(chunks) >= 30
    assert len({name for chunk in chunks for name in (chunk.symbol, *chunk.aliases)}) == sum(
        1 + len(chunk.aliases) for chunk in chunks
    )
    assert all(chunk.brief and chunk.text and chunk.asked for chunk in chunks)
