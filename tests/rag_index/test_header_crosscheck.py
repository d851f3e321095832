"""Where libclang is installed, a compiler's parser confirms what our lexer reads from this machine's headers.

libclang is no dependency: `pip install libclang` switches the check on.
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from stitch_rag.chunks import Chunk
from stitch_rag.inputs import header_inputs
from stitch_rag.sources import Header, find_headers, find_roots

HEADERS = (
    "cuda_runtime_api.h",
    "driver_types.h",
    "cuda.h",
    "cublas_api.h",
    "cublasLt.h",
    "cudnn_graph.h",
    "cudnn_ops.h",
    "nccl.h",
    "nvrtc.h",
)


def chosen() -> dict[str, Header]:
    found: dict[str, Header] = {}
    for header in find_headers(find_roots()):
        if header.relative in HEADERS:
            found.setdefault(header.relative, header)
    return found


def system_folders() -> list[str]:
    """Where g++ looks, for libclang's package brings no headers."""
    command = ["g++", "-E", "-x", "c++", "-v", "/dev/null"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    listing = said.partition("#include <...> search starts here:")[2].partition("End of search list.")[0]
    return listing.split()


def declared(cindex: ModuleType, header: Header) -> Iterator[tuple[str, str, int]]:
    """(kind, name, line) of what a compiler sees in the header itself."""
    folders = [header.path.parents[header.relative.count("/")], *(row.folder for row in find_roots())]
    arguments = ["-x", "c++", "-std=c++17", *(f"-I{folder}" for folder in folders)]
    arguments += [word for folder in system_folders() for word in ("-isystem", folder)]
    unit = cindex.Index.create().parse(str(header.path), args=arguments)
    kinds = {
        cindex.CursorKind.FUNCTION_DECL: "function",
        cindex.CursorKind.ENUM_CONSTANT_DECL: "enumerator",
        cindex.CursorKind.STRUCT_DECL: "struct",
    }
    for cursor in unit.cursor.walk_preorder():
        place = cursor.location.file
        if cursor.kind not in kinds or place is None or Path(place.name) != header.path:
            continue
        # What is declared and never defined stands for a handle, which its typedef names.
        if cursor.spelling and (kinds[cursor.kind] != "struct" or cursor.is_definition()):
            yield kinds[cursor.kind], cursor.spelling, cursor.location.line


def names_of(chunks: list[Chunk]) -> dict[str, Chunk]:
    return {name.split("::")[-1]: chunk for chunk in chunks for name in (chunk.symbol, *chunk.aliases)}


@pytest.mark.nvcc
@pytest.mark.parametrize("name", HEADERS)
def test_a_compiler_s_parser_sees_nothing_that_we_miss(name: str) -> None:
    cindex = pytest.importorskip("clang.cindex", reason="libclang is not installed")
    header = chosen().get(name)
    if header is None:
        pytest.skip(f"{name} is not installed: not cross-checked")
    (source,) = (row for row in header_inputs([header]))
    chunks = list(source.read())
    ours = names_of(chunks)
    rows = [
        (kind, symbol, line)
        for kind, symbol, line in declared(cindex, header)
        if "unnamed" not in symbol and not symbol.startswith(("__", "pnccl"))
    ]
    assert len(rows) > 10, "the compiler's parser read the header"
    # The parser sees what macros rename: cuMemFree is cuMemFree_v2 to it. What a function
    # returns may stand in the line before.
    lines = {chunk.line for chunk in chunks}
    missing = {row for row in rows if row[1] not in ours and lines.isdisjoint((row[2] - 1, row[2]))}
    assert not missing
    wrong = {
        (symbol, line, ours[symbol].line)
        for kind, symbol, line in rows
        if kind == "function"
        and symbol in ours
        and ours[symbol].symbol == symbol
        and abs(line - (ours[symbol].line or 0)) > 3
    }
    assert len(wrong) <= 0.02 * len(rows), "lines are those of the declaration"
