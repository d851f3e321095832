"""A harness as one writes it in an afternoon: what it accepts shows what each part of the judge is for.

    python zoo_naive.py     one case a line in (JSON), one verdict a line out

Seed 42 for weights and inputs, a few calls on the same inputs, then one comparison by allclose with 1e-2,
after shapes were broadcast and types and non-finite numbers evened out; inputs are made dense, and outputs
lie where the reference's lay. The candidate shares the process with the reference, its expected output and
the clock; the verdict is a line that this process prints, or its exit code. Runs in the target interpreter.
"""

import contextlib
import importlib.util
import io
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from stitch_tools.confine.linux import become_subreaper
from stitch_tools.worker.runtime.native import NativeProgram, PreparedCall, make_workspace

_SEED = 42
_TOLERANCE = 1e-2
_WARM_UP_CALLS = 5
_TIMED_CALLS = 400
_LIMIT_S = 20.0
_GRACE_S = 0.2
"""Between a candidate's last word and its end."""


def main() -> None:
    """Read cases and print the verdict of each as it is known."""
    serve(judge_in_fork)


def serve(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answer one line of JSON with another, until there are no more."""
    become_subreaper()
    for line in sys.stdin:
        case = json.loads(line)
        print(json.dumps({"name": case["name"], **answer(case)}), flush=True)


def judge_in_fork(case: dict[str, Any]) -> dict[str, Any]:
    """`verdict`: accepted, or what happened instead; `speedup`, where it came to timing."""

    def judged() -> dict[str, Any]:
        os.chdir(case["folder"])
        timed = bool(case.get("timed", True))
        if not timed:
            # A candidate that forks finds no thread pool again.
            torch.set_num_threads(1)
        said = judge(Path(case["reference"]), Path(case["candidate"]), timed=timed)
        return {"status": said["verdict"], **said}

    said = answer_in_fork(judged, _LIMIT_S)
    if "died" in said:
        # Who trusts exit codes takes this one for success.
        return {"verdict": "accepted" if said["died"] == 0 else f"died ({said['died']})"}
    return {"verdict": said.get("status", "did not end"), "speedup": said.get("speedup")}


def answer_in_fork(answer: Callable[[], dict[str, Any]], limit_s: float) -> dict[str, Any]:
    """The first object that a fork prints, whoever in it does so; `died` with its exit code, or nothing."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        os.close(reading)
        nothing = os.open(os.devnull, os.O_RDWR)
        for source, target in ((nothing, 0), (writing, 1), (nothing, 2)):
            os.dup2(source, target)
        _answer_and_leave(answer)
    os.close(writing)
    with os.fdopen(reading, "rb", buffering=0) as answers:
        said = _first_object(answers, child, time.monotonic() + limit_s)
    ended = _end(child)
    if said is not None:
        return said
    return {} if ended is None else {"died": ended}


def _answer_and_leave(answer: Callable[[], dict[str, Any]]) -> None:
    code = 1
    try:
        said = answer()
        code = 0
    except BaseException as error:  # a candidate may raise anything; the parent wants one line
        said = {"status": type(error).__name__}
    os.write(1, json.dumps(said).encode() + b"\n")
    os._exit(code)


def _first_object(answers: io.RawIOBase, child: int, end: float) -> dict[str, Any] | None:
    text = b""
    with _watched(child) as death:
        while ready := select.select([answers, death], [], [], max(0.0, end - time.monotonic()))[0]:
            # What it left behind may hold the pipe open: its last words come before its end.
            data = answers.read(1 << 16) if answers in ready else b""
            if not data:
                return None
            text += data
            *lines, text = text.split(b"\n")
            for line in lines:
                with contextlib.suppress(ValueError):
                    said = json.loads(line)
                    if isinstance(said, dict):
                        return said
            text = text[-(1 << 16) :]
    return None


@contextlib.contextmanager
def _watched(child: int) -> Generator[int]:
    """A descriptor that can be read from when the child has ended."""
    death = os.pidfd_open(child)
    try:
        yield death
    finally:
        os.close(death)


def _end(child: int) -> int | None:
    """The exit code of a child that ended by itself; whatever it left behind is ended."""
    with _watched(child) as death:
        select.select([death], [], [], _GRACE_S)
    done, status = os.waitpid(child, os.WNOHANG)
    ended = os.waitstatus_to_exitcode(status) if done else None
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if not done:
        os.waitpid(child, 0)
    # Orphans become children of this process, which asked for them.
    while left := _children():
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return ended


def _children() -> list[int]:
    me = os.getpid()
    text = Path(f"/proc/{me}/task/{me}/children").read_text(encoding="utf-8")
    return [int(pid) for pid in text.split()]


def judge(reference: Path, candidate: Path, *, timed: bool = True) -> dict[str, Any]:
    """`accepted` or `incorrect` by one comparison; if timed, with a speedup by a clock around calls."""
    module = sys.modules["reference"] = load(reference)  # as an import leaves it
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
        if not all(map(agrees, found, expected)) or len(found) != len(expected):
            return {"verdict": "incorrect"}
        if not timed:
            return {"verdict": "accepted"}
        eager = seconds(lambda: model(*inputs))
        return {"verdict": "accepted", "speedup": eager / seconds(lambda: run(inputs, left))}


def seconds(call: Callable[[], object]) -> float:
    """Seconds a call, by the clock of this process around many."""
    start = time.perf_counter()
    for _ in range(_TIMED_CALLS):
        call()
    return (time.perf_counter() - start) / _TIMED_CALLS


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
    program = NativeProgram(str(path))
    program.init(list(model.state_dict().items()), threads=torch.get_num_threads())
    prepared: list[tuple[PreparedCall, list[torch.Tensor]]] = []

    def run(inputs: list[torch.Tensor], left: list[torch.Tensor]) -> list[torch.Tensor]:
        if not prepared:
            prepared.append(prepare_native(program, inputs, left))
        program.call(prepared[0][0])
        return prepared[0][1]

    return run


class NativeModel:
    """A built library as a function from inputs to outputs in fresh memory, on the device of its inputs."""

    def __init__(self, path: str, state: dict[str, torch.Tensor]) -> None:
        self._program, self._state = NativeProgram(path), state
        self._is_ready = False

    def __call__(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        device = inputs[0].device
        stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
        if not self._is_ready:
            state = [(name, value.to(device)) for name, value in self._state.items()]
            self._program.init(state, device=device, stream=stream, threads=torch.get_num_threads())
            self._is_ready = True
        call, outputs = prepare_native(self._program, inputs, [], stream)
        self._program.call(call)
        return outputs


def prepare_native(
    program: NativeProgram, inputs: list[torch.Tensor], left: list[torch.Tensor], stream: int = 0
) -> tuple[PreparedCall, list[torch.Tensor]]:
    """A call and its outputs, which lie in the memory of `left` where they fit."""
    device = inputs[0].device
    planned = program.plan(inputs)
    outputs: list[torch.Tensor] = []
    for index, (shape, dtype) in enumerate(planned.outputs):
        old = left[index] if index < len(left) else None
        fits = old is not None and (tuple(old.shape), old.dtype) == (tuple(shape), dtype)
        outputs.append(old if old is not None and fits else torch.empty(shape, dtype=dtype, device=device))
    workspace = make_workspace(planned.workspace_bytes, device)
    return program.prepare(inputs, outputs, workspace=workspace, stream=stream), outputs


if __name__ == "__main__":
    main()
