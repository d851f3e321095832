"""Every fragment of the notes compiles for the GPUs that the note names, and the symbols it names exist."""

import importlib.util
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from stitch_rag.language import language_chunks
from stitch_rag.notes import Note, load_notes
from stitch_rag.sources import find_headers, find_roots
from stitch_tools.compile.cpp import BASE
from stitch_tools.compile.headers import find_cublas
from stitch_tools.compile.toolchain import find_nvcc

ALL_NOTES = load_notes()
CPU_NOTES = [note for note in ALL_NOTES if "cpu" in note.architectures]
NOTES = [note for note in ALL_NOTES if note not in CPU_NOTES]
OPTIONAL = {"cublasLt.h": "cublaslt", "cublas_v2.h": "cublas", "cudnn.h": "cudnn"}
"""Headers that a toolkit may lack."""


def one_file(notes: Iterable[Note]) -> str:
    """All fragments as one source: includes first, each fragment in a namespace of its own."""
    includes: dict[str, None] = {}
    bodies: list[str] = []
    for note in notes:
        for number, code in enumerate(note.fragments):
            includes.update(dict.fromkeys(re.findall(r"^#include .*$", code, re.MULTILINE)))
            body = re.sub(r"^#include .*$", "", code, flags=re.MULTILINE)
            name = f"{note.slug.replace('-', '_')}_{number}"
            bodies.append(f'#line 1 "{note.slug}.md"\nnamespace {name} {{\n{body}\n}}')
    return "\n".join([*includes, *bodies])


def needs(note: Note) -> set[str]:
    return {header for header in OPTIONAL for code in note.fragments if f"<{header}>" in code}


def include_folders() -> list[Path]:
    """Folders of headers that the toolkit may lack."""
    found = [root.folder for root in find_roots()]
    cublas = find_cublas().include
    return [*found, *([cublas] if cublas else [])]


def compile_all(notes: list[Note], archs: tuple[str, ...], folder: Path) -> None:
    compile_source(one_file(notes), archs, folder)


def compile_source(text: str, archs: tuple[str, ...], folder: Path) -> None:
    nvcc = find_nvcc()
    source = folder / "notes.cu"
    source.write_text(text, encoding="utf-8")
    code = [word for arch in archs for word in ("-gencode", f"arch=compute_{arch[3:]},code={arch}")]
    folders = [f"-I{path}" for path in include_folders()]
    command = [*nvcc.command, "-std=c++17", "-c", *code, *folders, "-o", str(folder / "notes.o"), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "warning" not in done.stderr, done.stderr[-4000:]


def test_there_are_at_least_forty_notes_with_code_in_each() -> None:
    assert len(NOTES) >= 40
    assert all(note.fragments and note.architectures and note.symbols for note in ALL_NOTES)


def test_the_fragments_for_cpus_compile_as_programs_are_built(tmp_path: Path) -> None:
    assert len(CPU_NOTES) >= 5
    assert all(note.architectures == ("cpu",) for note in CPU_NOTES)
    source = tmp_path / "notes.cpp"
    source.write_text(one_file(CPU_NOTES), encoding="utf-8")
    command = ["g++", *BASE, "-Wall", "-Werror", "-c", "-o", str(tmp_path / "notes.o"), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-4000:]


def test_a_gain_has_its_source() -> None:
    gains = [note.gain for note in NOTES if note.gain]
    assert all(gain.source for gain in gains)
    claims = re.compile(r"\b\d+(?:\.\d+)?(?:x| times| percent) (?:faster|speed)", re.IGNORECASE)
    assert not [note.slug for note in NOTES if claims.search(note.body)]


@pytest.mark.nvcc
@pytest.mark.parametrize("archs", sorted({note.architectures for note in NOTES}), ids="-".join)
def test_the_fragments_compile(archs: tuple[str, ...], tmp_path: Path) -> None:
    notes = [note for note in NOTES if note.architectures == archs and not needs(note)]
    if notes:
        compile_all(notes, archs, tmp_path)


@pytest.mark.nvcc
@pytest.mark.parametrize("header", sorted(OPTIONAL))
def test_the_fragments_with_library_headers_compile(header: str, tmp_path: Path) -> None:
    if not any((folder / header).is_file() for folder in include_folders()):
        pytest.skip(f"{header} is not installed: its notes were not compiled")
    notes = [note for note in NOTES if header in needs(note)]
    assert notes
    compile_all(notes, tuple(sorted({arch for note in notes for arch in note.architectures})), tmp_path)


@pytest.mark.nvcc
def test_the_symbols_that_notes_name_exist_in_the_headers() -> None:
    names: dict[str, set[str]] = {}
    for header in find_headers(find_roots()):
        text = header.path.read_text(encoding="utf-8", errors="replace")
        names.setdefault(header.library, set()).update(re.findall(r"[A-Za-z_]\w+", text))
    if not names:
        pytest.skip("no CUDA headers are installed")
    here = set().union(*names.values())
    missing = {
        (note.slug, symbol)
        for note in NOTES
        if set(note.libraries) <= names.keys()
        for symbol in note.symbols
        if symbol not in here
    }
    assert not missing


@pytest.mark.nvcc
@pytest.mark.exhaustive
def test_the_names_of_libcudacxx_that_we_explain_exist_in_the_headers_that_we_name(tmp_path: Path) -> None:
    lines: list[str] = []
    for chunk in language_chunks():
        headers = re.findall(r"<cuda/[\w/]+>", chunk.signature)
        lines += [f"#include {header}" for header in headers]
        names = [name for name in (chunk.symbol, *chunk.aliases) if headers and name.startswith("cuda::")]
        lines += [f"namespace n{len(lines)}_{place} {{ using {name}; }}" for place, name in enumerate(names)]
    assert sum("using cuda::" in line for line in lines) >= 40
    compile_source("\n".join(lines), ("sm_90",), tmp_path)


def test_a_fragment_counts_on_no_memory_that_it_does_not_zero() -> None:
    """Whoever adds atomically to an output says, or sees to it, that it was zero before."""
    adding = [
        note for note in NOTES for code in note.fragments if re.search(r"atomicAdd\(&?(?:out|sums)\b", code)
    ]
    assert adding
    assert not [note.slug for note in adding if not re.search(r"zero|cudaMemset", "".join(note.fragments))]


@pytest.mark.exhaustive
def test_the_names_of_pytorch_s_headers_that_we_explain_exist_there() -> None:
    torch = importlib.util.find_spec("torch")
    assert torch is not None
    assert torch.origin is not None
    include = Path(torch.origin).parent / "include"
    missing: list[str] = []
    for chunk in language_chunks():
        headers = re.findall(r"<([\w/.]+)>", chunk.signature) if chunk.signature.startswith("PyTorch") else ()
        here = set().union(*(names_reached(include, header) for header in headers))
        missing += [
            name
            for name in (chunk.symbol, *chunk.aliases)
            if headers and name.rpartition("::")[2] not in here
        ]
    assert missing == []


def names_reached(include: Path, header: str) -> set[str]:
    """The words of a header of PyTorch's and of those it includes."""
    known: set[str] = set()
    roots = (include, include / "torch" / "csrc" / "api" / "include")
    left = [root / header for root in roots]
    seen = set(left)
    while left:
        path = left.pop()
        if not path.is_file():
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        known.update(re.findall(r"\w+", text))
        # A header in quotes lies beside the one that names it; which way is written changes with versions.
        places = [
            folder / name
            for name in re.findall(r"#\s*include [<\"]([\w/.]+)[>\"]", text)
            for folder in (path.parent, *roots)
        ]
        left += [place for place in places if place not in seen]
        seen.update(places)
    return known
