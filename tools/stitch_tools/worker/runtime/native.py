"""A built native program: loaded, initialised with named tensors, planned and called."""

import ctypes
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from stitch_tools.worker.runtime import abi

WORKSPACE_ALIGNMENT = 256


class ProgramError(Exception):
    """The program refused or failed. `status` is ok's opposite: error, unsupported, out_of_memory, ..."""

    def __init__(self, status: str, step: str, message: str) -> None:
        super().__init__(f"{step}: {message or status}")
        self.status = status
        self.step = step
        self.message = message


@dataclass(frozen=True)
class Planned:
    """What the program announces for inputs of one shape."""

    outputs: tuple[tuple[tuple[int, ...], torch.dtype], ...]
    """Shape and type of each output, dense and row-major."""
    workspace_bytes: int
    capturable: bool
    inplace_state: bool


@dataclass(frozen=True)
class PreparedCall:
    """Everything one `stitch_forward` needs, ready to be called many times; keeps its tensors alive."""

    args: abi.ForwardArgs
    keep: tuple[object, ...]


class NativeProgram:
    """One loaded library and one handle of it.

    Use: construct, `init`, then for each shape `plan`, `prepare` and `call`.
    `init` again replaces the handle.
    """

    def __init__(self, path: str, libraries: Sequence[str] = ()) -> None:
        """Load the library after the `libraries` that it finds by soname.

        Raises:
            ProgramError: it cannot be loaded, lacks a function, or was built for another ABI version.
        """
        self._opened = (path, tuple(libraries))
        for library in libraries:
            try:
                ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL | os.RTLD_NOW)
            except OSError as error:
                raise ProgramError("missing_library", "preload", str(error)) from error
        try:
            # RTLD_LOCAL: two programs may define the same names.
            self.library = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL)
            abi.bind(self.library)
        except (OSError, AttributeError) as error:
            raise ProgramError("not_loadable", "load", str(error)) from error
        version = self.library.stitch_abi_version()
        if version != abi.ABI_VERSION:
            raise ProgramError("not_loadable", "load", f"built for ABI {version}, this is {abi.ABI_VERSION}")
        self.handle = ctypes.c_void_p()
        self.lock = threading.RLock()
        """For calls from several threads: a handle takes one at a time, and `init` frees the last."""
        self._parameters: tuple[object, ...] = ()

    def __reduce__(self) -> tuple[type["NativeProgram"], tuple[str, tuple[str, ...]]]:
        # A handle belongs to one object: a copy has none until its own `init`.
        return NativeProgram, self._opened

    def init(
        self,
        parameters: Sequence[tuple[str, torch.Tensor]],
        *,
        device: torch.device | str = "cpu",
        stream: int = 0,
        threads: int = 0,
    ) -> None:
        """Give the program its weights; the tensors stay alive until the next `init` or `close`.

        Raises:
            ProgramError: the program refuses or fails.
        """
        array = (abi.NamedTensor * max(1, len(parameters)))()
        keep: list[object] = [array]
        for entry, (name, tensor) in zip(array, parameters, strict=False):
            entry.struct_size = ctypes.sizeof(abi.NamedTensor)
            entry.name = name.encode("utf-8")
            keep.extend(abi.fill_tensor(entry.tensor, tensor))
        args = abi.InitArgs(
            ctypes.sizeof(abi.InitArgs),
            len(parameters),
            array,
            abi.device_of(torch.device(device)),
            stream,
            threads,
        )
        fresh = ctypes.c_void_p()
        status = self.library.stitch_init(ctypes.byref(args), ctypes.byref(fresh))
        if status != abi.OK:
            message = self._last_error(fresh)
            self.library.stitch_free(fresh)
            raise ProgramError(_status_name(status), "stitch_init", message)
        self.close()
        self.handle, self._parameters = fresh, (*keep, args)

    def plan(self, inputs: Sequence[torch.Tensor]) -> Planned:
        """Outputs and workspace for inputs like these.

        Raises:
            ProgramError: status `unsupported` when the program refuses such inputs.
        """
        array, keep = _tensor_array(inputs)
        specs = (abi.AbiTensorSpec * abi.MAX_OUTPUTS)()
        for spec in specs:
            spec.struct_size = ctypes.sizeof(abi.AbiTensorSpec)
        plan = abi.AbiPlan(ctypes.sizeof(abi.AbiPlan), abi.MAX_OUTPUTS, 0, specs, 0, 0)
        status = self.library.stitch_plan(self.handle, array, len(inputs), ctypes.byref(plan))
        if status != abi.OK:
            raise ProgramError(_status_name(status), "stitch_plan", self._last_error(self.handle))
        del keep
        if not 0 <= plan.num_outputs <= abi.MAX_OUTPUTS:
            raise ProgramError("error", "stitch_plan", f"announces {plan.num_outputs} outputs")
        return Planned(
            tuple(_read_spec(spec) for spec in specs[: plan.num_outputs]),
            plan.workspace_bytes,
            bool(plan.flags & abi.CAPTURABLE),
            bool(plan.flags & abi.INPLACE_STATE),
        )

    def prepare(
        self,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        *,
        state: Sequence[torch.Tensor] = (),
        workspace: torch.Tensor | None = None,
        stream: int = 0,
    ) -> PreparedCall:
        """The arguments of `stitch_forward` over these tensors."""
        in_array, keep_in = _tensor_array(inputs)
        state_array, keep_state = _tensor_array(state)
        out_array, keep_out = _tensor_array(outputs)
        args = abi.ForwardArgs(
            ctypes.sizeof(abi.ForwardArgs),
            in_array,
            state_array,
            out_array,
            len(inputs),
            len(state),
            len(outputs),
            workspace.data_ptr() if workspace is not None else None,
            workspace.numel() if workspace is not None else 0,
            stream,
        )
        return PreparedCall(
            args, (in_array, state_array, out_array, workspace, *keep_in, *keep_state, *keep_out)
        )

    def call(self, prepared: PreparedCall) -> None:
        """Run one forward.

        Raises:
            ProgramError: the program returned an error.
        """
        status = self.library.stitch_forward(self.handle, ctypes.byref(prepared.args))
        if status != abi.OK:
            raise ProgramError(_status_name(status), "stitch_forward", self._last_error(self.handle))

    def close(self) -> None:
        """Free the handle; the library stays loaded."""
        if self.handle:
            self.library.stitch_free(self.handle)
        self.handle, self._parameters = ctypes.c_void_p(), ()

    def _last_error(self, handle: ctypes.c_void_p) -> str:
        text = self.library.stitch_last_error(handle)
        return (text or b"").decode("utf-8", "replace")[:2000]


def make_workspace(size: int, device: torch.device | str = "cpu") -> torch.Tensor | None:
    """Aligned scratch memory full of NaN patterns, None for size 0."""
    if size == 0:
        return None
    raw = torch.full((size + WORKSPACE_ALIGNMENT,), 0xFF, dtype=torch.uint8, device=device)
    start = -raw.data_ptr() % WORKSPACE_ALIGNMENT
    return raw[start : start + size]


def _tensor_array(tensors: Sequence[torch.Tensor]) -> tuple[ctypes.Array[abi.DLTensor], list[object]]:
    array = (abi.DLTensor * max(1, len(tensors)))()
    keep: list[object] = []
    for entry, tensor in zip(array, tensors, strict=False):
        keep.extend(abi.fill_tensor(entry, tensor))
    return array, keep


def _read_spec(spec: abi.AbiTensorSpec) -> tuple[tuple[int, ...], torch.dtype]:
    dtype = abi.DTYPES.get((spec.dtype.code, spec.dtype.bits))
    if dtype is None or not 0 <= spec.ndim <= abi.MAX_DIMS:
        raise ProgramError(
            "error",
            "stitch_plan",
            f"announces an output of {spec.ndim} dimensions, type code {spec.dtype.code}",
        )
    return tuple(spec.shape[: spec.ndim]), dtype


def _status_name(status: int) -> str:
    return abi.STATUS_NAMES.get(status, "error")
