"""References as files, and the tasks that they become."""

from pathlib import Path

from stitch_tools.models.task import Task
from stitch_tools.storage.store import Store
from stitch_tools.task.references import load_task

MODEL = """\
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return x


def get_inputs():
    return [torch.ones(2)]
"""


def write(folder: Path, files: dict[str, str]) -> Path:
    """`folder` with these files in it."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def load(folder: Path, reference: str, store: Store, **options: object) -> Task:
    """The task of a reference in `folder`."""
    return load_task(reference, workspace=folder, store=store, **options)  # pyright: ignore[reportArgumentType]
