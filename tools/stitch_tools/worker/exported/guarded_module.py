"""A module of the reference's class whose forward is the program, wherever the program was found to be right.

Everything else (other shapes, types, devices, gradients, a machine without a compiler) is computed by the
reference as before, with one warning for each kind of reason.
"""

import importlib.util
import json
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from stitch_tools.worker.binding import bind_inputs
from stitch_tools.worker.exported.program_build import BuildError, built_library
from stitch_tools.worker.function_module import FunctionModule
from stitch_tools.worker.program_module import ProgramError, StitchModule
from stitch_tools.worker.trees import call_with, flatten_inputs

_GUARD = "_stitch_guard"


class FallbackWarning(RuntimeWarning):
    """The eager reference computes instead of the program."""


class _Refused(Exception):  # noqa: N818 (no fault: the reference computes)
    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


def accelerate(module: torch.nn.Module, folder: Path) -> torch.nn.Module:
    """The module itself, a reference's, whose forward is from now on that of the exported program."""
    kind = type(module)
    guard = Guard(folder)

    def forward(self: torch.nn.Module, *args: object, **kwargs: object) -> object:
        own: Guard = self.__dict__[_GUARD]
        try:
            return own.run(self, args, kwargs)
        except _Refused as refused:
            own.warn(refused)
        return kind.forward(self, *args, **kwargs)

    # Its class changes, not what it holds: state_dict, to, train and hooks stay the reference's own.
    module.__class__ = type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})
    module.__dict__[_GUARD] = guard
    return module


def load(folder: Path, state: Mapping[str, torch.Tensor] | None = None) -> torch.nn.Module:
    """The exported reference's module, accelerated; with the weights of `state`, a state_dict, if given."""
    spec = json.loads((folder / "export.json").read_text(encoding="utf-8"))
    namespace = _executed(folder / "reference", spec["reference_main"], spec["search_path"])
    entry = namespace[spec["entry"]]
    module = _constructed(entry, namespace, spec) if isinstance(entry, type) else entry
    if not isinstance(module, torch.nn.Module):
        module = FunctionModule(module)
    module = accelerate(module, folder)
    module.train(spec["training"])
    if state is not None:
        module.load_state_dict(state)
    return module


class Guard:
    """Decides for each call whether the program may answer it, and calls it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._spec: dict[str, Any] = json.loads((folder / "export.json").read_text(encoding="utf-8"))
        self._structure = json.loads(self._spec["input_structure"]) if self._spec["input_structure"] else None
        self._program: torch.nn.Module | None = None
        self._cannot_build = ""
        self._marks: list[tuple[int, int]] = []
        self._warned: set[str] = set()

    def warn(self, refused: _Refused) -> None:
        """Say once for each kind of reason why the reference computes."""
        if refused.kind not in self._warned:
            self._warned.add(refused.kind)
            words = f"{self._spec['name']}: the eager reference computes, since {refused}"
            warnings.warn(words, FallbackWarning, stacklevel=5)

    def run_alone(
        self, module: torch.nn.Module, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> object:
        """The program's outputs, without gradients: nothing else computes.

        Raises:
            RuntimeError: the program was not made for such a call.
        """
        try:
            with torch.no_grad():
                return self.run(module, args, kwargs)
        except _Refused as refused:
            raise RuntimeError(f"{self._spec['name']}: {refused}") from refused

    def build(self) -> None:
        """Build a native program now, which the first call does else.

        Raises:
            BuildError: there is no compiler, or it fails.
        """
        built_library(self._folder, self._spec)

    def run(self, module: torch.nn.Module, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
        """The program's outputs.

        Raises:
            _Refused: the reference has to compute.
        """
        self._require_fit(module, args, kwargs)
        program = self._opened(module)
        own = self._carried(module, program)
        try:
            with torch.no_grad():
                result = program(*args, **kwargs)
        except (ProgramError, TypeError, ValueError, RuntimeError) as error:
            raise _Refused("program", f"the program refuses: {error}") from error
        for name in self._spec["updated_buffers"]:
            own[name].copy_(_tensors(program)[name])
        if self._spec["updated_buffers"]:
            self._marks = _marks(own)
        return result

    def _require_fit(
        self, module: torch.nn.Module, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> None:
        spec = self._spec
        try:
            bound = bind_inputs(self._structure, spec["input_names"], tuple(args), dict(kwargs))
        except (TypeError, ValueError) as error:
            raise _Refused("arguments", str(error)) from error
        tensors = flatten_inputs(bound).tensors
        if torch.is_grad_enabled() and any(row.requires_grad for row in (*tensors, *module.parameters())):
            raise _Refused(
                "gradients", "gradients are recorded: call it under torch.inference_mode() or no_grad()"
            )
        if spec["mode_matters"] and module.training != spec["training"]:
            raise _Refused("mode", f"the program was made for {'train' if spec['training'] else 'eval'} mode")
        for (name, shape, dtype), tensor in zip(spec["inputs"], tensors):  # noqa: B905 (as bound above)
            if str(tensor.dtype) != f"torch.{dtype}":
                raise _Refused("type", f"input {name} is {tensor.dtype}, made for torch.{dtype}")
            if tensor.device.type != spec["device"]:
                raise _Refused(
                    "device", f"input {name} is on {tensor.device}, and the program on {spec['device']}"
                )
            _require_shape(name, list(tensor.shape), shape, fixed=spec["fixed_shapes"])
            if spec["arch"] and tensor.is_cuda:
                _require_arch(spec["arch"], tensor.device)

    def _opened(self, module: torch.nn.Module) -> torch.nn.Module:
        if self._program is None and not self._cannot_build:
            try:
                # What is made under inference_mode keeps no count of writes, by which a program sees them.
                with torch.inference_mode(False), torch.no_grad():
                    self._program = self._open(module)
            except (BuildError, ProgramError, RuntimeError, OSError, ImportError) as error:
                self._cannot_build = str(error) or type(error).__name__
        if self._program is None:
            raise _Refused("build", self._cannot_build)
        return self._program

    def _open(self, module: torch.nn.Module) -> torch.nn.Module:
        spec = self._spec
        if spec["format"] == "kernelbench":
            return self._python_program()
        own = _tensors(module)
        self._require_names(own, spec["weights"])
        return StitchModule(
            str(built_library(self._folder, spec)),
            {name: own[name] for name in spec["weights"]},
            output_structure=spec["output_structure"],
            input_structure=spec["input_structure"],
            input_names=spec["input_names"],
            input_specs=spec["inputs"],
            name=spec["name"],
            libraries=[_found(name) for name in spec["libraries"]],
            device=spec["device"],
            updated_buffers=spec["updated_buffers"],
            training=spec["training"],
        )

    def _python_program(self) -> torch.nn.Module:
        spec = self._spec
        reference = _executed(self._folder / "reference", spec["reference_main"], spec["search_path"])
        program = _executed(self._folder / "program", spec["main"], ["."])
        made = _constructed(program["ModelNew"], reference, spec)
        return made.to(spec["device"]).train(spec["training"])

    def _carried(self, module: torch.nn.Module, program: torch.nn.Module) -> dict[str, torch.Tensor]:
        """The module's weights, after the program has them as they are now."""
        own, marks = _tensors(module), self._marks
        if (now := _marks(own)) != marks:
            held = _tensors(program)
            self._require_names(own, held)
            for name, tensor in held.items():
                given = own[name]
                if (given.shape, given.dtype, given.device) != (tensor.shape, tensor.dtype, tensor.device):
                    words = f"{given.dtype}{list(given.shape)} on {given.device}"
                    raise _Refused("weights", f"the weight {name} is {words}, which it was not made for")
            with torch.inference_mode(False), torch.no_grad():
                for name, tensor in held.items():
                    tensor.copy_(own[name])
            self._marks = now
        return own

    def _require_names(self, own: Mapping[str, object], needed: Mapping[str, object] | Sequence[str]) -> None:
        if missing := [name for name in needed if name not in own]:
            raise _Refused("weights", f"the module has no weight {missing[0]}, which the program needs")


def _tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    parameters = module.named_parameters(remove_duplicate=False)
    return {**dict(parameters), **dict(module.named_buffers(remove_duplicate=False))}


def _marks(tensors: Mapping[str, torch.Tensor]) -> list[tuple[int, int]]:
    """What changes where a weight is written to or exchanged."""
    return [(row.data_ptr(), -1 if row.is_inference() else row._version) for row in tensors.values()]


def _require_shape(name: str, given: list[int], made_for: list[int], *, fixed: bool) -> None:
    if given == made_for:
        return
    # The judge tried one other leading size; nothing is known of other inner sizes.
    if fixed or len(given) != len(made_for) or not given or given[1:] != made_for[1:]:
        raise _Refused("shape", f"input {name} has shape {given}, and the program was made for {made_for}")


def _require_arch(arch: str, device: torch.device) -> None:
    major, minor = torch.cuda.get_device_capability(device)
    if arch.rstrip("af") != f"sm_{major}{minor}":
        raise _Refused("device", f"{device} is sm_{major}{minor}, and the program was made for {arch}")


def _found(library: str) -> str:
    """A library of this Python's environment, else what the system finds by that name."""
    here = Path(sys.prefix) / "lib" / library
    return str(here) if here.is_file() else library


def _executed(folder: Path, main: str, search_path: Sequence[str]) -> dict[str, Any]:
    """The names of a file that was executed, its own folders importable meanwhile."""
    path = folder / main
    added = [str(folder / name) for name in search_path] + [str(path.parent)]
    spec = importlib.util.spec_from_file_location(f"stitch_exported_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    namespace = importlib.util.module_from_spec(spec)
    sys.path[:0] = added
    try:
        spec.loader.exec_module(namespace)
    finally:
        for name in added:
            sys.path.remove(name)
    return vars(namespace)


def _constructed(kind: Callable[..., Any], namespace: Mapping[str, Any], spec: Mapping[str, Any]) -> Any:
    maker = namespace.get(spec["init_inputs"] or "")
    return call_with(kind, maker() if maker else ())
