"""A built native program as a torch module, for use outside of any harness. Forward only."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from stitch_tools.worker.binding import bind_inputs
from stitch_tools.worker.candidate.native import NativeProgram, ProgramError, make_workspace
from stitch_tools.worker.trees import flatten_inputs, unflatten

TensorSpec = tuple[str, Sequence[int], str]
"""Name, shape and type of a tensor; the type is torch's name without the prefix."""


class StitchModule(torch.nn.Module):
    """Calls a native program where the reference was called.

    Parameters and buffers are kept under the reference's names, so `state_dict` and `load_state_dict` work;
    after loading other weights, `refresh` hands them to the program (loading does so itself).
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
        self._device = torch.device(device)
        self._names: dict[str, str] = {}
        for name, tensor in parameters.items():
            # Qualified names contain dots, which torch forbids in one module's own names.
            self._names[name] = name.replace(".", "/")
            self.register_buffer(self._names[name], tensor.detach().to(self._device).clone())
        self._register_state_dict_hook(_rename_out(self._names))
        self.register_load_state_dict_pre_hook(_rename_in(self._names))
        self.register_load_state_dict_post_hook(lambda module, keys: module.refresh())
        self._program = NativeProgram(library, libraries)
        self.refresh()

    def refresh(self) -> None:
        """Give the program the present weights.

        Raises:
            ProgramError: it refuses them.
        """
        named = [(name, getattr(self, own)) for name, own in self._names.items()]
        self._program.init(named, device=self._device, stream=self._stream(), threads=self._threads)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The reference's outputs.

        Raises:
            TypeError: arguments are missing, unknown or of another kind than the reference's were.
            ValueError: a number or another constant differs from the one that is part of the program.
            RuntimeError: a gradient is asked for; the program has no backward.
            ProgramError: the program does not support inputs like these, or fails.
        """
        bound = _bind(self._inputs, self._input_names, args, kwargs)
        inputs = [tensor.detach().to(self._device) for tensor in flatten_inputs(bound).tensors]
        try:
            planned = self._program.plan(inputs)
        except ProgramError as error:
            words = [error.message, *_differences(self._input_specs, inputs)]
            raise ProgramError(error.status, error.step, "; ".join(filter(None, words))) from None
        outputs = [torch.empty(shape, dtype=dtype, device=self._device) for shape, dtype in planned.outputs]
        state = [getattr(self, self._names[name]) for name in self._updated]
        workspace = make_workspace(planned.workspace_bytes, self._device)
        self._program.call(
            self._program.prepare(inputs, outputs, state=state, workspace=workspace, stream=self._stream())
        )
        return unflatten(self._structure, outputs)

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
        return self

    def _stream(self) -> int:
        return torch.cuda.current_stream(self._device).cuda_stream if self._device.type == "cuda" else 0


def forward_only(
    module: torch.nn.Module, *, input_structure: str = "", input_names: Sequence[str] = ()
) -> torch.nn.Module:
    """The module itself, whose calls from now on refuse what a StitchModule refuses.

    Args:
        module: a program in Python.
        input_structure: ReferenceFacts.input_structure; "" compares no constants.
        input_names: ReferenceFacts.input_names.
    """
    structure = json.loads(input_structure) if input_structure else None

    def bind(_: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        bound = _bind(structure, input_names, args, kwargs)
        return ((), bound) if isinstance(bound, dict) else (tuple(bound), {})

    module.register_forward_pre_hook(bind, with_kwargs=True)
    return module


def _differences(specs: Sequence[TensorSpec], inputs: Sequence[torch.Tensor]) -> list[str]:
    """One text for each input whose shape or type is another than expected."""
    found: list[str] = []
    for (name, shape, dtype), tensor in zip(specs, inputs, strict=False):
        expected = _described(shape, dtype)
        given = _described(tensor.shape, str(tensor.dtype).removeprefix("torch."))
        if given != expected:
            found.append(f"input {name}: made for {expected}, given {given}")
    return found


def _described(shape: Sequence[int], dtype: str) -> str:
    return f"{dtype}{list(shape)}"


def _bind(structure: Any, names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The arguments as the reference got them, none of which asks for a gradient."""
    bound = bind_inputs(structure, names, args, kwargs)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in flatten_inputs(bound).tensors):
        raise RuntimeError(
            "this module is a compiled forward pass and has no gradients: "
            "call it under torch.no_grad() or torch.inference_mode(), or use the reference for training"
        )
    return bound


def _rename_out(names: dict[str, str]) -> Any:
    def hook(module: torch.nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
        for name, own in names.items():
            state[prefix + name] = state.pop(prefix + own)

    return hook


def _rename_in(names: dict[str, str]) -> Any:
    def hook(module: torch.nn.Module, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        for name, own in names.items():
            if prefix + name in state and own != name:
                state[prefix + own] = state.pop(prefix + name)

    return hook


__all__ = ["ProgramError", "StitchModule", "forward_only"]
