"""`doctor`, `compile` and `solve` where the C++ compiler is missing or too old."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.mcp.cli_support import call
from tests.sampling import sampled

PROGRAMS = Path(__file__).parents[1] / "tools" / "programs"
COMMANDS = (("solve", "model.py", "--quick"), ("compile", "linear_relu.cpp"))
OLD_GCC = """#!/bin/sh
echo 'g++ (GCC) 4.8.5 20150623 (Red Hat 4.8.5-44)'
echo 'Copyright (C) 2015 Free Software Foundation, Inc.'
"""


@pytest.fixture(params=["missing", "old"])
def machine(tmp_path: Path, request: pytest.FixtureRequest) -> dict[str, str]:
    """The environment of a machine whose only compiler is missing or old; nothing is cached on it."""
    tools = tmp_path / "bin"
    tools.mkdir()
    if request.param == "old":
        (tools / "g++").write_text(OLD_GCC, encoding="utf-8")
        (tools / "g++").chmod(0o755)
    unset = ("CC", "CXX", "STITCH_CXX", "CUDA_HOME", "CUDA_PATH")
    kept = {name: value for name, value in os.environ.items() if name not in unset}
    return {**kept, "PATH": str(tools), "STITCH_CACHE_DIR": str(tmp_path / "cache")}


def printed(folder: Path, machine: dict[str, str], *arguments: str) -> dict[str, Any]:
    """The one object that a command prints on that machine."""
    _, found = call(folder, *arguments, env=machine)
    return found


def problem(machine: dict[str, str]) -> str:
    """What has to be said about the compiler of that machine."""
    is_old = Path(machine["PATH"], "g++").exists()
    return "4.8" if is_old else "no C++ compiler was found"


def test_doctor_names_the_compiler_with_the_fix(tmp_path: Path, machine: dict[str, str]) -> None:
    found = printed(tmp_path, machine, "doctor")
    (item,) = [row for row in found["items"] if row["name"] == "C++ compiler"]
    assert (found["exit_code"], item["status"], found["can_solve_cpu"]) == (5, "failed", False)
    assert problem(machine) in item["detail"]
    assert "apt install g++" in item["fix"]


@pytest.mark.parametrize(
    ("machine", "arguments"),
    sampled(
        ((machine, arguments) for machine in ("missing", "old") for arguments in COMMANDS),
        [("missing", COMMANDS[0]), ("old", COMMANDS[1])],
    ),
    indirect=["machine"],
)
def test_a_command_that_compiles_ends_with_the_fix(
    arguments: tuple[str, ...], tmp_path: Path, machine: dict[str, str]
) -> None:
    shutil.copy(PROGRAMS / "linear_relu.py", tmp_path / "model.py")
    shutil.copy(PROGRAMS / "linear_relu.cpp", tmp_path)
    found = printed(tmp_path, machine, *arguments)
    error = found["error"]
    assert (found["exit_code"], error["code"]) == (5, "environment"), error
    assert problem(machine) in error["message"]
    assert "apt install g++" in error["hint"]
    assert list(tmp_path.rglob(".tmp-*")) == []


@pytest.mark.exhaustive
def test_a_run_without_a_compiler_goes_on_once_there_is_one(tmp_path: Path, machine: dict[str, str]) -> None:
    shutil.copy(PROGRAMS / "linear_relu.py", tmp_path / "model.py")
    error = printed(tmp_path, machine, "solve", "model.py", "--quick")["error"]
    run_id = error["hint"].rsplit(" ", 1)[-1]
    mended = {**machine, "PATH": os.environ["PATH"]}
    found = printed(tmp_path, mended, "solve", "--resume", run_id)
    assert found["ok"], found
    assert (found["status"], found["run_id"]) == ("accepted", run_id)
