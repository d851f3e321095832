"""Tasks and programs for the tests of the check, kept beside them in `programs/`."""

from pathlib import Path

from stitch_tools.compile.build import compile_program
from stitch_tools.models import Build, Check, Contract, Program, ProgramFormat, Task
from stitch_tools.store import Store

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
    return compile_program(program, store, cache_dir=store.root.parent / "cache")


def noted(check: Check) -> list[str]:
    """The rules of what running the program showed, without those of its text."""
    return [row.rule for row in check.findings if row.file is None]
