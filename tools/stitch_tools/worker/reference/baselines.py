"""Baselines in the reference server: each one is built, and then serves calls in a loop of its own."""

from collections.abc import Callable

import torch

from stitch_tools.protocol.messages import Done
from stitch_tools.protocol.timing_messages import DeviceRates, MeasureCeilings, TimeBaseline
from stitch_tools.worker.plain_calls import copy_plainly
from stitch_tools.worker.precision import precision
from stitch_tools.worker.reference.draws import make_draw
from stitch_tools.worker.reference.reference_state import ServerState
from stitch_tools.worker.timed.rates import cpu_rates, cuda_rates
from stitch_tools.worker.timed.region import PythonRing, build_baseline, keep_freed_memory, keeps_outputs
from stitch_tools.worker.trees import flatten_outputs


def timed_baseline(state: ServerState, asked: TimeBaseline) -> Done:
    """Build one baseline and serve batches of its calls over its pipes until the controller stops.

    The first answer follows the first batch, so building counts towards that batch's time limit.
    """
    reference, module = state.need()
    request_fd, reply_fd = asked.pipes
    settings = state.settings
    draws = [make_draw(reference, "own", seed, settings.bounds) for seed in asked.seeds]
    kind, device = asked.baseline, reference.source.device
    cuda = device.startswith("cuda")
    keep_freed_memory()
    with precision(settings.matmul_precision, settings.conv_precision):
        with reference.blame("forward", module, draws[0]):
            call = build_baseline(kind, module, draws[0])
        ring = PythonRing(call, draws, asked.slots, keep_outputs=keeps_outputs(kind, device))
        ring.serve(request_fd, reply_fd, cuda=cuda, collect=_collector(ring))
    return Done()


def _collector(ring: PythonRing) -> Callable[[int], None]:
    """Copies the outputs of a slot as a program's are fetched: to have a time beside that of the program."""
    places: dict[int, list[torch.Tensor]] = {}

    def collect(slot: int) -> None:
        value = ring.outputs[slot]
        tensors = flatten_outputs(value).tensors if value is not None else ()
        if slot not in places:
            places[slot] = [torch.zeros(tensor.shape, dtype=tensor.dtype) for tensor in tensors]
        copy_plainly(places[slot], tensors)

    return collect


def ceilings(state: ServerState, message: MeasureCeilings) -> DeviceRates:
    """Rates of this device by torch; needs no reference."""
    del state
    if message.device == "cpu":
        return cpu_rates(message.cache_bytes)
    return cuda_rates(message.device, message.cache_bytes)
