"""The least precise type that a forward computes in, whatever types its inputs and outputs have."""

from collections.abc import Callable

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from stitch_tools.worker.reference.rounding_depth import OpArguments, OpKeywords, dtype_eps
from stitch_tools.worker.trees import tensors_in


class _Narrowest(TorchDispatchMode):
    """Notes the types of what operations return."""

    def __init__(self) -> None:
        super().__init__()
        self.eps = 0.0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # as in Fp64Mode

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: OpArguments = (), kwargs: OpKeywords | None = None
    ) -> object:
        out = func(*args, **(kwargs or {}))
        self.eps = max([self.eps, *(dtype_eps(leaf.dtype) for leaf in tensors_in(out))])
        return out


def narrowest_eps(forward: Callable[[], object]) -> float:
    """Distance from 1 to the next number of the least precise type that `forward` computes in.

    Only the forward as it is shows what autocast makes of it: in fp64 nothing is cast. 0 where it does not
    run while it is watched.
    """
    mode = _Narrowest()
    try:
        with torch.no_grad(), mode:
            forward()
    except Exception:  # foreign code, under a mode that it may not know
        return 0.0
    return mode.eps
