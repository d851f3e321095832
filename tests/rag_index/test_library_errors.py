"""Messages that NVIDIA's libraries tell of their error codes, asked of libraries that are built here."""

import subprocess
from pathlib import Path

import pytest

from stitch_rag.build import build_index
from stitch_rag.index_location import IndexLocation
from stitch_rag.inputs import error_inputs
from stitch_rag.library_errors import ERROR_LIBRARIES, ErrorLibrary, LibraryFile, find_libraries, read_errors
from stitch_rag.reader import Reader
from stitch_rag.sources import Root, find_headers, find_roots

RUNTIME = """
extern "C" const char* cudaGetErrorName(int code) {
  return code == 0 ? "cudaSuccess" : code == 700 ? "cudaErrorShelfIsFull" : "unrecognized error code";
}
extern "C" const char* cudaGetErrorString(int code) {
  return code == 0 ? "no error" : code == 700 ? "a box was put on a full shelf" : "unrecognized error code";
}
"""
DRIVER = """
extern "C" int cuGetErrorName(int code, const char** answer) {
  *answer = code == 700 ? "CUDA_ERROR_SHELF_IS_FULL" : nullptr;
  return code == 700 ? 0 : 1;
}
extern "C" int cuGetErrorString(int code, const char** answer) {
  *answer = code == 700 ? "a box was put on a full shelf" : nullptr;
  return code == 700 ? 0 : 1;
}
"""
COLLECTIVES = """
extern "C" const char* ncclGetErrorString(int code) {
  return code == 0 ? "no error" : code == 2 ? "a rank has left" : "unknown result code";
}
"""
COLLECTIVES_HEADER = """
/** Result of a call */
typedef enum { ncclSuccess = 0, ncclRankLeft = 2, ncclNumResults = 3 } ncclResult_t;
typedef enum { ncclSum = 0, ncclProd = 1, ncclMax = 2 } ncclRedOp_t;
#define NCCL_MAJOR 2
#define NCCL_MINOR 99
"""


def built(source: str, path: Path) -> Path:
    """A shared library of this source."""
    path.parent.mkdir(parents=True, exist_ok=True)
    command = ["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(path)]
    subprocess.run(command, input=source.encode(), check=True)
    return path


def teller(library: str) -> ErrorLibrary:
    return next(row for row in ERROR_LIBRARIES if row.library == library)


def test_messages_of_a_function_that_answers_with_text_and_through_a_pointer(tmp_path: Path) -> None:
    runtime = built(RUNTIME, tmp_path / "libcudart.so.99")
    found = read_errors(LibraryFile(teller("cudart"), runtime, "98.7"))
    assert [(row.symbol, row.signature, row.brief) for row in found] == [
        ("cudaSuccess", "cudaSuccess = 0", "no error"),
        ("cudaErrorShelfIsFull", "cudaErrorShelfIsFull = 700", "a box was put on a full shelf"),
    ]
    assert {(row.kind, row.version, row.source) for row in found} == {
        ("error", "98.7", "library libcudart.so.99")
    }
    (of_driver,) = read_errors(LibraryFile(teller("driver"), built(DRIVER, tmp_path / "libcuda.so.1"), None))
    assert (of_driver.symbol, of_driver.brief) == (
        "CUDA_ERROR_SHELF_IS_FULL",
        "a box was put on a full shelf",
    )


def test_a_library_without_names_has_those_of_its_header_s_result_type(tmp_path: Path) -> None:
    library, header = built(COLLECTIVES, tmp_path / "libnccl.so.2"), tmp_path / "nccl.h"
    header.write_text(COLLECTIVES_HEADER, encoding="utf-8")
    found = read_errors(LibraryFile(teller("nccl"), library, "2.99", header))
    assert [(row.symbol, row.brief) for row in found] == [
        ("ncclSuccess", "no error"),
        ("ncclRankLeft", "a rank has left"),
    ]
    assert read_errors(LibraryFile(teller("nccl"), library, "2.99", tmp_path / "gone.h")) == []


@pytest.mark.parametrize(
    "source",
    [
        "",
        'extern "C" const char* cudaGetErrorString(int) { return "x"; }',
        RUNTIME + "struct A { A() { __builtin_trap(); } } a;",
    ],
    ids=["without the functions", "with one of them", "that crashes"],
)
def test_a_library_that_cannot_be_asked_tells_nothing(source: str, tmp_path: Path) -> None:
    assert read_errors(LibraryFile(teller("cudart"), built(source, tmp_path / "libcudart.so"), None)) == []


def test_a_file_that_is_no_library_tells_nothing(tmp_path: Path) -> None:
    (tmp_path / "libcudart.so").write_bytes(b"no library")
    assert read_errors(LibraryFile(teller("cudart"), tmp_path / "libcudart.so", None)) == []


def test_libraries_lie_beside_the_headers_and_the_first_counts(tmp_path: Path) -> None:
    roots = [Root(tmp_path / name / "include", name) for name in ("none", "first", "second")]
    for root in roots[1:]:
        built(RUNTIME, root.folder.parent / "lib64" / "libcudart.so.99")
        built(COLLECTIVES, root.folder.parent / "lib" / "libnccl.so.2")
        root.folder.mkdir()
    (tmp_path / "none" / "lib").mkdir(parents=True)
    (tmp_path / "none" / "lib" / "libcudart.so").symlink_to(tmp_path / "nowhere")
    found = {row.kind.library: row for row in find_libraries(roots, [])}
    assert found["cudart"].path == tmp_path / "first" / "lib64" / "libcudart.so.99"
    assert found["nccl"].path == tmp_path / "first" / "lib" / "libnccl.so.2"


def test_a_quoted_message_leads_to_its_error_with_the_header_s_words(
    toolkit: Root, place: IndexLocation
) -> None:
    built(RUNTIME, toolkit.folder.parent / "lib" / "libcudart.so.99")
    header = toolkit.folder / "driver_types.h"
    text = header.read_text(encoding="utf-8")
    header.write_text(
        f"{text}\n/** Errors */\nenum cudaError {{\n"
        "  /** The shelf has no room. Take a box off first. */\n  cudaErrorShelfIsFull = 700\n};\n",
        encoding="utf-8",
    )
    build_index(place, roots=[toolkit])
    reader = Reader(place.folder.parent)
    quoted = "RuntimeError: CUDA error: a box was put on a full shelf. Compile with TORCH_USE_CUDA_DSA"
    for query in (quoted, "a box was put on a full shelf", "cudaErrorShelfIsFull"):
        found = reader.search(query)
        assert found.hits[0].symbol == "cudaErrorShelfIsFull"
        assert found.confidence == "exact"
        assert "a box was put on a full shelf" in found.hits[0].text
        assert "Take a box off first" in found.hits[0].text
    assert reader.search(quoted).nearest == ()
    assert reader.search("a box on a shelf").confidence != "exact"
    reader.close()


def test_a_library_that_changed_is_asked_again(toolkit: Root, place: IndexLocation) -> None:
    library = built(RUNTIME, toolkit.folder.parent / "lib" / "libcudart.so.99")
    build_index(place, roots=[toolkit])
    assert build_index(place, roots=[toolkit]).read == 0
    built(RUNTIME.replace("a full shelf", "no shelf"), library)
    assert build_index(place, roots=[toolkit]).read == 1
    reader = Reader(place.folder.parent)
    assert reader.search("a box was put on no shelf").hits[0].symbol == "cudaErrorShelfIsFull"
    reader.close()


def test_what_is_installed_here_tells_its_errors() -> None:
    roots = find_roots()
    libraries = find_libraries(roots, find_headers(roots))
    assert len(error_inputs(roots, find_headers(roots))) == len(libraries)
    found = {told.kind.library: {row.symbol: row for row in read_errors(told)} for told in libraries}
    assert all(found.values())
    if "cudart" in found:
        assert "out of memory" in found["cudart"]["cudaErrorMemoryAllocation"].brief
