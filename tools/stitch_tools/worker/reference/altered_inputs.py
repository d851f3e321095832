"""Inputs that differ from an earlier draw's in a few values only, and yet give other outputs."""

import torch

from stitch_tools.worker.precision import precision
from stitch_tools.worker.reference.compare import compare_output
from stitch_tools.worker.reference.draw_kinds import ALTERED
from stitch_tools.worker.reference.draws import DrawUnavailableError, make_draw
from stitch_tools.worker.reference.load_reference import ReferenceFault
from stitch_tools.worker.reference.reference_calls import call_reference
from stitch_tools.worker.reference.reference_state import ServerState
from stitch_tools.worker.reference.rounding_allowance import EqualityRule, Expected
from stitch_tools.worker.reference.rounding_depth import Rounding
from stitch_tools.worker.trees import Flat

_COUNTS = (1, 32, 1024, 32768)


def smallest_alteration(state: ServerState, seed: int, forward_seed: int) -> str:
    """The kind `altered-N` with the smallest N that the reference answers otherwise than the draw of `seed`.

    Raises:
        DrawUnavailableError: no small number of values makes a difference, or the reference refuses them.
    """
    settings = state.settings
    rule = EqualityRule(settings.rtol, settings.atol)
    reason = "a few other values hardly change the outputs"
    with precision(settings.matmul_precision, settings.conv_precision):
        before = _outputs(state, "own-1", seed, forward_seed)
        for count in _COUNTS:
            kind = f"{ALTERED}-{count}"
            try:
                after = _outputs(state, kind, seed, forward_seed)
            except DrawUnavailableError as error:
                reason = str(error)
                continue  # by chance the same values
            except ReferenceFault as fault:
                raise DrawUnavailableError(f"the reference refuses it: {fault.message[:300]}") from fault
            if any(map(_differ, before.tensors, after.tensors, [rule] * len(after.tensors))):
                return kind
    raise DrawUnavailableError(reason)


def _outputs(state: ServerState, kind: str, seed: int, forward_seed: int) -> Flat:
    reference, module = state.need()
    arguments = make_draw(reference, kind, seed, state.settings.bounds)
    return call_reference(reference, module, arguments, forward_seed=forward_seed).outputs


def _differ(before: torch.Tensor, after: torch.Tensor, rule: EqualityRule) -> bool:
    """Whether one counts as wrong where the other is expected, by the contract's ceiling."""
    truth = after.double() if after.is_floating_point() else after
    expected = Expected("", after, truth, Rounding.unknown(after.dtype))
    return compare_output(before, expected, rule).problem is not None
