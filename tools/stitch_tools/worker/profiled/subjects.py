"""What is profiled, loaded and ready to be called: a reference, a `ModelNew`, or a native program."""

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from stitch_tools.protocol.messages_reference import ReferenceSource
from stitch_tools.worker.candidate.python_program import PythonProgram
from stitch_tools.worker.precision import set_precision
from stitch_tools.worker.random_streams import seed_generators
from stitch_tools.worker.reference.draws import InputBounds, make_draw
from stitch_tools.worker.reference.load_reference import LoadedReference
from stitch_tools.worker.runtime.native import NativeProgram, make_workspace
from stitch_tools.worker.tensors import map_pack
from stitch_tools.worker.trees import call_with, fresh_copy, unflatten


@dataclass(frozen=True)
class ProfiledSubject:
    """Something that can be called again and again."""

    call: Callable[[], object]
    module: torch.nn.Module | None = None
    """Whose submodules get a range each; None of a native program."""


def load_subject(job: dict[str, Any], fds: Sequence[int]) -> ProfiledSubject:
    """The subject of a job, its weights and inputs in place.

    Raises:
        ReferenceFault, ProgramError: it cannot be loaded.
    """
    set_precision(job["matmul_precision"], job["conv_precision"])
    kind = job["kind"]
    if kind == "reference":
        return _reference(job)
    return _python(job, fds) if kind == "python" else _native(job, fds)


def _reference(job: dict[str, Any]) -> ProfiledSubject:
    source = dict(job["source"])
    source["search_path"] = tuple(source["search_path"])
    reference = LoadedReference(ReferenceSource(**source))
    module, _ = reference.construct(job["weights_seed"])
    arguments = make_draw(reference, "own-1", job["input_seed"], InputBounds())
    seed_generators(job["input_seed"] ^ 1)
    with reference.blame("forward", module, arguments), torch.inference_mode():
        call_with(module, arguments)
    return ProfiledSubject(lambda: call_with(module, arguments), module)


def _python(job: dict[str, Any], fds: Sequence[int]) -> ProfiledSubject:
    program = PythonProgram(job["folder"], job["main"], device=job["device"])
    init = map_pack(fds[0], job["init"], writable=True)
    generator = base64.b64decode(job["generator"])
    program.init(generator, unflatten(job["init_structure"], init), training=job["training"])
    mapped = map_pack(fds[1], job["inputs"], writable=True)
    arguments = unflatten(job["structure"], [fresh_copy(tensor, job["device"]) for tensor in mapped])
    program.run(arguments, b"")
    return ProfiledSubject(lambda: program.call(arguments), program.module)


def _native(job: dict[str, Any], fds: Sequence[int]) -> ProfiledSubject:
    device = job["device"]
    weights = map_pack(fds[0], job["parameters"], writable=True)
    inputs = [fresh_copy(tensor, device) for tensor in map_pack(fds[1], job["inputs"], writable=True)]
    names = [entry["name"] for entry in job["parameters"]]
    parameters = [(name, fresh_copy(value, device)) for name, value in zip(names, weights, strict=True)]
    stream = torch.cuda.current_stream().cuda_stream if device == "cuda" else 0
    program = NativeProgram(job["library"], job["libraries"])
    program.init(parameters, device=device, stream=stream, threads=job["threads"])
    planned = program.plan(inputs)
    by_name = dict(parameters)
    prepared = program.prepare(
        inputs,
        [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in planned.outputs],
        state=[by_name[name].clone() for name in job["state"]],
        workspace=make_workspace(planned.workspace_bytes, device),
        stream=stream,
    )
    return ProfiledSubject(lambda: program.call(prepared))
