"""A KernelBench-style program: a Python file with `ModelNew`, constructed like the reference."""

import contextlib
import functools
import importlib.util
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from stitch_tools.protocol.memory_faults import is_out_of_memory
from stitch_tools.worker.order_one_weights import Scale, order_one_weights
from stitch_tools.worker.plain_state import PlainState
from stitch_tools.worker.random_streams import pack_torch_state, unpack_torch_state
from stitch_tools.worker.runtime.native import ProgramError
from stitch_tools.worker.trees import (
    Flat,
    TreeError,
    call_with,
    flatten_outputs,
)

ENTRY = "ModelNew"
KERNEL = "custom_kernel"
"""What GPU-MODE's submissions define: a function in place of a module."""
REFERENCE_ENTRY = "Model"
# What a broken device is told by; older versions of torch raise plain RuntimeErrors.
_FAULTS: tuple[type[Exception], ...] = tuple(filter(None, (getattr(torch, "AcceleratorError", None),)))


class _Kernel(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: object, **kwargs: object) -> object:
        return self.function(*args, **kwargs)


class PythonProgram:
    """The loaded file and one `ModelNew` instance."""

    def __init__(self, folder: str, main: str, *, device: str = "cpu") -> None:
        """Execute the file.

        Raises:
            ProgramError: it fails (a kernel that does not compile, for one) or defines no `ModelNew`.
        """
        path = Path(folder) / main
        self.device = device
        sys.path.insert(0, str(path.parent))
        spec = importlib.util.spec_from_file_location("stitch_candidate", path)
        if spec is None or spec.loader is None:
            raise ProgramError("not_loadable", "load", f"{main} is not a Python file")
        namespace = importlib.util.module_from_spec(spec)
        sys.modules["stitch_candidate"] = namespace
        try:
            spec.loader.exec_module(namespace)
        except Exception as error:  # the candidate's outermost frame: its file may raise anything
            raise ProgramError("not_loadable", "load", _short(error)) from error
        entry = getattr(namespace, ENTRY, None)
        if entry is None and callable(kernel := getattr(namespace, KERNEL, None)):
            entry = functools.partial(_Kernel, kernel)
        if entry is None:
            hint = (
                f": it defines {REFERENCE_ENTRY}; rename to {ENTRY}"
                if hasattr(namespace, REFERENCE_ENTRY)
                else ""
            )
            raise ProgramError("not_loadable", "load", f"{main} defines no {ENTRY}{hint}")
        self._entry: Callable[..., torch.nn.Module] = entry
        self.module: torch.nn.Module | None = None
        self._attributes: PlainState | None = None
        self._buffers: dict[str, torch.Tensor] = {}

    def init(
        self,
        generator_state: bytes,
        arguments: object,
        scale: Scale | None = None,
        *,
        training: bool = True,
        state: Sequence[tuple[str, torch.Tensor]] = (),
        reset: Sequence[str] = (),
    ) -> bool:
        """Construct `ModelNew` from the generator state that the reference was constructed from.

        With `scale` its parameters get the same values of order 1 as the reference's. Where the reference is
        not in `training` mode, so is the program; else it is left as its constructor made it, as KernelBench
        does. Where its weights have the names and shapes of `state` and other values (it draws them in
        another order, or expects `load_state_dict`), they are loaded from there; returns whether they were.
        Buffers and plain attributes named in `reset` are before each call what they are now.

        Raises:
            ProgramError: the constructor fails.
        """
        self.module = None
        if generator_state:
            unpack_torch_state(generator_state)
        weights = order_one_weights(generator_state, scale) if scale else contextlib.nullcontext()
        try:
            with weights:
                module = call_with(self._entry, arguments)
            if not training:
                module.eval()
            self.module = module.to(self.device)
            self._attributes = PlainState(module, reset) if reset else None
            self._buffers = {name: value.clone() for name, value in module.named_buffers() if name in reset}
        except Exception as error:  # the candidate's outermost frame: its constructor may raise anything
            raise ProgramError(_status(error), "constructor", _short(error)) from error
        given = dict(state)
        try:
            own = self.module.state_dict()
            known = [(tensor, given[name]) for name, tensor in own.items() if name in given]
            return not all(_same_values(*pair) for pair in known) and self.reload(state) is None
        except Exception:  # hooks of the candidate's: what it was constructed with is judged
            return False

    def reload(self, parameters: Sequence[tuple[str, torch.Tensor]]) -> str | None:
        """Load weights in place, as `load_state_dict` does; None when done, else why it cannot be."""
        module, given = self._need(), dict(parameters)
        own = module.state_dict()
        if not own:
            return "the program has no parameters" if given else None
        if not own.keys() <= given.keys():
            return "the program's parameters have other names"
        if any(tensor.shape != given[name].shape for name, tensor in own.items()):
            return "the program's parameters have other shapes"
        try:
            module.load_state_dict({name: given[name] for name in own})
        except Exception as error:  # hooks of the candidate's
            return f"load_state_dict: {_short(error)}"
        self._buffers |= {name: given[name].clone() for name in self._buffers if name in own}
        return None

    def set_buffers(self, values: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Put the present values of updated buffers into the buffers of these names, where there are such."""
        buffers = dict(self._need().named_buffers())
        with torch.no_grad():
            for name, value in values:
                if name in buffers and buffers[name].shape == value.shape:
                    buffers[name].copy_(value)

    def call(self, arguments: object) -> object:
        """What forward returns, on plain attributes as they were after `init`."""
        if self._attributes is not None:
            self._attributes.restore()
        return call_with(self._need(), arguments)

    def run(self, arguments: object, generator_state: bytes) -> tuple[Flat, bytes]:
        """Outputs of one forward, and the generator's state after it.

        Raises:
            ProgramError: forward fails, or returns what cannot be an output.
        """
        self.set_buffers(list(self._buffers.items()))
        if generator_state:
            unpack_torch_state(generator_state)
        try:
            with torch.no_grad():
                raw = self.call(arguments)
            flat = flatten_outputs(raw)
        except TreeError as error:
            raise ProgramError("error", "forward", str(error)) from error
        except Exception as error:  # the candidate's outermost frame: its forward may raise anything
            raise ProgramError(_status(error), "forward", _short(error)) from error
        for name, tensor in zip(flat.names, flat.tensors, strict=True):
            if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
                raise ProgramError(
                    "error", "forward", f"output {name} is a {type(tensor).__name__}, not a tensor"
                )
        return flat, pack_torch_state()

    def _need(self) -> torch.nn.Module:
        if self.module is None:
            raise ProgramError("error", "forward", "init comes first")
        return self.module


def _same_values(own: torch.Tensor, given: torch.Tensor) -> bool:
    return own.shape == given.shape and torch.equal(own.cpu(), given.to("cpu", own.dtype))


def _status(error: BaseException) -> str:
    # A native segment answers with a status of its own; Python's own refusal is NotImplementedError.
    if getattr(error, "status", None) == "unsupported" or isinstance(error, NotImplementedError):
        return "unsupported"
    if is_out_of_memory(error):
        return "out_of_memory"
    # What the device says (an access beyond its memory, say) is none of the program's own words.
    return "error" if isinstance(error, _FAULTS) or "CUDA error" in str(error) else "raised"


def _short(error: BaseException) -> str:
    """The message and the innermost lines of the program's own."""
    return "".join(traceback.format_exception(error, limit=-4)).strip()[-4000:]
