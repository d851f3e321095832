"""A reference that ends its own process is told so."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stitch_tools.errors import TaskError
from stitch_tools.models.task import ReferenceFacts
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
    def forward(self, x):
        {called}
        return x


def get_inputs():
    return [torch.ones(2)]
"""
PASSES = {"imported": "", "called": "pass"}


@pytest.fixture(scope="module")
def session() -> Iterator[TargetSession]:
    with TargetSession(find_interpreter(sys.executable, Path.cwd())) as session:
        yield session


def observe(reference: str, session: TargetSession, store: Store) -> ReferenceFacts:
    task = load_task(reference, workspace=store.root, store=store)
    with ReferenceServer(session, task, store) as server:
        return server.observe()


@pytest.mark.parametrize("part", ["imported", "called"])
def test_a_reference_that_ends_its_process_is_not_said_to_have_a_traceback(
    part: str, session: TargetSession, tmp_path: Path
) -> None:
    parts = PASSES | {part: "__import__('os')._exit(3)"}
    (tmp_path / "model.py").write_text(TEXT.format(**parts), encoding="utf-8")
    with pytest.raises(TaskError, match="ended by itself with code 3") as failure:
        observe(str(tmp_path / "model.py"), session, Store(tmp_path / "store"))
    assert "os._exit" in failure.value.hint
