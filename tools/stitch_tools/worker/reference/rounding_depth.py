"""How much rounding the way from the inputs to an output allows: formats, and lengths of sums."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._ops import OpOverload

from stitch_tools.worker.trees import tensors_in

OpArguments = tuple[Any, ...]
OpKeywords = dict[str, Any]
"""Arguments of an operation of torch as a mode gets them: each operation has its own types."""
FLOOR_FACTOR = 16.0
"""Starting value of DESIGN 6; docs/decisions/0003-equality.md has the calibration."""

FAST_MATH = 2e-5
"""Error of an fp32 function of a fast-math library, or by another formula; docs/decisions/0031-bound.md."""

_FORMAT_EPS = {"fp32": 2.0**-23, "tf32": 2.0**-10, "fp16": 2.0**-10, "bf16": 2.0**-7}

_FUNCTIONS = (
    *("exp", "log", "tanh", "sigmoid", "softplus", "softmax", "softmin", "softsign", "erf", "sin", "cos"),
    *("tan", "elu", "silu", "mish", "pow", "sqrt", "norm", "div", "reciprocal", "attention", "rnn", "lstm"),
    "gru",
)
"""In names of operations that compute a function; `relu`, sums and products round alike in every formula."""
_NO_SUMS = ("index", "select", "slice", "gather", "embedding", "topk", "sort")
_EXTREMES = ("max", "min", "amax", "amin", "argmax", "argmin", "adaptive_max", "fractional_max")


def schema_of(operation: OpOverload) -> torch.FunctionSchema:
    """Name and arguments of an operation; torch has no public way to them."""
    return operation._schema  # pyright: ignore[reportPrivateUsage]


def dtype_eps(dtype: torch.dtype) -> float:
    """Distance from 1 to the next number of the type; 0 for types without rounding."""
    return torch.finfo(dtype).eps if dtype.is_floating_point or dtype.is_complex else 0.0


def coarser_formats(allowed: Sequence[str]) -> list[str]:
    """Formats that round more than all of the allowed ones, the most precise first; fp16 rounds as TF32."""
    coarsest = max(_FORMAT_EPS[name] for name in allowed)
    return [name for name in ("tf32", "bf16") if _FORMAT_EPS[name] > coarsest]


def allowed_eps(own: float, precision: str) -> float:
    """Rounding of an operand of eps `own` in a library operation that may use the format; fp64 stays fp64."""
    return max(own, _FORMAT_EPS[precision]) if own >= _FORMAT_EPS["fp32"] else own


@dataclass(frozen=True)
class Rounding:
    """The least precise type, the longest sum, and the library operations behind one value."""

    eps: float = 0.0
    length: int = 1
    matmul: bool = False
    conv: int = 0
    """How many convolutions, or recurrent layers of cuDNN, lie one behind another on the way."""
    function: bool = False
    """Whether a function is on the way that a fast-math library or another formula approximates."""

    @classmethod
    def of(cls, dtype: torch.dtype) -> "Rounding":
        """Of a value that nothing was computed for yet."""
        return cls(eps=dtype_eps(dtype))

    @classmethod
    def unknown(cls, dtype: torch.dtype) -> "Rounding":
        """Of a value whose path nobody followed: so long that only the contract's ceiling bounds it."""
        return cls(eps=dtype_eps(dtype), length=1 << 60)

    @classmethod
    def worst(cls, paths: Sequence["Rounding"]) -> "Rounding":
        """Of a value that depends on all of these."""
        return cls(
            eps=max((path.eps for path in paths), default=0.0),
            length=max((path.length for path in paths), default=1),
            matmul=any(path.matmul for path in paths),
            conv=max((path.conv for path in paths), default=0),
            function=any(path.function for path in paths),
        )

    def after(self, *, length: int, matmul: bool, conv: bool, function: bool) -> "Rounding":
        """The path prolonged by one operation."""
        return replace(
            self,
            length=max(self.length, length),
            matmul=self.matmul or matmul,
            conv=self.conv + conv,
            function=self.function or function,
        )

    def rounded_to(self, dtype: torch.dtype) -> "Rounding":
        """The path prolonged by rounding to `dtype`."""
        return replace(self, eps=max(self.eps, dtype_eps(dtype)))

    def floor(self, matmul_precision: str, conv_precision: str) -> float:
        """Relative error of any honest program: 16 * eps * sqrt(longest sum), 2e-5 for functions in fp32.

        Operands of convolutions that are rounded to a coarser format count once for each convolution, with
        no regard to lengths: relative to the sum of many rounded terms the error is that of one.
        """
        eps = self.eps
        if self.matmul:
            eps = max(eps, allowed_eps(self.eps, matmul_precision))
        floor = FLOOR_FACTOR * max(eps * math.sqrt(self.length), self.conv_eps(conv_precision))
        return max(floor, FAST_MATH) if self.function and eps >= _FORMAT_EPS["fp32"] else floor

    def conv_eps(self, conv_precision: str) -> float:
        """Rounding of the operands of all convolutions on the way, as independent errors add up.

        0 where they are rounded to no coarser format than the way has anyway.
        """
        eps = allowed_eps(self.eps, conv_precision) if self.conv else self.eps
        return eps * math.sqrt(self.conv) if eps > self.eps else 0.0


def is_function(name: str) -> bool:
    """Whether an operation computes a function that other formulas, or fewer instructions, approximate."""
    return any(part in name for part in _FUNCTIONS) and "relu" not in name


def reduction_length(name: str, args: OpArguments, out: object) -> int:
    """Longest chain of additions behind one element of the operation `name` (without namespace)."""
    name = name.rstrip("_")
    tensors = [leaf for leaf in args if isinstance(leaf, torch.Tensor)]
    if not tensors or any(part in name for part in _NO_SUMS) or name.startswith(_EXTREMES):
        return 1
    # A product adds up along the axis that both operands share, and nothing of its result shows how long.
    first = tensors[0]
    if name in ("mm", "bmm", "mv", "dot"):
        return max(1, first.shape[-1])
    if name in ("addmm", "baddbmm", "addmv", "addbmm"):
        return max(1, tensors[1].shape[-1])
    if "conv" in name and len(tensors) > 1:
        return _convolution_length(args, tensors[1])
    if name == "_cudnn_rnn":
        return max(1, first.shape[-1], tensors[1].shape[-1])
    if "attention" in name:
        return max(1, first.shape[-1], tensors[1].shape[-2])
    return _row_length(name, args, tensors, out)


def _row_length(name: str, args: OpArguments, tensors: list[torch.Tensor], out: object) -> int:
    first = tensors[0]
    if "softmax" in name or name in ("cumsum", "cumprod", "logcumsumexp"):
        return _dim_size(first, args)
    if name == "native_layer_norm":
        return max(1, math.prod(args[1]))
    if "batch_norm" in name or "group_norm" in name or "instance_norm" in name:
        return max(1, first.numel() // max(1, first.shape[1] if first.dim() > 1 else 1))
    if "nll_loss" in name:
        return max(1, tensors[1].numel())
    return _shrinkage(first, out)


def _shrinkage(first: torch.Tensor, out: object) -> int:
    """Sums, means, norms and pools make fewer elements than they read; views do too, at no rounding."""
    results = tensors_in(out)
    if not results or not results[0].numel() or results[0].data_ptr() == first.data_ptr():
        return 1
    return max(1, first.numel() // results[0].numel())


def _convolution_length(args: OpArguments, weight: torch.Tensor) -> int:
    transposed = len(args) > 6 and args[6] is True
    kernel = math.prod(weight.shape[2:])
    groups = args[8] if len(args) > 8 and isinstance(args[8], int) else 1
    channels = weight.shape[0] // max(1, groups) if transposed else weight.shape[1]
    return max(1, channels * kernel)


def _dim_size(tensor: torch.Tensor, args: OpArguments) -> int:
    dim = args[1] if len(args) > 1 and isinstance(args[1], int) else -1
    return max(1, tensor.shape[dim]) if tensor.dim() else 1
