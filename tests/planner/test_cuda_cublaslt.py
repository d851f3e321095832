"""Our few declarations of cuBLASLt against its own header, where that is installed."""

import contextlib
import os
import re
from pathlib import Path

import pytest

from stitch_planner.stitcher.emit.cuda.testing import cuda_headers
from stitch_tools.compile.headers import find_cublas
from stitch_tools.compile.toolchain import cuda_root, find_nvcc
from stitch_tools.errors import EnvironmentMissingError
from tests.planner.library_headers import SAME_CALL, compile_text, same_functions

SAME = {
    "kFloat32": "CUDA_R_32F",
    "kCompute32F": "CUBLAS_COMPUTE_32F",
    "kCompute32FFastTF32": "CUBLAS_COMPUTE_32F_FAST_TF32",
    "kNormal": "CUBLAS_OP_N",
    "kTransposed": "CUBLAS_OP_T",
    "kTransA": "CUBLASLT_MATMUL_DESC_TRANSA",
    "kTransB": "CUBLASLT_MATMUL_DESC_TRANSB",
    "kEpilogue": "CUBLASLT_MATMUL_DESC_EPILOGUE",
    "kBiasPointer": "CUBLASLT_MATMUL_DESC_BIAS_POINTER",
    "kBatchCount": "CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT",
    "kBatchStride": "CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET",
    "kMaxWorkspaceBytes": "CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES",
    "kMinAlignmentA": "CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES",
    "kMinAlignmentB": "CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES",
    "kMinAlignmentC": "CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES",
    "kMinAlignmentD": "CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES",
    "kEpilogueNone": "CUBLASLT_EPILOGUE_DEFAULT",
    "kEpilogueBias": "CUBLASLT_EPILOGUE_BIAS",
    "kSuccess": "CUBLAS_STATUS_SUCCESS",
}


def test_every_number_that_we_declare_is_compared() -> None:
    text = api_header().read_text(encoding="utf-8")
    declared = re.findall(r"\b(k\w+) = \d+", text)
    assert sorted(declared) == sorted(SAME)


SAME_FIELDS = {
    "algorithm": "algo",
    "workspace_bytes": "workspaceSize",
    "status": "state",
    "waves": "wavesCount",
    "reserved": "reserved",
}


def declared_functions() -> list[str]:
    text = api_header().read_text(encoding="utf-8")
    return re.findall(r"int \(\*(cublasLt\w+)\)", text)


def comparison() -> str:
    """C++ that compiles where all that we declare is what the library's header says."""
    ours = "stitch::cuda::lt"
    rows = [
        f'static_assert(long({ours}::{name}) == long({theirs}), "{name}");' for name, theirs in SAME.items()
    ]
    rows += [
        f"static_assert(offsetof({ours}::HeuristicResult, {name}) == "
        f'offsetof(cublasLtMatmulHeuristicResult_t, {theirs}), "{name}");'
        for name, theirs in SAME_FIELDS.items()
    ]
    rows += same_functions(declared_functions(), f"{ours}::Functions")
    sizes = {"HeuristicResult": "cublasLtMatmulHeuristicResult_t", "Algorithm": "cublasLtMatmulAlgo_t"}
    rows += [f'static_assert(sizeof({ours}::{a}) == sizeof({b}), "{a}");' for a, b in sizes.items()]
    return "\n".join(["#include <cublasLt.h>", '#include "stitch/cuda/cublaslt_api.h"', SAME_CALL, *rows, ""])


def api_header() -> Path:
    return cuda_headers() / "stitch" / "cuda" / "cublaslt_api.h"


@pytest.fixture(scope="module")
def includes() -> list[Path]:
    """Folders for the comparison. STITCH_CUBLAS is a promise: with it, a missing header is a failure."""
    library = find_cublas()
    if library.include is None or os.environ.get("STITCH_CUBLAS"):
        if not os.environ.get("STITCH_CUBLAS"):
            pytest.skip(f"cublasLt.h is not installed; {library.hint}")
        assert library.require() == Path(os.environ["STITCH_CUBLAS"]) / "include"
    assert library.include is not None
    folders = [library.include, library.include / "cccl"]
    with contextlib.suppress(EnvironmentMissingError):
        folders.append(cuda_root(find_nvcc()) / "include")
    return [folder for folder in folders if folder.is_dir()]


def test_our_declarations_are_those_of_the_header(tmp_path: Path, includes: list[Path]) -> None:
    assert len(declared_functions()) == 13
    done = compile_text(comparison(), tmp_path, includes)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("kTransA = 3", "kTransA = 2", "kTransA"),
        ("  int status;\n  float waves;", "  float waves;\n  int status;", "waves"),
        ("MatmulDesc*, int compute_type, int", "MatmulDesc*, int64_t compute_type, int", "MatmulDescCreate"),
        ("requested, HeuristicResult*, int*", "requested, HeuristicResult*", "AlgoGetHeuristic"),
    ],
)
def test_the_comparison_notices_a_wrong_number_layout_or_signature(
    tmp_path: Path, includes: list[Path], right: str, wrong: str, said: str
) -> None:
    text = api_header().read_text(encoding="utf-8")
    assert text.count(right) == 1
    inlined = comparison().replace('#include "stitch/cuda/cublaslt_api.h"', text.replace(right, wrong))
    done = compile_text(inlined, tmp_path, includes)
    assert done.returncode != 0
    assert "static assertion failed" in done.stderr or "static_assert failed" in done.stderr
    assert said in done.stderr
