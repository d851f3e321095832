"""Calls the reference on fresh copies of its inputs and puts everything that the call changed back."""

import contextlib
from collections.abc import Generator
from dataclasses import dataclass

import torch

from stitch_tools.worker.aliased_inputs import map_shared, places_of
from stitch_tools.worker.plain_state import PlainState, identical
from stitch_tools.worker.random_streams import (
    GeneratorState,
    generator_state,
    restore_generators,
    seed_generators,
)
from stitch_tools.worker.reference.load_reference import FACTORY_HINT, LoadedReference, fault_at
from stitch_tools.worker.trees import (
    Flat,
    TreeError,
    flatten_inputs,
    flatten_outputs,
    fresh_copy,
)


@dataclass(frozen=True)
class ModuleState:
    """Copies of the buffers, and of what modules keep in plain attributes."""

    buffers: dict[str, torch.Tensor]
    attributes: PlainState


@dataclass(frozen=True)
class ReferenceCall:
    """One call of the reference: its outputs, and what it did beside them."""

    outputs: Flat
    generators_before: GeneratorState
    generators_after: GeneratorState
    buffers_after: dict[str, torch.Tensor]
    """Copies of those buffers whose value the call changed."""
    inputs_after: dict[str, torch.Tensor]
    """Copies of those inputs that the call wrote to."""
    attributes_changed: tuple[str, ...]
    """Qualified names of the plain attributes that hold something else afterwards."""
    held: tuple[str, ...]
    """Outputs that lie in the memory of the inputs."""


def all_buffers(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Persistent and other buffers by qualified name."""
    return dict(module.named_buffers())


def named_tensors(module: torch.nn.Module) -> list[tuple[str, torch.Tensor, bool]]:
    """(name, tensor, is a buffer): parameters and buffers in state_dict order, then other buffers."""
    parameters, buffers = dict(module.named_parameters(remove_duplicate=False)), all_buffers(module)
    result: list[tuple[str, torch.Tensor, bool]] = []
    for name in module.state_dict(keep_vars=True):
        if name in parameters:
            result.append((name, parameters[name].detach(), False))
        elif name in buffers:
            result.append((name, buffers[name], True))
    seen = {name for name, _, _ in result}
    result.extend((name, tensor, True) for name, tensor in buffers.items() if name not in seen)
    return result


def snapshot(module: torch.nn.Module) -> ModuleState:
    """The module's changeable state, copied."""
    buffers = {name: value.clone() for name, value in all_buffers(module).items()}
    return ModuleState(buffers, PlainState(module))


def restore(module: torch.nn.Module, state: ModuleState) -> None:
    """Put the state back: buffers in place, plain attributes as copies."""
    with torch.no_grad():
        for name, value in all_buffers(module).items():
            if name in state.buffers and state.buffers[name].shape == value.shape:
                value.copy_(state.buffers[name])
    state.attributes.restore()


def call_reference(
    reference: LoadedReference, module: torch.nn.Module, arguments: object, *, forward_seed: int | None
) -> ReferenceCall:
    """One call with everything restored afterwards; `forward_seed` None continues the present generator.

    Raises:
        ReferenceFault: forward raises, or returns something that cannot be an output.
    """
    before = snapshot(module)
    if forward_seed is not None:
        seed_generators(forward_seed)
    start = generator_state()
    own = map_shared(arguments, fresh_copy)
    try:
        raw = reference.call(module, own)
        end = generator_state()
        outputs, held = _detached(raw, own, reference, module)
        changed = {
            name: value.detach().clone()
            for name, value in all_buffers(module).items()
            if name in before.buffers and not identical(value, before.buffers[name])
        }
        attributes, written = before.attributes.changed(), _written_inputs(own, arguments)
        return ReferenceCall(outputs, start, end, changed, written, attributes, held)
    finally:
        restore(module, before)


def _written_inputs(own: object, masters: object) -> dict[str, torch.Tensor]:
    after, before = flatten_inputs(own), flatten_inputs(masters)
    rows = zip(after.names, after.tensors, before.tensors, strict=True)
    # Copies: an output may be a view of such an input.
    return {name: fresh_copy(new) for name, new, old in rows if not identical(new, old)}


@contextlib.contextmanager
def kept_generators() -> Generator[None]:
    """Leaves the generators as they were."""
    state = generator_state()
    try:
        yield
    finally:
        restore_generators(state)


def _detached(
    raw: object, arguments: object, reference: LoadedReference, module: torch.nn.Module
) -> tuple[Flat, tuple[str, ...]]:
    try:
        flat = flatten_outputs(raw)
    except TreeError as error:
        fault = fault_at("output", str(error), reference.forward_of(module), reference.source)
        fault.hint = FACTORY_HINT if isinstance(raw, torch.nn.Module) else None
        raise fault from error
    inputs = flatten_inputs(arguments).tensors
    places = places_of([*inputs, *flat.tensors])[len(inputs) :]
    held = tuple(name for name, place in zip(flat.names, places, strict=True) if place.root < len(inputs))
    # Copies: an output may be a buffer or an input, which later calls overwrite.
    copies = tuple(fresh_copy(tensor.detach()) for tensor in flat.tensors)
    return Flat(flat.names, copies, flat.structure), held
