"""Our few declarations of cuBLASLt against its own header, where that is installed."""

import re
import subprocess
from pathlib import Path

import pytest

from stitch_planner.stitcher.cuda.testing import cuda_headers
from stitch_tools.compile.headers import find_cublas, native_include
from stitch_tools.compile.toolchain import cuda_root, find_cpp_compiler, find_nvcc
from stitch_tools.errors import EnvironmentMissingError

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
    "kEpilogueRelu": "CUBLASLT_EPILOGUE_RELU",
    "kEpilogueBias": "CUBLASLT_EPILOGUE_BIAS",
    "kEpilogueGelu": "CUBLASLT_EPILOGUE_GELU",
    "kSuccess": "CUBLAS_STATUS_SUCCESS",
}


def test_every_number_that_we_declare_is_compared() -> None:
    text = (cuda_headers() / "stitch" / "cuda" / "cublaslt_api.h").read_text(encoding="utf-8")
    declared = re.findall(r"\b(k\w+) = \d+", text)
    assert sorted(declared) == sorted(SAME)


def test_our_declarations_are_those_of_the_header(tmp_path: Path) -> None:
    library = find_cublas()
    if library.include is None:
        pytest.skip(f"cublasLt.h is not installed; {library.hint}")
    try:
        toolkit = cuda_root(find_nvcc()) / "include"
    except EnvironmentMissingError as error:
        pytest.skip(error.message)
    rows = "\n".join(
        f'static_assert(long(stitch::cuda::lt::{ours}) == long({theirs}), "{ours}");'
        for ours, theirs in SAME.items()
    )
    source = f"""
#include <cublasLt.h>
#include "stitch/cuda/cublaslt_api.h"
{rows}
static_assert(sizeof(stitch::cuda::lt::HeuristicResult) == sizeof(cublasLtMatmulHeuristicResult_t), "size");
static_assert(sizeof(stitch::cuda::lt::Algorithm) == sizeof(cublasLtMatmulAlgo_t), "algorithm");
"""
    (tmp_path / "same.cpp").write_text(source, encoding="utf-8")
    includes = [f"-I{folder}" for folder in (library.include, toolkit, cuda_headers(), native_include())]
    command = [*find_cpp_compiler().command, "-std=c++17", "-fsyntax-only", *includes, "same.cpp"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
