"""A made-up toolkit: headers in the style of the real ones, of which nothing is copied."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from stitch_rag import library_errors
from stitch_rag.chunks import Chunk
from stitch_rag.extract.declarations import declarations
from stitch_rag.extract.merge import HeaderOrigin, header_chunks
from stitch_rag.index_location import IndexLocation
from stitch_rag.sources import Root

RUNTIME = """
/* Copyright of nobody. All rights reserved. */
#ifndef CUDA_RUNTIME_API_H
#define CUDA_RUNTIME_API_H
#define CUDART_VERSION 98070
#ifdef __cplusplus
extern "C" {
#endif

/**
 * \\defgroup SHELF Shelf management
 * This group describes how boxes are put on shelves and taken off again.
 * @{
 */

/**
 * \\brief Puts a box on a shelf
 *
 * Puts \\p count boxes on the shelf at ::shelfTop. The call may return before
 * the boxes are there; see ::shelfWait().
 *
 * \\param count - How many boxes
 * \\return ::shelfOk, ::shelfFull
 * \\notefnerr
 * \\sa ::shelfTakeBox, ::shelfDropEverything
 */
extern __host__ shelfStatus_t CUDARTAPI shelfPutBoxAsync(const void *box, size_t count __dv(1));

/** \\brief Takes a box from a shelf */
extern __host__ shelfStatus_t CUDARTAPI shelfTakeBox(void **box);
/** \\brief Takes a box from a shelf (64-bit) */
extern __host__ shelfStatus_t CUDARTAPI shelfTakeBox(void **box, unsigned long long place);
/** @} */

#if defined(OTHER)
static inline int shelfCount(void) { return 1; }
#else
static inline int shelfCount(void) { if (1) { return 2; } return 3; }
#endif
/** \\brief Old way to clear a shelf \\deprecated Use shelfReset instead. */
shelfStatus_t CUDARTAPI shelfClear(void);
#ifdef __cplusplus
}
#endif
#endif
"""

TYPES = """
/** Results of shelf calls */
enum __device_builtin__ shelfStatus
{
    /** The call did what it should. */
    shelfOk = 0,
    shelfFull = (1 << 2), /**< No room was left on the shelf. */
    shelfLost = 3         /**< The shelf is gone. */
};

typedef enum shelfTile_st {
    SHELF_TILE_8x8 = 1,
    SHELF_TILE_8x16 = 2,
    SHELF_TILE_16x16 = 3,
    SHELF_TILE_32x8 = 4,
    SHELF_TILE_32x16 = 5,
    SHELF_TILE_32x32 = 6
} shelfTile_t;

/** Size of a box */
struct __device_builtin__ shelfExtent
{
    size_t width;  /**< Width in bytes */
    union {
        int depth; /**< Depth in rows */
        float slope;
    };
};

/** Boxes are kept in the dark */
#define shelfKeepDark 0x01
#define SHELF_PLUMBING_H_
typedef enum shelfStatus shelfStatus_t;
"""

BLAS = """
#define CUBLAS_VER_MAJOR 77
#define CUBLAS_VER_MINOR 3
#define CUBLAS_VER_PATCH 1
/* Creates a multiplier handle. */
CUBLASAPI cublasStatus_t CUBLASWINAPI cublasCreate_v2(cublasHandle_t* handle);
#define cublasOld cublasOld_v2
CUBLASAPI cublasStatus_t CUBLASWINAPI cublasOld_v2(int value);
"""
RENAMES = "#define cublasCreate cublasCreate_v2\n"

BLOCK = """
CUB_NAMESPACE_BEGIN

//! @rst
//! Overview
//! ++++++++++
//!
//! Sums the items of a crowd of threads.
//!
//! @endrst
template <typename T, int THREADS = 32>
class CrowdSum
{
private:
  int hidden_;
  int Secret();
public:
  struct TempStorage : Uninitialized<int> {};
  //! Computes a sum. Valid in the first thread only.
  _CCCL_DEVICE _CCCL_FORCEINLINE T Sum(T input)
  {
    return input + (hidden_ ? 1 : 2);
  }
  _CCCL_DEVICE _CCCL_FORCEINLINE T Sum(T input, int valid) { return input; }
};
CUB_NAMESPACE_END
"""


def chunks_of(text: str, library: str = "shelf") -> dict[str, Chunk]:
    """The entries of a header by symbol."""
    place = HeaderOrigin(library, "1.0", "shelf.h", "here")
    return {chunk.symbol: chunk for chunk in header_chunks(declarations(text), place)}


@pytest.fixture(autouse=True)
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU's driver, where there is one, is no part of the made-up toolkit."""
    monkeypatch.setattr(library_errors, "ERROR_LIBRARIES", libraries_without_driver())


def libraries_without_driver() -> tuple[library_errors.ErrorLibrary, ...]:
    """The libraries that are looked for, beside headers alone."""
    return tuple(replace(teller, folders=()) for teller in library_errors.ERROR_LIBRARIES)


def write_toolkit(folder: Path) -> Root:
    """An include folder with the made-up headers."""
    include = folder / "toolkit" / "include"
    for name, text in (
        ("cuda_runtime_api.h", RUNTIME),
        ("driver_types.h", TYPES),
        ("cublas_api.h", BLAS),
        ("cublas_v2.h", RENAMES),
        ("cccl/cub/block/crowd_sum.cuh", BLOCK),
        ("generated_cuda_meta.h", "int not_wanted(int);"),
    ):
        path = include / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return Root(include, "CUDA toolkit")


@pytest.fixture
def toolkit(tmp_path: Path) -> Root:
    """An include folder with the made-up headers, for this test alone."""
    return write_toolkit(tmp_path)


@pytest.fixture
def bare_python(tmp_path: Path) -> Path:
    """An interpreter without packages, which would be read for seconds."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    return tmp_path / "bare" / "bin" / "python"


@pytest.fixture
def no_packages(bare_python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The target interpreter has no packages."""
    monkeypatch.setenv("STITCH_PYTHON", str(bare_python))


@pytest.fixture
def place(tmp_path: Path) -> IndexLocation:
    """Where a test's index lies."""
    return IndexLocation(tmp_path / "cache")
