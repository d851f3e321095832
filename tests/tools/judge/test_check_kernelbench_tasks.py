"""Seven published tasks whose output hardly depends on their input: what is said of programs for them.

They are read from a checkout of KernelBench, which STITCH_KERNELBENCH names, and made smaller by changing
numbers in their text; none of them is kept here. Twins of their kinds that are run always are in
`test_check_sensitivity.py`; docs/decisions/0012-sensitivity.md has the figures.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from stitch_tools.judge.check_options import CheckOptions
from stitch_tools.models.task import Task
from stitch_tools.models.verdict import Check
from stitch_tools.run.interpreter import find_interpreter
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store
from tests.tools.check_support import checked, make_task, model_new

pytestmark = [
    pytest.mark.skipif("STITCH_KERNELBENCH" not in os.environ, reason="STITCH_KERNELBENCH names no checkout"),
    pytest.mark.slow,
]
VGG = (
    ("512 * 7 * 7, 4096", "512, 256"),
    ("4096", "256"),
    ("224, 224", "32, 32"),
    ("batch_size = 10", "batch_size = 4"),
)


@dataclass(frozen=True)
class Published:
    """One task of level 3."""

    file: str
    smaller: tuple[tuple[str, str], ...]
    """What is replaced in its text."""
    weak: bool = False
    """Whether its output does not depend on its input at all, whatever is scaled."""
    reacts: bool = False
    """Whether its own inputs move its output by about the tolerance, or more."""
    needs_order_one: bool = False
    """Whether inputs of the task's kind, under its own weights, cannot tell a program that ignores them."""


TASKS = {
    3: Published(
        "3_DeepNarrowMLP.py",
        (
            ("batch_size = 1024", "batch_size = 16"),
            ("input_size = 8192", "input_size = 1024"),
            ("[1024] * 16", "[512] * 16"),
            ("output_size = 8192", "output_size = 1024"),
        ),
        needs_order_one=True,
    ),
    7: Published(
        "7_GoogleNetInceptionV1.py",
        (
            ("batch_size = 10", "batch_size = 4"),
            ("height = 224", "height = 64"),
            ("width = 224", "width = 64"),
        ),
    ),
    11: Published("11_VGG16.py", VGG, needs_order_one=True),
    12: Published("12_VGG19.py", VGG, needs_order_one=True),
    18: Published(
        "18_SqueezeNet.py",
        (
            ("batch_size = 64", "batch_size = 4"),
            ("height = 512", "height = 96"),
            ("width = 512", "width = 96"),
        ),
        needs_order_one=True,
    ),
    28: Published(
        "28_VisionTransformer.py",
        (
            ("image_size = 224", "image_size = 64"),
            ("\ndim = 512", "\ndim = 128"),
            ("depth = 6", "depth = 3"),
            ("mlp_dim = 2048", "mlp_dim = 256"),
        ),
        weak=True,
    ),
    35: Published(
        "35_LSTM.py",
        (("sequence_length = 512", "sequence_length = 64"), ("hidden_size = 256", "hidden_size = 64")),
        reacts=True,
    ),
}
BLIND = """

class ModelNew(Seeing):
    def forward(self, x):
        return super().forward(torch.full_like(x, 0.5))
"""
"""Computes everything, but always for the same input."""


@dataclass(frozen=True)
class KernelBenchSetup:
    """A warm session."""

    session: TargetSession
    store: Store

    def check(self, task: Task, program: str, **switches: bool) -> Check:
        options = replace(CheckOptions(trace=False), **switches)
        return checked(self.session, self.store, task, model_new(self.store, program), options)


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KernelBenchSetup]:
    root = tmp_path_factory.mktemp("published")
    with TargetSession(find_interpreter(None, root), scratch_root=root / "scratch") as session:
        yield KernelBenchSetup(session, Store(root / "store"))


def smaller(published: Published) -> str:
    """The task's text with other sizes."""
    folder = Path(os.environ["STITCH_KERNELBENCH"]) / "KernelBench" / "level3"
    text = (folder / published.file).read_text(encoding="utf-8")
    for old, new in published.smaller:
        assert old in text, f"{published.file} is another than the one that these tests know: no {old!r}"
        text = text.replace(old, new)
    return text


def named(text: str, name: str) -> str:
    """The text with its class `Model` called otherwise."""
    return re.sub(r"\bModel\b", name, text)


@pytest.mark.parametrize("number", TASKS)
def test_an_honest_program_is_accepted_and_weak_only_where_nothing_reacts(
    setup: KernelBenchSetup, number: int
) -> None:
    published = TASKS[number]
    text = smaller(published)
    check = setup.check(make_task(setup.store, text), named(text, "ModelNew"))
    assert check.status == "accepted", check.message
    assert check.flags == (("weak",) if published.weak else ())
    own = next(row for row in check.sensitivity if (row.probe, row.subject) == ("own", "inputs"))
    assert own.change is not None
    assert own.tolerance is not None
    print(f"{number}: other inputs move the output by {own.change:.1e}, tolerated are {own.tolerance:.1e}")
    assert published.reacts or own.change < own.tolerance
    assert any(row.reacts for row in check.sensitivity if row.subject == "inputs") != published.weak


@pytest.mark.parametrize("number", TASKS)
def test_a_program_that_never_looks_at_its_input_is_not_accepted_or_weak(
    setup: KernelBenchSetup, number: int
) -> None:
    published = TASKS[number]
    text = smaller(published)
    task, program = make_task(setup.store, text), named(text, "Seeing") + BLIND
    check = setup.check(task, program)
    print(f"{number}: {check.status}: {check.message}")
    if published.weak:
        assert (check.status, check.flags) == ("accepted", ("weak",))
    else:
        assert check.status in ("incorrect", "rejected_cheat"), check.message
    assert check.reference_tolerance is not None
    assert check.reference_tolerance.ok or published.reacts, "KernelBench's own rule sees it"
    if published.needs_order_one:
        without = setup.check(task, program, order_one_weights=False, structured=False)
        assert (without.status, without.flags) == ("accepted", ("weak",)), without.message
