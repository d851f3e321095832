"""A harness as one writes it in an afternoon: what it accepts shows what each part of the judge is for.

    python zoo_naive.py < cases.json

Seed 42 for weights and inputs, a few calls on the same inputs, then one comparison by allclose with 1e-2,
after shapes were broadcast and types and non-finite numbers evened out; inputs are made dense, and outputs
lie where the reference's lay. Runs in the target interpreter; each case in a fork, since candidates run here.
"""

import importlib.util
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

_SEED = 42
_TOLERANCE = 1e-2
_WARM_UP_CALLS = 5
_LIMIT_S = 60


def main() -> None:
    """Read cases (reference, candidate, folder) and print the verdict of each as it is known."""
    for case in json.load(sys.stdin):
        print(json.dumps({"name": case["name"], "verdict": judge_in_fork(case)}), flush=True)


def judge_in_fork(case: dict[str, Any]) -> str:
    """`accepted`, or what happened instead."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        signal.alarm(_LIMIT_S)
        try:
            os.chdir(case["folder"])
            verdict = judge(Path(case["reference"]), Path(case["candidate"]))
        except BaseException as error:  # a candidate may raise anything; the parent wants one line
            verdict = type(error).__name__
        os.write(writing, verdict.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        verdict = answer.read().decode() or "died"
    os.waitpid(child, 0)
    return verdict


def judge(reference: Path, candidate: Path) -> str:
    """`accepted` or `incorrect`, by one comparison."""
    module = load(reference)
    torch.manual_seed(_SEED)
    model = module.Model(*module.get_init_inputs())
    run = python_program(candidate, module) if candidate.suffix == ".py" else native_program(candidate, model)
    torch.manual_seed(_SEED)
    # Dense: a harness that passes addresses alone cannot say anything else.
    inputs = [value.contiguous() for value in module.get_inputs()]
    with torch.no_grad():
        expected = [tensor.clone() for tensor in leaves(model(*inputs))]
        left = [tensor.clone() for tensor in expected]
        found: list[torch.Tensor] = []
        for _ in range(_WARM_UP_CALLS):
            found = run(inputs, left)
    return "accepted" if all(map(agrees, found, expected)) and len(found) == len(expected) else "incorrect"


def agrees(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether two outputs look alike."""
    first, second = torch.broadcast_tensors(found.double().nan_to_num(), expected.double().nan_to_num())
    return torch.allclose(first, second, atol=_TOLERANCE, rtol=_TOLERANCE)


def leaves(value: Any) -> list[torch.Tensor]:
    """The tensors of an output."""
    return list(value) if isinstance(value, tuple | list) else [value]


def load(path: Path) -> ModuleType:
    """The file as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


Run = Callable[[list[torch.Tensor], list[torch.Tensor]], list[torch.Tensor]]


def python_program(path: Path, reference: ModuleType) -> Run:
    """A `ModelNew` with the reference's weights by the same seed."""
    module = load(path)
    torch.manual_seed(_SEED)
    model = module.ModelNew(*reference.get_init_inputs())

    def run(inputs: list[torch.Tensor], left: list[torch.Tensor]) -> list[torch.Tensor]:
        del left
        return leaves(model(*inputs))

    return run


def native_program(path: Path, model: torch.nn.Module) -> Run:
    """A built library, whose outputs lie in memory that holds the reference's results."""
    from stitch_tools.worker.candidate.native import NativeProgram, make_workspace

    program = NativeProgram(str(path))
    program.init(list(model.state_dict().items()))

    def run(inputs: list[torch.Tensor], left: list[torch.Tensor]) -> list[torch.Tensor]:
        planned = program.plan(inputs)
        outputs: list[torch.Tensor] = []
        for (shape, dtype), old in zip(planned.outputs, left, strict=True):
            fits = (tuple(old.shape), old.dtype) == (tuple(shape), dtype)
            outputs.append(old if fits else torch.empty(shape, dtype=dtype))
        workspace = make_workspace(planned.workspace_bytes)
        program.call(program.prepare(inputs, outputs, workspace=workspace))
        return outputs

    return run


if __name__ == "__main__":
    main()
