"""Does the reference react to its inputs and weights at all? Probes scale both until it does."""

import math
from dataclasses import dataclass

import torch

from stitch_tools.protocol.messages_reference import MeasureSensitivity, Scale
from stitch_tools.worker.precision import precision
from stitch_tools.worker.reference.draw_kinds import PROBES, SensitivityProbe
from stitch_tools.worker.reference.draws import DrawUnavailableError, make_draw
from stitch_tools.worker.reference.load_reference import LoadedReference, ReferenceFault
from stitch_tools.worker.reference.observe import largest_difference
from stitch_tools.worker.reference.reference_calls import call_reference
from stitch_tools.worker.reference.reference_state import ServerSettings, ServerState
from stitch_tools.worker.trees import Flat, flatten_inputs


@dataclass(frozen=True)
class _Move:
    """How far one output moved."""

    name: str
    change: float
    """Over the output's rms; infinite for a discrete output that changed."""
    tolerance: float

    @property
    def reacts(self) -> bool:
        return self.change > self.tolerance


def sensitivity(state: ServerState, message: MeasureSensitivity) -> tuple[dict[str, object], ...]:
    """Rows of the fact `Sensitivity`, probe by probe until inputs and weights have both shown an effect.

    The server's own module and draw are left alone.
    """
    if state.reference is None:
        raise ReferenceFault("not_loaded", "load comes first")
    rows: list[dict[str, object]] = []
    settled: set[str] = set()
    with precision(state.settings.matmul_precision, state.settings.conv_precision):
        for probe in PROBES:
            found = _try_probe(state.reference, state.settings, probe, message, settled)
            rows += found
            settled |= {str(row["subject"]) for row in found if row["reacts"]}
            if settled == {"inputs", "weights"} or (not found and probe is not PROBES[0]):
                break
    return tuple(rows)


def _try_probe(
    reference: LoadedReference,
    settings: ServerSettings,
    probe: SensitivityProbe,
    seeds: MeasureSensitivity,
    settled: set[str],
) -> list[dict[str, object]]:
    scale = Scale(probe.gain, probe.positive) if probe.gain is not None else None
    rows: list[dict[str, object]] = []
    try:
        module, _ = reference.construct(seeds.weights_seed, scale)
        if scale is not None and not reference.filled:
            return []
        arguments, other = _inputs(
            reference, settings, probe.inputs, seeds.input_seed, seeds.other_input_seed
        )
        before = call_reference(reference, module, arguments, forward_seed=seeds.forward_seed).outputs
        if "inputs" not in settled and flatten_inputs(arguments).tensors:
            after = call_reference(reference, module, other, forward_seed=seeds.forward_seed).outputs
            rows.append(_row(probe.name, "inputs", before, after, settings))
        if "weights" not in settled and any(True for _ in module.parameters()):
            del module
            module, _ = reference.construct(seeds.other_weights_seed, scale)
            after = call_reference(reference, module, arguments, forward_seed=seeds.forward_seed).outputs
            rows.append(_row(probe.name, "weights", before, after, settings))
    except (DrawUnavailableError, ReferenceFault):
        # A probe of ours that the reference cannot follow says nothing; its own inputs were called before.
        return rows
    return rows


def _inputs(
    reference: LoadedReference, settings: ServerSettings, kind: str, seed: int, other_seed: int
) -> tuple[object, object]:
    first = make_draw(reference, kind, seed, settings.bounds)
    second = make_draw(reference, kind, other_seed, settings.bounds)
    if largest_difference(flatten_inputs(first).tensors, flatten_inputs(second).tensors) is None:
        for change in ("scaled", "permuted"):  # the maker returns the same values at every call
            try:
                return first, make_draw(reference, change, other_seed, settings.bounds)
            except DrawUnavailableError:
                continue
    return first, second


def _row(probe: str, subject: str, before: Flat, after: Flat, settings: ServerSettings) -> dict[str, object]:
    moves = [
        _move(name, left, right, settings)
        for name, left, right in zip(before.names, before.tensors, after.tensors, strict=True)
    ]
    most = max(moves, key=lambda move: move.change - move.tolerance, default=_Move("", 0.0, 0.0))
    return {
        "probe": probe,
        "subject": subject,
        "change": most.change if math.isfinite(most.change) else None,
        "tolerance": most.tolerance,
        "reacts": most.reacts,
        "unmoved": [move.name for move in moves if not move.reacts],
    }


def _move(name: str, left: torch.Tensor, right: torch.Tensor, settings: ServerSettings) -> _Move:
    if left.shape != right.shape:
        return _Move(name, math.inf, 0.0)
    if left.is_complex():
        left, right = torch.view_as_real(left), torch.view_as_real(right)
    if not left.is_floating_point():
        return _Move(name, 0.0 if torch.equal(left, right) else math.inf, 0.0)
    usable = left.isfinite() & right.isfinite()
    if not bool(usable.any()):
        return _Move(name, 0.0, 0.0)
    old, new = left[usable].double(), right[usable].double()
    rms = float(old.square().mean().sqrt()) or 1.0
    change = float((old - new).abs().max()) / rms
    return _Move(name, change, (settings.atol + settings.rtol * rms) / rms)
