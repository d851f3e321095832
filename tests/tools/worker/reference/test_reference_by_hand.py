"""The command in the next step of a reference's fault shows the fault, whatever the reference is made of."""

import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stitch_tools.errors import TaskError
from stitch_tools.models import ReferenceFacts
from stitch_tools.run.interpreter import find_interpreter
from stitch_tools.run.reference_server import ReferenceServer
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store
from stitch_tools.task.references import load_task

TEXT = """
import torch
from torch import nn
{imported}


class Model(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        {constructed}
        self.width = width

    def forward(self, x, scale=None):
        {called}
        return x * self.width


model = Model(0).eval()


def function(x, scale=None):
    {called}
    return x * 2


def get_inputs():
    {made}
    return {inputs}
"""
FAULT = "raise ArithmeticError('the fault itself')"
INIT = """

def get_init_inputs():
    return [8]
"""
PASSES = {
    "imported": "",
    "constructed": "pass",
    "called": "pass",
    "made": "pass",
    "inputs": "[torch.ones(2)]",
}
NAMED = "{'scale': 1.0, 'x': torch.ones(2)}"
CASES = [
    ("model.py", {"imported": FAULT}, ""),
    ("model.py", {"constructed": f"if width == 4: {FAULT}"}, ""),
    ("model.py", {"made": FAULT}, ""),
    ("model.py", {"called": FAULT}, ""),
    ("model.py", {"constructed": f"if width == 8: {FAULT}"}, INIT),
    ("model.py", {"called": f"if self.width == 8: {FAULT}"}, INIT),
    ("model.py", {"called": f"if not torch.is_grad_enabled(): {FAULT}", "inputs": "torch.ones(2)"}, ""),
    ("model.py:model", {"called": FAULT}, ""),
    ("model.py:model", {"called": FAULT, "inputs": NAMED}, ""),
    ("model.py:model", {"made": FAULT}, ""),
    ("model.py:function", {"called": FAULT, "inputs": "(torch.ones(2), 2.0)"}, ""),
    ("package/model.py", {"imported": "from . import beside", "called": FAULT}, ""),
]


@pytest.fixture(scope="module")
def session() -> Iterator[TargetSession]:
    with TargetSession(find_interpreter(sys.executable, Path.cwd())) as session:
        yield session


def observe(reference: str, session: TargetSession, store: Store) -> ReferenceFacts:
    task = load_task(reference, workspace=store.root, store=store)
    with ReferenceServer(session, task, store) as server:
        return server.observe()


@pytest.mark.parametrize(("reference", "parts", "rest"), CASES)
def test_the_printed_command_raises_the_fault(
    reference: str, parts: dict[str, str], rest: str, session: TargetSession, tmp_path: Path
) -> None:
    text = TEXT.format(**(PASSES | parts)) + rest
    path = tmp_path / reference.partition(":")[0]
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    if path.parent != tmp_path:
        for name in ("__init__.py", "beside.py"):
            path.with_name(name).write_text("", encoding="utf-8")
    with pytest.raises(TaskError, match="the fault itself") as failure:
        observe(str(tmp_path / reference), session, Store(tmp_path / "store"))
    words = failure.value.hint.partition(": ")[2]
    assert shlex.split(words)[1] == "-c"
    ran = subprocess.run(words, shell=True, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode != 0
    assert ran.stderr.rstrip().endswith("ArithmeticError: the fault itself"), ran.stderr


@pytest.mark.parametrize("part", ["imported", "called"])
def test_a_reference_that_ends_its_process_is_not_said_to_have_a_traceback(
    part: str, session: TargetSession, tmp_path: Path
) -> None:
    parts = PASSES | {part: "__import__('os')._exit(3)"}
    (tmp_path / "model.py").write_text(TEXT.format(**parts), encoding="utf-8")
    with pytest.raises(TaskError, match="ended by itself with code 3") as failure:
        observe(str(tmp_path / "model.py"), session, Store(tmp_path / "store"))
    assert "os._exit" in failure.value.hint
    assert "Its whole traceback" not in failure.value.hint
