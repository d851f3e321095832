"""The vectorised scalar functions of common/math.h against torch in double precision, over all floats."""

import ctypes
import math
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from stitch_planner.stitcher.testing import build_header_test

# Largest error in units of the last place of the true value, measured and rounded up. Where cancellation is
# part of the definition (gelu's left tail) the bound is on the scale of the operand, see below.
EXACT: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], float]] = {
    "exp": (torch.exp, 1.5),
    "exp2": (torch.exp2, 1.5),
    "expm1": (torch.expm1, 2.0),
    "log": (torch.log, 1.5),
    "log1p": (torch.log1p, 2.0),
    "tanh": (torch.tanh, 3.0),
    "erf": (torch.erf, 7.0),
    "rsqrt": (torch.rsqrt, 2.0),
    "round": (torch.round, 0.0),
    "relu": (torch.relu, 0.0),
    "abs": (torch.abs, 0.0),
    "sign": (torch.sign, 0.0),
    "log_sigmoid": (functional.logsigmoid, 3.0),
}
# Activations: error relative to max(1, |x|), since torch's own float versions cancel in the tails too.
ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sigmoid": torch.sigmoid,
    "silu": functional.silu,
    "gelu_erf": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "softplus": functional.softplus,
    "mish": functional.mish,
    "elu": functional.elu,
    "hardswish": functional.hardswish,
    "hardsigmoid": functional.hardsigmoid,
}

SOURCE = (
    '#include "stitch/common/math.h"\nusing namespace stitch::math;\n'
    "#define EACH(name, value) \\\n"
    "  EXPORT void name##_all(const float* a, float* y, int64_t n) { \\\n"
    '    _Pragma("omp simd") for (int64_t i = 0; i < n; ++i) { const float x = a[i]; y[i] = value; } \\\n'
    "  }\n"
    + "".join(
        f"EACH({name}, {name}(x))\n" for name in [*EXACT, *ACTIVATIONS] if name not in ("softplus", "elu")
    )
    + "EACH(softplus, softplus(x, 1.0f, 20.0f))\nEACH(elu, elu(x, 1.0f, 1.0f, 1.0f))\n"
    + "EXPORT void max_all(const float* a, float* y, int64_t n) {\n"
    + "  for (int64_t i = 0; i < n; ++i) y[i] = maximum(a[i], a[n + i]);\n}\n"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("math")


@pytest.fixture(scope="module")
def library(folder: Path) -> ctypes.CDLL:
    # As users compile: what is vectorised, and which products are contracted, is what is tested.
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("CXX", raising=False)
        return build_header_test(SOURCE, folder)


def evaluate(library: ctypes.CDLL, name: str, x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    getattr(library, f"{name}_all")(
        ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(y.data_ptr()), ctypes.c_int64(x.numel())
    )
    return y


def all_ranges() -> torch.Tensor:
    """Every 4099th bit pattern (all exponents, both signs, NaN and infinity), and dense ordinary values."""
    bits = torch.arange(-(2**31), 2**31, 4099, dtype=torch.int64).to(torch.int32)
    special = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 88.7, 88.8, -87.4, -103.9])
    return torch.cat([bits.view(torch.float32), torch.linspace(-20, 20, 200_001), special])


def units(actual: torch.Tensor, true: torch.Tensor) -> float:
    """Largest error in units of the last place, over finite results."""
    rounded = true.float()
    fine = torch.isfinite(rounded) & torch.isfinite(actual)
    spacing = torch.nextafter(rounded.abs(), torch.tensor(math.inf)).double() - rounded.abs().double()
    spacing = torch.where(torch.isfinite(spacing), spacing, rounded.abs().double() * 2.0**-23)
    return float(((actual.double() - true).abs() / spacing)[fine].max())


@pytest.mark.parametrize("name", EXACT)
def test_a_function_is_accurate_over_all_floats(library: ctypes.CDLL, name: str) -> None:
    function, bound = EXACT[name]
    x = all_ranges()
    actual, true = evaluate(library, name, x), function(x.double())
    rounded = true.float()
    assert torch.equal(torch.isnan(actual), torch.isnan(rounded))
    assert torch.equal(torch.isinf(actual), torch.isinf(rounded))
    assert units(actual, true) <= bound


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_is_as_good_as_float_allows(library: ctypes.CDLL, name: str) -> None:
    x = torch.cat([torch.linspace(-60, 60, 300_001), torch.tensor([0.0, 1e-30, -1e-30, 1e4, -1e4])])
    actual, true = evaluate(library, name, x), ACTIVATIONS[name](x.double())
    error = ((actual.double() - true).abs() / x.double().abs().clamp(min=1.0)).max()
    assert float(error) <= 4 * 2.0**-23
    assert torch.isnan(evaluate(library, name, torch.tensor([math.nan])))[0]


def test_a_maximum_passes_nan_on(library: ctypes.CDLL) -> None:
    nan = math.nan
    pairs = torch.tensor([1.0, nan, 2.0, nan, 3.0, 2.0, nan, nan])
    y = torch.empty(4)
    library.max_all(ctypes.c_void_p(pairs.data_ptr()), ctypes.c_void_p(y.data_ptr()), ctypes.c_int64(4))
    assert torch.equal(torch.isnan(y), torch.tensor([False, True, True, True]))
    assert y[0] == 3.0


def test_every_function_is_vectorised(library: ctypes.CDLL, folder: Path) -> None:
    """The loop around each function holds vector instructions: a scalar call would be 10 times slower."""
    if shutil.which("objdump") is None:
        pytest.skip("objdump is not installed")
    assert library is not None
    listing = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", "header_test.so"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    bodies = listing.split("\n\n")
    for name in (*EXACT, *ACTIVATIONS):
        body = next(text for text in bodies if f"<{name}_all>:" in text)
        assert any(register in body for register in ("ymm", "zmm")), f"{name} is scalar"
        assert "call" not in body, f"{name} calls a function"
