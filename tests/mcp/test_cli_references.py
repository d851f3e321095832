"""`solve` of references that misbehave: they print, fork, write files, or do not fit into memory."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

MAIN = "from stitch_mcp.cli import main; raise SystemExit(main())"
BOUND = "import resource; resource.setrlimit(resource.RLIMIT_DATA, (3 << 30, 3 << 30)); "
"""Memory of the machine in the test, so that filling it takes a moment only and disturbs nobody."""
MODEL = """
import os, subprocess, sys, threading, time
from pathlib import Path
import torch

{helper}
misbehave("import")

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(32, 32)

    def forward(self, x):
        misbehave("forward")
        return torch.relu(self.linear(x))

def get_inputs():
    return [torch.randn(16, 32)]
"""
FLOOD = """
def misbehave(when):
    for _ in range(20_000 if when == "import" else 2):
        print('{"ok": true}', "x" * 50)
        print("y" * 50, file=sys.stderr)
    os.write(1, b"raw\\n" * 100)
"""
FORK = """
started = []

def misbehave(when):
    if started.count(when) == 3:
        return
    started.append(when)
    if os.fork() == 0:
        os.setsid()
        os.execvp("sleep", ["sleep", "SECONDS"])
    subprocess.Popen(["sleep", "SECONDS"], start_new_session=True)
    threading.Thread(target=time.sleep, args=(SECONDS,)).start()
"""
WRITE = """
def misbehave(when):
    here = os.path.dirname(os.path.abspath(__file__))
    for folder in (".", "~", "/tmp", "/var/tmp", "/dev/shm", here, "PLACE"):
        try:
            Path(folder).expanduser().joinpath("NAME").write_text(when)
        except OSError:
            pass
"""
LARGE = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = torch.nn.ParameterList(BODY)

    def forward(self, x):
        return x * self.parts[0][0]

def get_inputs():
    return [torch.randn(16, 32)]
"""


def solve(folder: Path, text: str, before: str = "") -> dict[str, Any]:
    """The one object that a quick solve of this reference prints; no scratch folder is left."""
    (folder / "model.py").write_text(text, encoding="utf-8")
    scratch = folder / "scratch"
    scratch.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", before + MAIN, "solve", "model.py", "--quick", "--json"],
        cwd=folder,
        env={**os.environ, "TMPDIR": str(scratch)},
        capture_output=True,
        text=True,
        timeout=500,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["exit_code"] == done.returncode, done.stderr
    assert [path for path in scratch.iterdir() if path.is_dir()] == []
    return found


def processes(word: str) -> list[str]:
    """Command lines of the processes with that word as an argument."""
    found: list[str] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = path.read_bytes().decode("utf-8", "replace").split("\0")
        except OSError:
            continue  # it has ended meanwhile
        if word in arguments:
            found.append(" ".join(arguments))
    return found


def test_a_reference_that_prints_without_end_is_ended_and_told(tmp_path: Path) -> None:
    endless = "def misbehave(when):\n    while True:\n        print('flood' * 1000)\n"
    found = solve(tmp_path, MODEL.replace("{helper}", endless))
    error = found["error"]
    assert (found["exit_code"], error["code"]) == (2, "task")
    assert "printed more than it may" in error["message"]
    assert len(error["message"]) < 2000
    assert error["hint"]


@pytest.mark.exhaustive
def test_processes_and_threads_of_a_reference_end_with_the_run(tmp_path: Path) -> None:
    seconds = f"{100_000 + os.getpid()}.25"
    found = solve(tmp_path, MODEL.replace("{helper}", FORK.replace("SECONDS", seconds)))
    assert (found["ok"], found["status"]) == (True, "accepted")
    assert processes(seconds) == []


@pytest.mark.exhaustive
def test_what_a_reference_prints_and_writes_stays_out_of_result_and_folders(tmp_path: Path) -> None:
    name, place = f"stitch-written-{os.getpid()}-{time.monotonic_ns()}", tmp_path / "place"
    place.mkdir()
    writes = WRITE.replace("NAME", name).replace("PLACE", str(place)).replace("misbehave", "write")
    both = "def misbehave(when):\n    flood(when)\n    write(when)\n"
    helper = FLOOD.replace("misbehave", "flood") + writes + both
    found = solve(tmp_path, MODEL.replace("{helper}", helper))
    assert (found["ok"], found["status"]) == (True, "accepted")
    for folder in ("/tmp", "/var/tmp", "/dev/shm", Path.home(), Path.cwd()):
        assert not Path(folder, name).exists()
    assert list(tmp_path.rglob(name)) == []


@pytest.mark.parametrize(
    "body",
    ["[torch.empty(10 * 1024**4 // 4)]", "(torch.ones(1 << 28) for _ in range(10_000))"],
    ids=["10 TB at once", "1 GB after the other"],
)
def test_a_model_larger_than_memory_is_told_with_its_line(body: str, tmp_path: Path) -> None:
    found = solve(tmp_path, LARGE.replace("BODY", body), BOUND)
    error = found["error"]
    assert (found["exit_code"], error["code"]) == (2, "task")
    assert "model.py:7: " in error["message"]
    assert "allocate memory" in error["message"]
    assert "use a machine with more" in error["hint"]
