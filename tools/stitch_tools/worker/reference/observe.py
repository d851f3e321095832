"""What one look at the reference tells: its inputs, outputs, state, use of random numbers, and doubts."""

import contextlib
import json
import math
import platform

import torch

from stitch_tools.protocol.messages_reference import ObserveReference
from stitch_tools.worker.reference.draws import DrawUnavailableError, InputBounds, make_draw, structures_of
from stitch_tools.worker.reference.load_reference import LoadedReference, ReferenceFault
from stitch_tools.worker.reference.mode_layers import describe_training, mode_layers
from stitch_tools.worker.reference.reference_calls import ReferenceCall, call_reference, named_tensors
from stitch_tools.worker.runtime.abi import DTYPE_CODES
from stitch_tools.worker.tensors import dtype_name
from stitch_tools.worker.trees import computable, flatten_inputs

# Of a difference: an output whose rms is below that has no size to measure by.
_TINY = 1e-12


def observe(
    reference: LoadedReference, module: torch.nn.Module, seeds: ObserveReference, *, rtol: float, atol: float
) -> dict[str, object]:
    """The fields of ReferenceFacts as JSON values.

    Raises:
        ReferenceFault: the inputs cannot be made, do not fit, or forward raises.
    """
    arguments = make_draw(reference, "own-1", seeds.input_seed, InputBounds())
    # Before anything is computed with them: types that torch can hardly compare are refused here.
    inputs, tensors = flatten_inputs(arguments), named_tensors(module)
    input_specs = _specs(inputs.names, inputs.tensors)
    parameters = _specs(tuple(name for name, _, _ in tensors), tuple(value for _, value, _ in tensors))
    versions = {name: tensor._version for name, tensor, is_buffer in named_tensors(module) if not is_buffer}
    first = call_reference(reference, module, arguments, forward_seed=seeds.forward_seed)
    outputs = _specs(first.outputs.names, first.outputs.tensors)
    again = call_reference(reference, module, arguments, forward_seed=seeds.forward_seed)
    uses_rng = not first.generators_before.same_as(first.generators_after)
    warnings: list[str] = []
    repeat_errors = _repeat_errors(first, again, uses_rng, warnings)
    depends = _judge_dependence(reference, module, arguments, first, seeds, rtol, atol, warnings)
    _note_side_effects(module, versions, first, warnings)
    warnings += [
        f"input {name}: {row.describe()} in every draw of the input maker; other draws of a check keep that"
        for name, row in zip(inputs.names, structures_of(reference), strict=False)
        if row.describe()
    ]
    layers = mode_layers(module)
    # Whoever named the mode chose it.
    unchosen = bool(layers) and module.training and reference.source.mode not in ("train", "eval")
    mode_warning = describe_training(layers, reference.source.main) if unchosen else ""
    warnings += [mode_warning] if mode_warning else []
    return {
        "inputs": input_specs,
        "outputs": outputs,
        "output_structure": json.dumps(first.outputs.structure),
        "parameters": parameters,
        "buffers": [name for name, _, is_buffer in tensors if is_buffer],
        "mutated_buffers": sorted(first.buffers_after),
        "changed_attributes": list(first.attributes_changed),
        "uses_rng": uses_rng,
        "training": module.training,
        "mode_layers": list(layers),
        "mode_warning": mode_warning,
        "deterministic": not repeat_errors,
        "repeat_error": max(repeat_errors.values(), default=0.0),
        "repeat_errors": repeat_errors,
        "depends_on_inputs": depends,
        "warnings": warnings,
        "input_structure": json.dumps(inputs.structure),
        "input_names": list(reference.input_names(module)),
        "entry_kind": reference.entry_kind,
        "torch_version": str(torch.__version__),
        "python_version": platform.python_version(),
    }


def known_dtype(name: str, tensor: torch.Tensor) -> str:
    """The tensor's type by its name.

    Raises:
        ReferenceFault: the type is none that crosses the ABI.
    """
    dtype = dtype_name(tensor.dtype)
    if tensor.dtype not in DTYPE_CODES:
        known = ", ".join(map(dtype_name, DTYPE_CODES))
        raise ReferenceFault("unsupported_dtype", f"tensor {name!r} is {dtype}; known are {known}")
    return dtype


def _spec(name: str, tensor: torch.Tensor) -> dict[str, object]:
    """The fields of TensorSpec; strides only where the tensor is not contiguous."""
    stride = None if tensor.is_contiguous() else list(tensor.stride())
    return {"name": name, "shape": list(tensor.shape), "dtype": known_dtype(name, tensor), "stride": stride}


def _specs(names: tuple[str, ...], tensors: tuple[torch.Tensor, ...]) -> list[dict[str, object]]:
    return [_spec(name, tensor) for name, tensor in zip(names, tensors, strict=True)]


def _repeat_errors(
    first: ReferenceCall, again: ReferenceCall, uses_rng: bool, warnings: list[str]
) -> dict[str, float]:
    """ReferenceFacts.repeat_errors of two calls: of each output that differs."""
    result: dict[str, float] = {}
    gaps: list[float] = []
    pairs = zip(first.outputs.tensors, again.outputs.tensors, strict=True)
    for name, (left, right) in zip(first.outputs.names, pairs, strict=True):
        gap = largest_difference((left,), (right,))
        if gap is None:
            continue
        gaps.append(gap)
        result[name] = 1.0
        if (left.is_floating_point() or left.is_complex()) and math.isfinite(gap):
            left = computable(left)
            rms = float(left[left.isfinite()].abs().double().square().mean().sqrt())
            result[name] = gap / rms if rms > gap * _TINY else 1.0
    if gaps:
        seeded = " with the same generator state" if uses_rng else ""
        warnings.append(
            f"two calls on the same inputs{seeded} gave different outputs"
            f" (largest difference {max(gaps):.3g}): bounds do not grow with that, and where it is"
            " beyond them no program can be certified; seed or remove the source of chance"
        )
    return result


def _judge_dependence(
    reference: LoadedReference,
    module: torch.nn.Module,
    arguments: object,
    first: ReferenceCall,
    seeds: ObserveReference,
    rtol: float,
    atol: float,
    warnings: list[str],
) -> bool:
    if not flatten_inputs(arguments).tensors:
        warnings.append("the task has no tensor inputs: every call computes the same")
        return False
    other = changed_inputs(reference, "own-2", arguments, seeds.other_input_seed, InputBounds())
    try:
        second = call_reference(reference, module, other, forward_seed=seeds.forward_seed)
    except ReferenceFault as fault:
        warnings.append(f"on a second set of its own inputs the reference failed: {fault.message}")
        return True
    if [t.shape for t in first.outputs.tensors] != [t.shape for t in second.outputs.tensors]:
        warnings.append("the outputs' shapes depend on the inputs' values")
        return True
    moves = [
        reaction(old, new, rtol, atol)
        for old, new in zip(first.outputs.tensors, second.outputs.tensors, strict=True)
    ]
    ratio = max((change / max(tolerance, _TINY) for change, tolerance in moves), default=0.0)
    if ratio <= 1.0:
        warnings.append(
            f"other inputs changed the output by only {ratio:.2g} times the tolerance "
            f"(rtol {rtol:g}, atol {atol:g}): a program that ignores its inputs could pass"
        )
        return False
    return True


def changed_inputs(
    reference: LoadedReference, kind: str, first: object, seed: int, bounds: InputBounds
) -> object:
    """Inputs of another seed than `first`; of other kinds where the maker gives the same at every call."""
    other = make_draw(reference, kind, seed, bounds)
    for change in ("scaled", "permuted"):
        if largest_difference(flatten_inputs(first).tensors, flatten_inputs(other).tensors) is not None:
            break
        with contextlib.suppress(DrawUnavailableError):
            other = make_draw(reference, change, seed, bounds)
    return other


def reaction(left: torch.Tensor, right: torch.Tensor, rtol: float, atol: float) -> tuple[float, float]:
    """How far an output moved and its tolerance, both over its rms; infinite where a discrete one changed."""
    if left.shape != right.shape:
        return math.inf, 0.0
    left, right = computable(left), computable(right)
    if left.is_complex():
        left, right = torch.view_as_real(left), torch.view_as_real(right)
    if not left.is_floating_point():
        return 0.0 if torch.equal(left, right) else math.inf, 0.0
    usable = left.isfinite() & right.isfinite()
    if not bool(usable.any()):
        return 0.0, 0.0
    old, new = left[usable].double(), right[usable].double()
    rms = float(old.square().mean().sqrt()) or 1.0
    return float((old - new).abs().max()) / rms, (atol + rtol * rms) / rms


def _note_side_effects(
    module: torch.nn.Module, versions: dict[str, int], call: ReferenceCall, warnings: list[str]
) -> None:
    changed = [
        name
        for name, tensor, _ in named_tensors(module)
        if tensor._version != versions.get(name, tensor._version)
    ]
    if changed:
        warnings.append(f"forward modifies parameters in place: {', '.join(changed[:5])}")
    if call.inputs_after:
        warnings.append("forward modifies its inputs in place")
    if call.attributes_changed:
        names = ", ".join(sorted(set(call.attributes_changed))[:5])
        warnings.append(
            f"forward keeps state in attributes that are no buffers: {names}; it is reset before each call,"
            " and so are attributes of these names of a ModelNew"
        )
    odd = [
        name
        for name, tensor in zip(call.outputs.names, call.outputs.tensors, strict=True)
        if tensor.is_floating_point() and not bool(computable(tensor).isfinite().all())
    ]
    if odd:
        warnings.append(f"outputs hold values that are not finite: {', '.join(odd[:5])}")


def largest_difference(left: tuple[torch.Tensor, ...], right: tuple[torch.Tensor, ...]) -> float | None:
    """Largest absolute difference, infinite where shapes differ, None where all is bitwise equal."""
    worst: float | None = None
    for one, two in zip(left, right, strict=True):
        if one.shape != two.shape:
            return float("inf")
        same = (one == two) | ((one != one) & (two != two))
        if not bool(same.all()):
            gap = (one.to(torch.complex128) - two.to(torch.complex128)).abs()[~same]
            worst = max(worst or 0.0, float(gap.nan_to_num(nan=float("inf")).max()))
    return worst
