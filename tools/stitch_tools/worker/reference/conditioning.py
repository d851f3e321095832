"""How much of an output's error the inputs' own last bits excuse: the oracle on inputs that differ by one."""

import math

import torch

from stitch_tools.worker.aliased_inputs import map_shared
from stitch_tools.worker.reference.oracle import OracleRun, run_oracle
from stitch_tools.worker.reference.rounding_depth import FLOOR_FACTOR, dtype_eps
from stitch_tools.worker.trees import flatten_inputs, fresh_copy

_SEED = 0x5EED


def inputs_slack(
    module: torch.nn.Module,
    arguments: object,
    oracle: OracleRun,
    factor: float,
    formats: tuple[str, str],
    *,
    forward_seed: int | None,
    device: str | None,
) -> list[float]:
    """Per output, the absolute error that counts as none.

    A program that sums in another order computes exactly what other inputs would give, which differ from the
    given ones by as much as a sum rounds. So the distance that one last bit of the inputs moves the oracle by
    is enlarged to that rounding: from eps to `factor` * eps * sqrt(longest sum).

    Args:
        module: the reference.
        arguments: inputs of the draw.
        oracle: on these inputs.
        factor: of `kinds.SLACK`.
        formats: what the contract allows in matrix products and in convolutions.
        forward_seed: of the draw.
        device: where the oracle runs.
    """
    generator = torch.Generator().manual_seed(_SEED)
    nudged = map_shared(arguments, lambda tensor: _nudged(tensor, generator))
    # The coarsest input moves the output most, and sets the unit that the distance is measured in.
    eps = max((dtype_eps(tensor.dtype) for tensor in flatten_inputs(arguments).tensors), default=0.0)
    if not eps:
        return [0.0] * len(oracle.outputs.tensors)
    moved = run_oracle(module, nudged, forward_seed=forward_seed, device=device)
    rows = zip(oracle.outputs.tensors, moved.outputs.tensors, oracle.rounding, strict=True)
    share = factor / FLOOR_FACTOR / eps
    return [_distance(old, new) * share * path.floor(*formats) for old, new, path in rows]


def _nudged(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if not tensor.is_floating_point() or not tensor.numel():
        return tensor
    # Random signs: moved all one way, inputs would do no more than scale what is linear in them.
    signs = (torch.randint(0, 2, tensor.shape, generator=generator) * 2 - 1).to(tensor.device)
    values = tensor.double() * (1.0 + signs * dtype_eps(tensor.dtype))
    result = fresh_copy(tensor)
    distinct = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in tensor.stride())
    result[distinct].copy_(values[distinct])
    return result


def _distance(old: torch.Tensor, new: torch.Tensor) -> float:
    """The largest change; infinite where a number came or went, 0 for what is discrete."""
    if not old.is_floating_point() or not old.numel():
        return 0.0
    if old.shape != new.shape or not torch.equal(old.isfinite(), new.isfinite()):
        return math.inf
    finite = old.isfinite()
    return float((old[finite] - new[finite]).abs().max()) if bool(finite.any()) else 0.0
