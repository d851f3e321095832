"""The lines of documentation beside compile errors, for what real compilers print."""

import shutil
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp.client import Client

from stitch_mcp.config import configure
from stitch_mcp.server.app import build_server
from stitch_mcp.server.docs import advice
from stitch_mcp.server.server_context import open_server_context
from stitch_rag.chunks import Chunk
from stitch_rag.index_location import IndexLocation
from stitch_rag.shipped import OWN
from stitch_rag.store import IndexStore
from stitch_tools.compile.diagnostics import parse_diagnostics

pytestmark = pytest.mark.anyio


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache folder without an index: our own words answer."""
    return tmp_path / "cache"


@asynccontextmanager
async def connected(workspace: Path, cache: Path) -> AsyncGenerator[Client]:
    server_context = open_server_context({"workspace": workspace, "cache_dir": cache})
    async with Client(build_server(server_context), mode="2026-07-28") as client:
        yield client


def indexed(cache: Path, *rows: Chunk) -> Path:
    """A cache folder with an index of these entries and of what ships with the package."""
    place = IndexLocation(cache)
    place.index.parent.mkdir(parents=True)
    store = IndexStore.create(place.index)
    for name, own in OWN.items():
        store.put_file(name, "", own())
    store.put_file("/usr/include/shelf.h", "", rows)
    store.finish()
    store.close()
    return cache


def lines(workspace: Path, cache: Path, *queries: str) -> tuple[str, ...]:
    return advice(configure({"workspace": workspace, "cache_dir": cache}), queries)


async def compiled(workspace: Path, cache: Path, name: str, source: str) -> dict[str, Any]:
    async with connected(workspace, cache) as client:
        result = await client.call_tool("compile_program", {"files": {name: source}})
    return result.structured_content


async def test_warnings_and_notes_get_no_line_beside_an_error(workspace: Path, cache: Path) -> None:
    source = "void g(float);\nint f() { int unused; return undeclared_thing; }\n"
    answer = await compiled(workspace, cache, "program.cpp", source)
    assert any("warning: unused variable" in line for line in answer["diagnostics"])
    (line,) = answer["docs"]
    assert line.startswith("identifier is undefined")


@pytest.mark.parametrize(
    ("query", "symbol", "brief"),
    [
        ("CUDA boxed shelf of sum is not reachable", "ShelfSum", "Boxed shelf of a sum, not reachable."),
        (
            "CUDA a boxed shelf resulted in a change",
            "__shelf_change",
            "Boxed shelf that resulted in a change.",
        ),
    ],
)
def test_a_symbol_that_the_message_does_not_name_gets_no_line(
    query: str, symbol: str, brief: str, workspace: Path, cache: Path
) -> None:
    indexed(cache, Chunk(symbol, "struct", "shelf", "13.0", f"struct {symbol}", brief))
    assert not [line for line in lines(workspace, cache, query) if symbol in line]
    (line,) = lines(workspace, cache, f"CUDA {symbol} of a boxed shelf is not reachable")
    assert line.startswith(f"{symbol} (shelf, 13.0)")


def test_a_fragment_that_does_not_exist_leads_to_the_shapes_and_no_names(
    workspace: Path, cache: Path
) -> None:
    other = Chunk("nvcuda::wmma::mma_sync", "function", "device", "13.0", "void mma_sync()", "Multiplies.")
    use = "nvcuda::wmma::fragment<nvcuda::wmma::matrix_a, 17, 16, 16, half, nvcuda::wmma::row_major>"
    (error,) = parse_diagnostics(f'main.cu(3): error: incomplete type "{use}" is not allowed', {})
    (line,) = lines(workspace, indexed(cache, other), error.doc_query)
    assert line.startswith("incomplete type nvcuda::wmma::fragment is not allowed")
    assert "16x16x16, 32x8x16 or 8x32x16" in line
    assert "Names that exist" not in line


def test_a_misspelt_name_gets_the_front_end_s_entry_and_the_nearest_names_first(
    workspace: Path, cache: Path
) -> None:
    right = Chunk("cublasLtCreate", "function", "cublaslt", "13.0", "int cublasLtCreate(void*)", "Creates.")
    (line,) = lines(workspace, indexed(cache, right), "CUDA identifier cublasLtCreat is undefined")
    assert line.startswith("identifier is undefined")
    assert "soname" not in line
    assert line.index("Names that exist: cublasLtCreate.") < line.index("What to do")


@pytest.mark.nvcc
def test_a_call_that_is_refused_is_told_with_the_signature(workspace: Path, cache: Path) -> None:
    if not shutil.which("nvcc"):
        pytest.skip("no nvcc")
    rows = [
        Chunk("cudaMalloc", "function", "cudart", "13.0", "cudaError_t cudaMalloc(void **p, size_t n)", "A."),
        Chunk("cudaMemcpyAsync", "function", "cudart", "13.0", "cudaError_t cudaMemcpyAsync(void *d)", "C."),
    ]
    source = "void f() { void *p; cudaMalloc(&p); cudaMemcpyAsync(p, p, 4); }\n"
    (workspace / "main.cu").write_text(source, encoding="utf-8")
    command = ["nvcc", "-c", "-o", "main.o", "main.cu"]
    ended = subprocess.run(command, cwd=workspace, capture_output=True, text=True, timeout=300, check=False)
    printed = parse_diagnostics(ended.stdout + ended.stderr, {"main.cu": source})
    queries = [row.doc_query for row in printed if row.severity == "error"]
    first, second = lines(workspace, indexed(cache, *rows), *queries)
    assert first.startswith("no instance of overloaded function")
    assert "Declared here: cudaError_t cudaMalloc(void **p, size_t n)." in first
    assert second.startswith("too few arguments in function call")
    assert "Declared here: cudaError_t cudaMemcpyAsync(void *d)." in second


@pytest.mark.parametrize("name", ["half", "half2", "__half2"])
def test_a_half_that_is_undefined_gets_the_header_that_declares_it(
    name: str, workspace: Path, cache: Path
) -> None:
    path = "/usr/local/cuda/include/cuda_fp16.h"
    pair = Chunk("__half2", "struct", "device", "13.0", "struct __half2", "A pair.", "", path, 5)
    others = [
        Chunk(f"__half2half{n}", "function", "device", "13.0", "", "Of half2, undefined.") for n in "234"
    ]
    (line,) = lines(workspace, indexed(cache, pair, *others), f"CUDA identifier {name} is undefined")
    assert f"{name} exists: cuda_fp16.h declares it." in line


def test_a_method_that_the_class_has_not_gets_its_nearest_methods(workspace: Path, cache: Path) -> None:
    rows = [
        Chunk("DeviceReduce", "struct", "cub", "3.0", "struct DeviceReduce", "Reductions."),
        *(
            Chunk(f"{owner}::{name}", "method", "cub", "3.0", f"void {name}()", f"A {name}.", parent=owner)
            for owner, name in (("DeviceReduce", "Sum"), ("DeviceReduce", "Max"), ("WarpReduce", "Summe"))
        ),
    ]
    printed = 'main.cu(2): error: class "cub::CUB_300001_SM_900::DeviceReduce" has no member "Summ"'
    (error,) = parse_diagnostics(printed, {})
    assert error.doc_query == "CUDA class cub::DeviceReduce has no member Summ"
    (line,) = lines(workspace, indexed(cache, *rows), error.doc_query)
    assert line.startswith("class has no member")
    assert "Names that exist: DeviceReduce::Sum" in line
    assert "WarpReduce" not in line


def test_a_name_that_a_namespace_has_not_is_no_matter_of_std(workspace: Path, cache: Path) -> None:
    queries = (
        "CUDA namespace cooperative_groups has no member plus",
        "CUDA namespace std has no member cout",
    )
    other, std = lines(workspace, indexed(cache), *queries)
    assert other.startswith("identifier is undefined")
    assert std.startswith("is not a member of std")


@pytest.mark.parametrize(
    ("printed", "begins"),
    [
        ("nvlink error   : Undefined reference to '_Z6helperf' in 'a.o'", "nvlink: Undefined reference"),
        ("main.cpp:(.text+0xa): undefined reference to `missing(int)'", "undefined reference"),
        ("c.cpp:3:32: error: 'struct cudaDeviceProp' has no member named 'clockRate'", "cudaDeviceProp has"),
        ('m.cu(3): error: class "cudaDeviceProp" has no member "computeMode"', "cudaDeviceProp has"),
        ('m.cu(3): error: pointer to incomplete class type "Foo" is not allowed', "incomplete type is not"),
        ('m.cu(3): error: incomplete type "void" is not allowed', "incomplete type void"),
    ],
)
def test_of_two_entries_with_the_same_words_the_closer_one_leads(
    printed: str, begins: str, workspace: Path, cache: Path
) -> None:
    (error,) = parse_diagnostics(printed, {})
    (line,) = lines(workspace, indexed(cache), error.doc_query)
    assert line.startswith(begins)
