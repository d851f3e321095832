"""A built native program as a torch module, for use outside of any harness. Forward only."""

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch

from stitch_tools.worker.aliased_inputs import map_shared
from stitch_tools.worker.binding import bind_inputs
from stitch_tools.worker.runtime.native import NativeProgram, ProgramError, make_workspace
from stitch_tools.worker.trees import (
    Structure,
    arranged,
    call_with,
    flatten_inputs,
    flatten_outputs,
    unflatten,
)

TensorSpec = tuple[str, Sequence[int], str]
"""Name, shape and type of a tensor; the type is torch's name without the prefix."""


class StitchModule(torch.nn.Module):
    """Calls a native program where the reference was called.

    Parameters and buffers are kept as buffers under the reference's names, in a tree of modules like its own,
    so `state_dict`, `load_state_dict` and `named_buffers` speak of them as it does.

    Weights that are one tensor under several names stay one. A call uses the weights as they are then: where
    one was written to or exchanged, all are handed over. Calls from several threads run one after the other.
    Writes that torch does not count (through `.data`, `.numpy()` or a pointer) need a `refresh` by hand.
    Device and types are part of the program, so conversions to others are refused. A deep copy has weights of
    its own.
    """

    def __init__(
        self,
        library: str,
        parameters: Mapping[str, torch.Tensor],
        *,
        output_structure: str,
        input_structure: str = "",
        input_names: Sequence[str] = (),
        input_specs: Sequence[TensorSpec] = (),
        output_specs: Sequence[TensorSpec] = (),
        name: str = "",
        libraries: Sequence[str] = (),
        device: torch.device | str = "cpu",
        updated_buffers: Sequence[str] = (),
        threads: int = 0,
        fixed_shapes: bool = False,
        training: bool = False,
        mode_matters: bool = False,
        load: Callable[[str, Sequence[str]], NativeProgram] = NativeProgram,
    ) -> None:
        """Load and initialise.

        Args:
            library: path of the built shared library.
            parameters: the reference's parameters and buffers by qualified name (its `state_dict`).
            output_structure: ReferenceFacts.output_structure.
            input_structure: ReferenceFacts.input_structure; "" compares no constants.
            input_names: ReferenceFacts.input_names.
            input_specs: ReferenceFacts.inputs, for `repr` and the words of a refusal; may be empty.
            output_specs: ReferenceFacts.outputs, for `repr`.
            name: the task's, for `repr`.
            libraries: Build.libraries, loaded first.
            device: where the program runs.
            updated_buffers: names of buffers that forward updates, where the contract says `updated`.
            threads: CPU threads at most; 0 leaves it to the runtime.
            fixed_shapes: refuse inputs that are not as `input_specs` says, whatever the program would do.
            training: ReferenceFacts.training, the mode that the program was made for.
            mode_matters: whether the reference computes something else in the other mode.
            load: opens the library, after the `libraries`.

        Raises:
            ProgramError: the library cannot be loaded, or refuses the parameters.
        """
        super().__init__()
        self._structure = json.loads(output_structure)
        self._inputs = json.loads(input_structure) if input_structure else None
        self._input_names = tuple(input_names)
        self._input_specs, self._output_specs = tuple(input_specs), tuple(output_specs)
        self._task_name = name
        self._updated = tuple(updated_buffers)
        self._threads = threads
        self._fixed_shapes = fixed_shapes
        self._device = torch.device(device)
        self._hold(parameters)
        self._begin_in_mode(training)
        self._mode_matters = mode_matters
        self._handed: list[tuple[int, int]] = []
        self.register_load_state_dict_post_hook(_refresh_loaded)
        self._program = load(library, libraries)
        self.refresh()

    def _hold(self, parameters: Mapping[str, torch.Tensor]) -> None:
        """Copy the weights into buffers of the same names, and remember their forms."""
        self._places: dict[str, tuple[torch.nn.Module, str]] = {}
        # Tied weights are one tensor under several names, and stay one.
        own_copies = map_shared(dict(parameters), lambda tensor: tensor.detach().to(self._device).clone())
        for name, tensor in own_copies.items():
            module, own = self._places[name] = self._place(name)
            # Not by `register_buffer`: a reference may use names that are attributes here.
            module._buffers[own] = tensor
        self._made_for = {name: _form(tensor) for name, tensor in self._weights().items()}

    def _begin_in_mode(self, training: bool) -> None:
        # Not by `train`, which leaves the mode as it is.
        for below in self.modules():
            below.training = training

    def refresh(self) -> None:
        """Give the program the present weights.

        Raises:
            ProgramError: it refuses them.
            RuntimeError: one is missing, or has another shape, type or device than the program was made for.
        """
        with self._program.lock:
            for name, (module, own) in self._places.items():
                _require_form(name, module._buffers.get(own), self._made_for[name])
            self._replace_uncounted()
            named = list(self._weights().items())
            # What is written while the program reads them is handed over again by the next call.
            marks = self._marks()
            self._program.init(named, device=self._device, stream=self._stream(), threads=self._threads)
            self._handed = marks

    def _replace_uncounted(self) -> None:
        """Copies in place of inference tensors, writes to which are not counted."""
        result = {name: tensor for name, tensor in self._weights().items() if tensor.is_inference()}
        if not result:
            return
        with torch.inference_mode(False):
            copies = map_shared(result, torch.clone)
        for name, copied in copies.items():
            module, own = self._places[name]
            module._buffers[own] = copied

    def _place(self, name: str) -> tuple[torch.nn.Module, str]:
        """The module that holds a qualified name, made if need be, and the name's last part."""
        *path, own = name.split(".")
        module: torch.nn.Module = self
        for part in path:
            below = module._modules.get(part)
            if below is None:
                module._modules[part] = below = torch.nn.Module()
            module = below
        return module, own

    def _weights(self) -> dict[str, torch.Tensor]:
        result = {name: module._buffers.get(own) for name, (module, own) in self._places.items()}
        return {name: tensor for name, tensor in result.items() if tensor is not None}

    def _marks(self) -> list[tuple[int, int]]:
        """What changes where a weight is written to or exchanged."""
        return [
            # -1: to be looked at by `refresh`, which refuses or replaces it.
            (-1, 0) if tensor is None or tensor.is_inference() else (tensor._version, tensor.data_ptr())
            for tensor in [module._buffers.get(own) for module, own in self._places.values()]
        ]

    def forward(self, *args: object, **kwargs: object) -> object:
        """The reference's outputs.

        Raises:
            TypeError: arguments are missing, unknown or of another kind than the reference's were.
            ValueError: a number or another constant differs from the one that is part of the program.
            RuntimeError: a gradient is asked for, and the program has no backward; or as in `refresh`.
            ProgramError: the program does not support inputs like these, or fails.
        """
        bound = _bind(self._inputs, self._input_names, args, kwargs)
        inputs = [tensor.detach().to(self._device) for tensor in flatten_inputs(bound).tensors]
        if self._fixed_shapes:
            _require_shapes(self._input_specs, inputs)
        with self._program.lock:
            outputs = self._call(inputs)
        return unflatten(self._structure, outputs)

    def _call(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """The outputs of one forward; nobody else uses the program meanwhile."""
        # The program has packed some weights and uses others where they lie: without this, a write to all of
        # them would reach half. A copy's program has none yet.
        if not self._program.handle or self._marks() != self._handed:
            self.refresh()
        try:
            planned = self._program.plan(inputs)
        except ProgramError as error:
            words = [error.message, *_differences(self._input_specs, inputs)]
            raise ProgramError(error.status, error.step, "; ".join(filter(None, words))) from None
        outputs = [torch.empty(shape, dtype=dtype, device=self._device) for shape, dtype in planned.outputs]
        weights = self._weights() if self._updated else {}
        state = [weights[name] for name in self._updated]
        workspace = make_workspace(planned.workspace_bytes, self._device)
        self._program.call(
            self._program.prepare(inputs, outputs, state=state, workspace=workspace, stream=self._stream())
        )
        return outputs

    def extra_repr(self) -> str:
        """Name, device, inputs and outputs, for `repr`."""
        parts = [*([self._task_name] if self._task_name else []), f"device={self._device}"]
        for label, specs in (("inputs", self._input_specs), ("outputs", self._output_specs)):
            if specs:
                listed = ", ".join(f"{name}: {_described(shape, dtype)}" for name, shape, dtype in specs)
                parts.append(f"{label}=({listed})")
        return ", ".join(parts)

    def train(self, mode: bool = True) -> "StitchModule":
        """The module itself; the mode was fixed when the program was made."""
        if self._mode_matters:
            _warn_of_mode(self, mode)
        return self

    def __repr__(self) -> str:
        # The modules below only hold weights.
        return f"{self._get_name()}({self.extra_repr()})"

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> "StitchModule":
        """Refuse a conversion (`to`, `half`, `cuda`) that the program cannot follow."""
        held = list(self._weights().values())
        if not any(tensor.is_floating_point() for tensor in held):
            # Only the inputs tell what a program without weights computes in.
            types = [getattr(torch, dtype) for _, _, dtype in self._input_specs] or [torch.float32]
            held += [torch.empty(0, dtype=dtype, device=self._device) for dtype in types]
        for tensor in held:
            converted = fn(tensor)
            if (converted.dtype, converted.device) != (tensor.dtype, tensor.device):
                raise RuntimeError(
                    f"this module is a compiled program for {_words(tensor.dtype)} on {tensor.device}: it"
                    f" cannot be converted to {_words(converted.dtype)} on {converted.device}; convert the"
                    " reference, and solve that"
                )
        converted_once: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

        def convert(tensor: torch.Tensor) -> torch.Tensor:
            # The original is kept with its id, which else might become that of another tensor.
            if id(tensor) not in converted_once:
                converted_once[id(tensor)] = tensor, fn(tensor)
            return converted_once[id(tensor)][1]

        super()._apply(convert, recurse)
        return self

    def _stream(self) -> int:
        return torch.cuda.current_stream(self._device).cuda_stream if self._device.type == "cuda" else 0


def forward_only(
    module: torch.nn.Module,
    *,
    input_structure: str = "",
    input_names: Sequence[str] = (),
    fixed_specs: Sequence[TensorSpec] = (),
    output_structure: str = "",
    mode_matters: bool = False,
) -> torch.nn.Module:
    """The module itself, whose calls from now on refuse what a StitchModule refuses.

    Args:
        module: a program in Python.
        input_structure: ReferenceFacts.input_structure; "" compares no constants.
        input_names: ReferenceFacts.input_names.
        fixed_specs: ReferenceFacts.inputs, where no other shapes are to be taken.
        output_structure: ReferenceFacts.output_structure, where the program returns other containers.
        mode_matters: whether the reference computes something else in the other mode; asking for it warns.
    """
    structure = json.loads(input_structure) if input_structure else None
    wanted = json.loads(output_structure) if output_structure else None
    kind = type(module)

    def call(self: torch.nn.Module, *args: object, **kwargs: object) -> object:
        bound = _bind(structure, input_names, args, kwargs)
        if fixed_specs:
            _require_shapes(fixed_specs, flatten_inputs(bound).tensors)
        value = call_with(partial(kind.__call__, self), bound)
        return (
            value if wanted is None else unflatten(wanted, arranged(flatten_outputs(value), wanted).tensors)
        )

    def train(self: torch.nn.Module, mode: bool = True) -> torch.nn.Module:
        _warn_of_mode(self, mode)
        return self

    # Not a hook: a program may have a `__call__` of its own, which calls none.
    own: dict[str, object] = {"__call__": call, "__module__": kind.__module__}
    module.__class__ = type(kind.__name__, (kind,), own | ({"train": train} if mode_matters else {}))
    return module


def _warn_of_mode(module: torch.nn.Module, training: bool) -> None:
    """Warn where the other mode is asked for than the one that the program was made for."""
    if training != module.training:
        own, other = ("train", "eval") if module.training else ("eval", "train")
        # Not an error: `eval()` of a module that holds this one must reach the others below it.
        warnings.warn(
            f"this program computes what its reference computes in {own} mode, and stays in it;"
            f' for the other solve the reference with mode = "{other}" under [contract] in its task file',
            stacklevel=3,
        )


def _require_shapes(specs: Sequence[TensorSpec], inputs: Sequence[torch.Tensor]) -> None:
    """Refuse other shapes and types, on which the program was seen to be wrong."""
    differences = _differences(specs, inputs)
    if differences:
        reason = "this program is wrong for other shapes than those that it was made for"
        raise ProgramError("unsupported", "inputs", f"{reason}: {'; '.join(differences)}")


def _differences(specs: Sequence[TensorSpec], inputs: Sequence[torch.Tensor]) -> list[str]:
    """One text for each input whose shape or type is another than expected."""
    result: list[str] = []
    for (name, shape, dtype), tensor in zip(specs, inputs, strict=False):
        expected = _described(shape, dtype)
        given = _described(tensor.shape, _words(tensor.dtype))
        if given != expected:
            result.append(f"input {name}: made for {expected}, given {given}")
    return result


def _described(shape: Sequence[int], dtype: str) -> str:
    return f"{dtype}{list(shape)}"


def _bind(
    structure: Structure, names: Sequence[str], args: Sequence[object], kwargs: Mapping[str, object]
) -> list[object] | dict[str, object]:
    """The arguments as the reference got them, none of which asks for a gradient."""
    bound = bind_inputs(structure, names, args, kwargs)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in flatten_inputs(bound).tensors):
        raise RuntimeError(
            "this module is a compiled forward pass and has no gradients: "
            "call it under torch.no_grad() or torch.inference_mode(), or use the reference for training"
        )
    return bound


def _form(tensor: torch.Tensor) -> tuple[torch.Size, torch.dtype, torch.device]:
    return tensor.shape, tensor.dtype, tensor.device


def _require_form(
    name: str, tensor: torch.Tensor | None, expected: tuple[torch.Size, torch.dtype, torch.device]
) -> None:
    shape, dtype, device = expected
    wanted = f"{_described(shape, _words(dtype))} on {device}"
    if tensor is None:
        raise RuntimeError(f"the weight {name} is missing: the program was made for {wanted}")
    if _form(tensor) != expected:
        given = f"{_described(tensor.shape, _words(tensor.dtype))} on {tensor.device}"
        raise RuntimeError(f"the weight {name} is {given}; the program was made for {wanted}")


def _words(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _refresh_loaded(module: torch.nn.Module, keys: object) -> None:
    if isinstance(module, StitchModule):
        module.refresh()


__all__ = ["ProgramError", "StitchModule", "forward_only"]
