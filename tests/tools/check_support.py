"""Tasks and programs for the tests of the check, kept beside them in `programs/`."""

from pathlib import Path

from stitch_tools.compile.build import compile_program
from stitch_tools.judge.check import check_program
from stitch_tools.judge.check_options import CheckOptions
from stitch_tools.judge.trial import Trial
from stitch_tools.models.program import Build, Program, ProgramFormat
from stitch_tools.models.task import Contract, Task
from stitch_tools.models.verdict import Check
from stitch_tools.protocol.messages_session import ChildLimits
from stitch_tools.run.reference_server import ReferenceServer
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store

PROGRAMS = Path(__file__).parent / "programs"
AFFINE = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return x * 2.0 + 1.0

def get_inputs():
    return [torch.randn(64, 256)]

def get_init_inputs():
    return []
"""
"""The reference that `affine.cpp` solves, KernelBench-style."""
AFFINE_NEW = """
import torch

class ModelNew(torch.nn.Module):
    def forward(self, x):
        return x * 2.0 + 1.0
"""
"""An honest program for it, in Python."""


def make_task(store: Store, source: str | bytes, **fields: object) -> Task:
    """A task whose main file is `reference.py` with this source."""
    data = source.encode("utf-8") if isinstance(source, str) else source
    contract = fields.pop("contract", Contract())
    return Task.model_validate(
        {
            "name": "reference",
            "files": store.put_files({"reference.py": data}),
            "main": "reference.py",
            "contract": contract,
            **fields,
        }
    )


def linear_relu_task(store: Store, **fields: object) -> Task:
    """The task that `linear_relu.cpp` solves."""
    return make_task(store, (PROGRAMS / "linear_relu.py").read_bytes(), **fields)


def make_program(store: Store, files: dict[str, bytes], main: str, form: ProgramFormat = "native") -> Program:
    """A program of these files."""
    return Program(format=form, target="cpu", files=store.put_files(files), main=main)


def affine_program(store: Store, *variant: str) -> Program:
    """`affine.cpp` with these definitions."""
    header = "".join(f"#define {line}\n" for line in variant).encode()
    files = {"affine.cpp": (PROGRAMS / "affine.cpp").read_bytes(), "variant.h": header}
    return make_program(store, files, "affine.cpp")


def faulty_program(store: Store, fault: str) -> Program:
    """`linear_relu.cpp` with one fault of its list."""
    files = {
        "linear_relu.cpp": (PROGRAMS / "linear_relu.cpp").read_bytes(),
        "fault.h": f"#define FAULT {fault}\n".encode(),
    }
    return make_program(store, files, "linear_relu.cpp")


def model_new(store: Store, source: str) -> Program:
    """A KernelBench-style program."""
    return make_program(store, {"program.py": source.encode("utf-8")}, "program.py", "kernelbench")


def build(program: Program, store: Store) -> Build:
    """The program's build."""
    return compile_program(program, store)


def checked(
    session: TargetSession,
    store: Store,
    task: Task,
    program: Program,
    options: CheckOptions | None = None,
    *,
    limits: ChildLimits | None = None,
) -> Check:
    """The check of a program beside a reference server of its own, which has these limits."""
    with ReferenceServer(session, task, store, limits=limits) as reference:
        return check_program(
            Trial(
                task=task,
                program=program,
                build=build(program, store) if program.format == "native" else None,
                session=session,
                store=store,
                facts=reference.observe(),
                reference=reference,
            ),
            options,
        )


def noted(check: Check) -> list[str]:
    """The rules of what running the program showed, without those of its text."""
    return [row.rule for row in check.findings if row.file is None]
