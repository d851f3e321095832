"""Our few declarations of cuDNN against its own headers, where they are installed."""

import os
import re
import sys
from pathlib import Path

import pytest

from stitch_planner.stitcher.emit.cuda.testing import cuda_headers
from stitch_tools.compile.toolchain import cuda_root, find_nvcc
from stitch_tools.errors import EnvironmentMissingError
from tests.planner.library_headers import SAME_CALL, compile_text, same_functions

SAME = {
    "kSuccess": "CUDNN_STATUS_SUCCESS",
    "kFloat": "CUDNN_DATA_FLOAT",
    "kNchw": "CUDNN_TENSOR_NCHW",
    "kNhwc": "CUDNN_TENSOR_NHWC",
    "kCrossCorrelation": "CUDNN_CROSS_CORRELATION",
    "kDeterministic": "CUDNN_DETERMINISTIC",
    "kPropagateNan": "CUDNN_PROPAGATE_NAN",
    "kRelu": "CUDNN_ACTIVATION_RELU",
    "kIdentity": "CUDNN_ACTIVATION_IDENTITY",
    "kDefaultMath": "CUDNN_DEFAULT_MATH",
    "kTensorOpMath": "CUDNN_TENSOR_OP_MATH",
    "kFmaMath": "CUDNN_FMA_MATH",
    "kImplicitGemm": "CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM",
    "kPrecomputedGemm": "CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM",
    "kExplicitGemm": "CUDNN_CONVOLUTION_FWD_ALGO_GEMM",
    "kDirect": "CUDNN_CONVOLUTION_FWD_ALGO_DIRECT",
    "kBackwardData1": "CUDNN_CONVOLUTION_BWD_DATA_ALGO_1",
}
SAME_FIELDS = {
    "algorithm": "algo",
    "status": "status",
    "time": "time",
    "memory": "memory",
    "determinism": "determinism",
    "math": "mathType",
    "reserved": "reserved",
}
OURS = "stitch::cuda::dnn"


def api_header() -> Path:
    return cuda_headers() / "stitch" / "cuda" / "cudnn_api.h"


def declared_functions() -> list[str]:
    return re.findall(r"int \(\*(cudnn\w+)\)", api_header().read_text(encoding="utf-8"))


def test_every_number_that_we_declare_is_compared() -> None:
    declared = re.findall(r"\b(k\w+) = \d+", api_header().read_text(encoding="utf-8"))
    assert sorted(declared) == sorted(SAME)


def test_every_function_that_we_declare_is_looked_up() -> None:
    text = api_header().read_text(encoding="utf-8")
    assert re.findall(r"STITCH_DNN_SYMBOL\((cudnn\w+)\)", text) == declared_functions()


def comparison() -> str:
    """C++ that compiles where all that we declare is what the library's headers say."""
    rows = [
        f'static_assert(long({OURS}::{name}) == long({theirs}), "{name}");' for name, theirs in SAME.items()
    ]
    for theirs in ("cudnnConvolutionFwdAlgoPerf_t", "cudnnConvolutionBwdDataAlgoPerf_t"):
        rows += [
            f'static_assert(offsetof({OURS}::Found, {a}) == offsetof({theirs}, {b}), "{a}");'
            for a, b in SAME_FIELDS.items()
        ]
        rows.append(f'static_assert(sizeof({OURS}::Found) == sizeof({theirs}), "Found");')
    rows += same_functions(declared_functions(), f"{OURS}::Functions")
    return "\n".join(["#include <cudnn.h>", '#include "stitch/cuda/cudnn_api.h"', SAME_CALL, *rows, ""])


@pytest.fixture(scope="module")
def includes() -> list[Path]:
    """Folders for the comparison. STITCH_CUDNN is a promise: with it, a missing header is a failure."""
    try:
        toolkit = cuda_root(find_nvcc()) / "include"
    except EnvironmentMissingError:
        pytest.skip("cudnn.h needs the headers of a CUDA toolkit")
    if chosen := os.environ.get("STITCH_CUDNN"):
        assert (Path(chosen) / "include" / "cudnn.h").is_file()
        return [Path(chosen) / "include", toolkit]
    wheels = [Path(folder) / "nvidia" / "cudnn" / "include" for folder in sys.path]
    for folder in (*wheels, toolkit, Path("/usr/include")):
        if (folder / "cudnn.h").is_file():
            return [folder, toolkit]
    pytest.skip("cudnn.h is not installed; pip install nvidia-cudnn-cu13, or set STITCH_CUDNN to its folder")


def test_our_declarations_are_those_of_the_headers(tmp_path: Path, includes: list[Path]) -> None:
    assert len(declared_functions()) == 24
    done = compile_text(comparison(), tmp_path, includes)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("kNhwc = 1", "kNhwc = 2", "kNhwc"),
        ("  float time;\n  size_t memory;", "  size_t memory;\n  float time;", "memory"),
        ("ActivationDesc, int mode, int nan, double", "ActivationDesc, int mode, int nan, int", "Activation"),
        ("(Handle, cudaStream_t);", "(Handle);", "SetStream"),
    ],
)
def test_the_comparison_notices_a_wrong_number_layout_or_signature(
    tmp_path: Path, includes: list[Path], right: str, wrong: str, said: str
) -> None:
    text = api_header().read_text(encoding="utf-8")
    assert text.count(right) == 1
    inlined = comparison().replace('#include "stitch/cuda/cudnn_api.h"', text.replace(right, wrong))
    done = compile_text(inlined, tmp_path, includes)
    assert done.returncode != 0
    assert "static assertion failed" in done.stderr or "static_assert failed" in done.stderr
    assert said in done.stderr
