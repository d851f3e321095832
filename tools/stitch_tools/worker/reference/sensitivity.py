"""Does the reference react to its inputs and weights at all? Probes scale both until it does."""

import math

from stitch_tools.protocol.messages_reference import MeasureSensitivity, Scale
from stitch_tools.worker.precision import precision
from stitch_tools.worker.reference.draw_kinds import PROBES, SensitivityProbe
from stitch_tools.worker.reference.draws import DrawUnavailableError, make_draw
from stitch_tools.worker.reference.load_reference import LoadedReference, ReferenceFault
from stitch_tools.worker.reference.observe import changed_inputs, reaction
from stitch_tools.worker.reference.reference_calls import call_reference
from stitch_tools.worker.reference.reference_state import ServerSettings, ServerState
from stitch_tools.worker.trees import Flat, flatten_inputs


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
            added = _try_probe(state.reference, state.settings, probe, message, settled)
            rows += added
            settled |= {str(row["subject"]) for row in added if row["reacts"]}
            if settled == {"inputs", "weights"} or (not added and probe is not PROBES[0]):
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
        arguments = make_draw(reference, probe.inputs, seeds.input_seed, settings.bounds)
        other = changed_inputs(reference, probe.inputs, arguments, seeds.other_input_seed, settings.bounds)
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


def _row(probe: str, subject: str, before: Flat, after: Flat, settings: ServerSettings) -> dict[str, object]:
    moves = {
        name: reaction(left, right, settings.rtol, settings.atol)
        for name, left, right in zip(before.names, before.tensors, after.tensors, strict=True)
    }
    change, tolerance = max(moves.values(), key=lambda move: move[0] - move[1], default=(0.0, 0.0))
    return {
        "probe": probe,
        "subject": subject,
        "change": change if math.isfinite(change) else None,
        "tolerance": tolerance,
        "reacts": change > tolerance,
        "unmoved": [name for name, move in moves.items() if not move[0] > move[1]],
    }
