"""The prompts: every variable is filled in, examples compile, data cannot close its fence."""

import re
from importlib.resources import files
from pathlib import Path

import pytest
from jinja2 import UndefinedError

from stitch_planner.agents.outline import outlined
from stitch_planner.agents.prompting import PROMPTS, clipped, fenced, prompt_source, render, whole_sentences
from stitch_tools.compile.build import compile_program
from stitch_tools.models.program import Program
from stitch_tools.storage.store import Store

VARIABLES = {
    "coder_system": ("is_cpu", "flags", "abi", "example"),
    "task": ("mode", "reference", "target", "device", "inputs", "outputs", "parameters", "contract", "plan"),
    "write": ("task", "skills", "is_cpu"),
    "fix": ("task", "attempts", "number", "program", "evidence", "suffix"),
    "optimize": ("task", "skills", "attempts", "number", "program", "evidence", "goal", "is_best"),
    "draft": ("task", "skills", "attempts", "suffix"),
    "again": ("problem", "number", "most"),
    "agent_note": (),
    "review_system": (),
    "review": ("task", "summary", "figures", "code", "questions", "number"),
    "planner_system": (),
    "plan": ("task", "operations", "present", "is_cpu"),
    "plan_again": ("problem", "number", "most"),
    "rubric_system": (),
    "rubric": ("number", "figures", "code", "parent", "instruction", "anchors"),
}


def test_every_prompt_file_is_listed() -> None:
    folder = files("stitch_planner").joinpath("prompts")
    names = {Path(item.name).stem for item in folder.iterdir() if item.name.endswith(".md")}
    assert names == set(PROMPTS) == set(VARIABLES)


@pytest.mark.parametrize("name", PROMPTS)
def test_a_prompt_uses_its_variables_and_no_others(name: str) -> None:
    values = {variable: f"<{variable}>" for variable in VARIABLES[name]}
    text = render(name, values)
    shown = {variable for variable in values if f"<{variable}>" in text}
    assert shown | {"is_cpu", "is_best"} >= set(values)
    for variable in values:
        others = {key: value for key, value in values.items() if key != variable}
        with pytest.raises(UndefinedError):
            render(name, others)


def test_a_fence_is_longer_than_any_inside() -> None:
    text = fenced("a\n````\nb\n```", "data")
    assert text.startswith("`````data\n")
    assert text.endswith("\n`````")


def test_a_long_text_keeps_its_beginning_and_end() -> None:
    text = clipped("a" * 100 + "b" * 100, 20)
    assert re.fullmatch(r"a{10}\n\.\.\. 180 characters left out \.\.\.\nb{10}", text)


def test_a_summary_ends_with_a_sentence() -> None:
    text = "It fuses 3.5 loops. It tiles. " + "And more " * 100
    assert whole_sentences(text, 60) == "It fuses 3.5 loops. It tiles."
    assert whole_sentences("word " * 100, 22) == "word word word ..."
    assert whole_sentences("short", 22) == "short"


LONG = """#include "a.h"
struct Softmax1Kernel {
  int row(int i) {
    return i;
  }
};
struct AddKernel {
  int first;
  int second;
};
struct Program {
  int run() {
    // softmax_1: [4, 4]
    call();
    return 0;
  }
};
REGISTER(Program)
"""


def test_a_long_source_is_outlined_with_its_costliest_kernel_whole() -> None:
    short = outlined(LONG, ["softmax_1"], 330)
    assert "    return i;" in short
    assert "int second;" not in short
    assert "call();" not in short
    assert "  int run() {\n    // softmax_1: [4, 4]" in short
    assert short.endswith("REGISTER(Program)")
    assert "return i;" not in outlined(LONG, ["softmax_1"], 10)
    assert outlined(LONG, ["softmax_1", "add", "program"], 10_000) + "\n" == LONG


@pytest.mark.parametrize(("name", "target"), [("example.cpp", "cpu"), ("example.cu", "cuda:sm_90")])
def test_the_examples_compile(name: str, target: str, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    program = Program(
        format="native",
        target=target,
        files=store.put_files({name: prompt_source(name).encode()}),
        main=name,
    )
    build = compile_program(program, store, cache_dir=tmp_path / "cache")
    assert build.ok, build.diagnostics
