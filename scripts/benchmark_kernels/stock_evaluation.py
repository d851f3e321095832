"""Evaluates one candidate as a harness with a fresh process and torch's own load_inline does.

    python stock_evaluation.py NUMBER     NUMBER makes the source a new one, which no cache holds

Builds the kernel of stock.py, compares five draws by allclose, times 100 calls of reference and candidate.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable

import torch
from stock import CPP
from torch.utils import cpp_extension

DRAWS, CALLS = 5, 100


def milliseconds(call: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> float:
    """Median time of a call."""
    times: list[float] = []
    for _ in range(CALLS):
        start = time.perf_counter()
        call(x)
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def main() -> None:
    """Print whether the candidate was right, and its speedup."""
    number = sys.argv[1]
    module = cpp_extension.load_inline(
        name=f"candidate_{number}",
        cpp_sources=f"// {number}\n{CPP}",
        functions=["scale"],
        extra_cflags=["-O3", "-fopenmp"],
    )
    right = True
    for seed in range(DRAWS):
        torch.manual_seed(seed)
        x = torch.randn(1000)
        right = right and torch.allclose(module.scale(x), x * 2.0 + 1.0, atol=1e-4, rtol=1e-4)
    x = torch.randn(1000)
    speedup = milliseconds(lambda x: x * 2.0 + 1.0, x) / milliseconds(module.scale, x)
    print(json.dumps({"right": right, "speedup": speedup}))


if __name__ == "__main__":
    main()
