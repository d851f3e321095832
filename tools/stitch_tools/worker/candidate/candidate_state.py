"""What the worker holds: the program, its weights, and the memory of its current inputs and outputs."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from stitch_tools.protocol import memory
from stitch_tools.protocol.layout import BUFFER, GUARD
from stitch_tools.protocol.memory import PackEntry
from stitch_tools.worker.aliased_inputs import SharedPlace, places_of, reunite
from stitch_tools.worker.candidate.device_pack import DevicePack
from stitch_tools.worker.candidate.earlier_calls import EarlierCalls
from stitch_tools.worker.candidate.python_program import PythonProgram
from stitch_tools.worker.candidate.shared_memory import SharedMemory
from stitch_tools.worker.plain_calls import copy_plainly, wait_for_device
from stitch_tools.worker.runtime.native import NativeProgram, ProgramError, make_workspace
from stitch_tools.worker.tensors import dtype_name, map_pack
from stitch_tools.worker.timed.loop import NativeRunner
from stitch_tools.worker.trees import (
    Structure,
    TreeError,
    arranged,
    fresh_copy,
    other_container,
    raw_values,
    unflatten,
)


@dataclass
class Outputs:
    """The controller's output memory, and what the program writes to (the same on a CPU)."""

    targets: list[torch.Tensor]
    """In the pack: outputs."""
    state_targets: list[torch.Tensor]
    """In the pack: updated buffers, which hold their present values."""
    outputs: list[torch.Tensor]
    state: list[torch.Tensor]
    pack: DevicePack | None = None
    """On a device: the copy of the pack that `outputs` and `state` lie in."""


class CandidateState:
    """Everything between two requests; `program` is for handlers that other rooms add."""

    def __init__(self) -> None:
        self.native: NativeProgram | None = None
        self.python: PythonProgram | None = None
        self.runner: NativeRunner | None = None
        """The timed loop, where this worker is timed; loaded before the program."""
        self.tracer: object = None
        """What watches who does the work, where this worker is traced (activity/run.py)."""
        self.device = "cpu"
        self.shared_memory: SharedMemory | None = None
        """On a GPU: what is spoiled before each call whose outputs are compared."""
        self.threads = 0
        self.inputs: list[torch.Tensor] = []
        self.outputs: Outputs | None = None
        """The memory of the last call's outputs."""
        self.returned: tuple[torch.Tensor, ...] = ()
        """What the last call of a `ModelNew` returned, in its own memory."""
        self.earlier = EarlierCalls()
        self.held: list[str] = []
        """Outputs of the last call of a `ModelNew` that lie in its inputs' memory."""
        self.container = ""
        """In which other containers than the reference's it returned them."""
        self.parameters: list[tuple[str, torch.Tensor]] = []
        """Of a native program; a `ModelNew` makes its own, and a copy would take as much of the GPU again."""
        self.buffer_names: tuple[str, ...] = ()
        self._kept: dict[str, str] = {}
        """Hashes of the buffers that no call may change, as they were before the first."""
        self.structure: Structure = ["tuple"]

    @property
    def stream(self) -> int:
        """The stream that work is ordered on, as an address; 0 on a CPU."""
        return torch.cuda.current_stream().cuda_stream if self.device.startswith("cuda") else 0

    def load_native(self, path: str, libraries: Sequence[str], device: str, threads: int) -> None:
        """Load a built library.

        Raises:
            ProgramError: it cannot be loaded.
        """
        self._take_device(device)
        self.threads = threads
        self.native = NativeProgram(path, libraries)

    def load_python(self, folder: str, main: str, device: str) -> None:
        """Load a file with `ModelNew`.

        Raises:
            ProgramError: it cannot be loaded.
        """
        self._take_device(device)
        self.python = PythonProgram(folder, main, device=device)

    def init_native(
        self, program: NativeProgram, parameters: list[tuple[str, torch.Tensor]], kept: Sequence[str]
    ) -> None:
        """Weights to a native program; the buffers `kept` hold before every call what they hold now.

        Raises:
            ProgramError: the program refuses or fails.
        """
        self.parameters = [(name, self._placed(tensor)) for name, tensor in parameters]
        self.keep(kept)
        program.init(self.parameters, device=self.device, stream=self.stream, threads=self.threads)
        self._synchronize()

    def keep(self, names: Sequence[str]) -> None:
        """Remember what these buffers hold now."""
        self._kept = self._digests(names)

    def changed_buffers(self) -> list[str]:
        """Names of the buffers that hold something else than they were remembered with."""
        present = self._digests(list(self._kept))
        return [name for name, digest in self._kept.items() if present.get(name) != digest]

    def _digests(self, names: Sequence[str]) -> dict[str, str]:
        """Hashes of the program's buffers: a `ModelNew`'s own, or what a native program was given."""
        module = self.python.module if self.python is not None else None
        buffers = self.parameters if module is None else list(module.named_buffers())
        return {name: _digest(tensor) for name, tensor in buffers if name in names}

    def take_inputs(
        self,
        fd: int,
        manifest: list[PackEntry],
        *,
        shared: bool,
        reuse: bool,
        places: Sequence[SharedPlace] = (),
    ) -> list[torch.Tensor]:
        """The inputs in fresh memory, or (`reuse`) in the memory of the inputs before.

        `places` says which of them lie in each other's memory. Returns the pack's tensors, if `shared`.
        """
        mapped = map_pack(fd, manifest, writable=True, private=not shared)
        placed = reunite([self._placed(tensor) for tensor in mapped], places)
        fits = len(self.inputs) == len(placed) and all(
            old.shape == new.shape and old.stride() == new.stride() and old.dtype == new.dtype
            for old, new in zip(self.inputs, placed, strict=True)
        )
        if reuse and fits:
            for old, new in zip(self.inputs, placed, strict=True):
                # `data` has a version counter of its own: others write to memory without telling torch, too.
                raw_values(old.data).copy_(raw_values(new))
        else:
            self.inputs = placed
        return mapped if shared else []

    def give_back(self, mapped: Sequence[torch.Tensor]) -> None:
        """Put what the inputs hold now into the shared tensors that they came in."""
        copy_plainly(mapped, self.inputs)
        self._synchronize()

    def map_outputs(self, fd: int, layout: list[PackEntry], *, again: bool = False) -> Outputs:
        """The judge's output memory; where the program cannot write to it, memory that is copied back later.

        With `again` it is the memory of the call before, at the addresses that the program knows.
        """
        if again and self.outputs is not None:
            if self.outputs.pack is not None:
                self.outputs.pack.copy_in()
            return self.outputs
        # With the guards: memory of a GPU is mapped whole or not at all.
        mapped = map_pack(fd, layout, writable=True, private=False)
        wanted = [pair for pair in zip(layout, mapped, strict=True) if pair[0]["name"] != GUARD]
        rows, targets = _unzip([pair for pair in wanted if not pair[0]["name"].startswith(BUFFER)])
        buffers, state_targets = _unzip([pair for pair in wanted if pair[0]["name"].startswith(BUFFER)])
        self.buffer_names = tuple(entry["name"].removeprefix(BUFFER) for entry in buffers)
        self.outputs = Outputs(targets, state_targets, targets, state_targets)
        # A ModelNew makes outputs of its own; into memory of the GPU a program can write.
        reached = not self.device.startswith("cuda") or memory.is_on_device(fd)
        if self.native is not None and not reached:
            pack = DevicePack(fd, self.device)
            self.outputs = Outputs(targets, state_targets, pack.views(rows), pack.views(buffers), pack)
        return self.outputs

    def run(self, outputs: Outputs, generator_state: bytes, wanted: Structure) -> bytes:
        """One forward on the inputs; the generator's state after that of a `ModelNew`. Raises as both do."""
        if self.native is None:
            return self.run_python(outputs, generator_state, wanted)
        self.run_native(self.native, outputs)
        return b""

    def run_native(self, program: NativeProgram, outputs: Outputs) -> None:
        """Plan and run one forward of a native program.

        Raises:
            ProgramError: refused, failed, or it announces other outputs (status `other_outputs`).
        """
        planned = program.plan(self.inputs)
        _match(planned.outputs, outputs.outputs)
        workspace = make_workspace(planned.workspace_bytes, self.device)
        prepared = program.prepare(
            self.inputs, outputs.outputs, state=outputs.state, workspace=workspace, stream=self.stream
        )
        self._spoil()
        program.call(prepared)
        self._synchronize()
        if outputs.pack is not None:
            outputs.pack.copy_back()

    def run_python(self, outputs: Outputs, generator_state: bytes, wanted: Structure) -> bytes:
        """Run one forward of a `ModelNew`; returns the generator state after it.

        `wanted` is the structure that its outputs must have (see `arranged`).

        Raises:
            ProgramError: failed, or its outputs are others (status `other_outputs`).
        """
        if self.python is None:
            raise ProgramError("error", "forward", "no Python program is loaded")
        self.python.set_buffers(list(zip(self.buffer_names, outputs.state_targets, strict=True)))
        self._spoil()
        flat, end = self.python.run(unflatten(self.structure, self.inputs), generator_state)
        self.container = other_container(flat, wanted)
        try:
            flat = arranged(flat, wanted)
        except TreeError as error:
            raise ProgramError("other_outputs", "outputs", str(error)) from error
        _match(tuple((tuple(tensor.shape), tensor.dtype) for tensor in flat.tensors), outputs.outputs)
        if any(str(tensor.device).split(":")[0] != self.device.split(":")[0] for tensor in flat.tensors):
            raise ProgramError("other_outputs", "forward", f"an output is not on {self.device}")
        copy_plainly(outputs.targets, flat.tensors)
        buffers = dict(self.python.module.named_buffers()) if self.python.module is not None else {}
        for target, name in zip(outputs.state_targets, self.buffer_names, strict=False):
            if name in buffers:
                copy_plainly([target], [buffers[name]])
        self._synchronize()
        self.returned = flat.tensors
        places = places_of([*self.inputs, *flat.tensors])[len(self.inputs) :]
        self.held = [
            name for name, place in zip(flat.names, places, strict=True) if place.root < len(self.inputs)
        ]
        return end

    def _take_device(self, device: str) -> None:
        self.device = device
        if device.startswith("cuda"):
            self.shared_memory = SharedMemory()

    def _spoil(self) -> None:
        # Where launches are traced every kernel counts, and one of ours is none of the program's.
        if self.shared_memory is not None and self.tracer is None:
            self.shared_memory.spoil(self.stream)

    def _placed(self, tensor: torch.Tensor) -> torch.Tensor:
        return fresh_copy(tensor, self.device) if self.device.startswith("cuda") else tensor

    def _synchronize(self) -> None:
        if self.device.startswith("cuda"):
            wait_for_device()


def _unzip(pairs: list[tuple[PackEntry, torch.Tensor]]) -> tuple[list[PackEntry], list[torch.Tensor]]:
    return [entry for entry, _ in pairs], [tensor for _, tensor in pairs]


def _match(announced: tuple[tuple[tuple[int, ...], torch.dtype], ...], expected: list[torch.Tensor]) -> None:
    wanted = tuple((tuple(tensor.shape), tensor.dtype) for tensor in expected)
    if announced != wanted:
        raise ProgramError("other_outputs", "outputs", f"gives {_text(announced)}, expected {_text(wanted)}")


def _text(specs: tuple[tuple[tuple[int, ...], torch.dtype], ...]) -> str:
    return ", ".join(f"{dtype_name(dtype)}{list(shape)}" for shape, dtype in specs) or "no outputs"


def _digest(tensor: torch.Tensor) -> str:
    # A dense copy on the host: a view's own strides do not matter, a NaN's bits do.
    raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    digest = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
    digest.update(raw.numpy().data)
    return digest.hexdigest()
