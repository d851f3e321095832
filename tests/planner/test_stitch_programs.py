"""Stitched programs of whole references: the examples, and compositions drawn at random."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from stitch_planner.stitcher import StitchFailedError
from stitch_planner.stitcher.emit.partial import runtime_files
from tests.compose import compose
from tests.planner.loaded_programs import programs_forgotten
from tests.planner.stitch_support import Shared, assert_equal_to_torch, made, shared
from tests.sampling import sampled

EXAMPLES = Path(__file__).parents[2] / "examples"
EVAL = {"train = False", 'mode = "eval"'}


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.exhaustive  # each is judged in test_examples_accepted.py
@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES.glob("*.py")))
def test_an_example_is_stitched_without_eager_nodes_and_right(name: str, tmp_path: Path) -> None:
    namespace = load(EXAMPLES / f"{name}.py")
    torch.manual_seed(3)
    module = namespace.Model(*namespace.get_init_inputs())
    training = name in ("conv_bn_relu", "softmax_loss")
    assert_equal_to_torch(module.train(training), namespace.get_inputs(), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", sampled(range(1, 7), (2,)))
def test_a_random_composition_is_right(seed: int, tmp_path: Path) -> None:
    namespace = load(compose(seed).write(tmp_path))
    torch.manual_seed(seed)
    module = namespace.Model().train("BatchNorm" in compose(seed).source)
    for dropout in module.modules():
        if isinstance(dropout, torch.nn.Dropout):
            dropout.eval()
    assert_equal_to_torch(module, namespace.get_inputs(), tmp_path)


REFERENCE = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.drop, self.down = nn.Linear(24, 32), nn.Dropout(0.3), nn.Linear(32, 8)

    def forward(self, x):
        first = self.drop(torch.tanh(self.up(x)))
        return torch.softmax(self.down(first), -1), torch.logcumsumexp(first, 1)


def get_inputs():
    return [torch.randn(16, 24)]
"""


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    """A reference and its program, whose segments are compiled here."""
    with pytest.MonkeyPatch.context() as patch, programs_forgotten():
        patch.setattr(sys, "path", list(sys.path))
        yield shared(REFERENCE, ["tuple", "leaf", "leaf"], tmp_path_factory.mktemp("shared"))


# The first that calls the program: its first call is what this is about.
def test_segments_are_compiled_when_the_program_is_loaded_not_in_its_first_call(
    both: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "false")  # who compiles from now on fails
    first, second = both.computed(*both.inputs)
    assert (first.shape, second.shape) == ((16, 8), (16, 32))


def test_a_program_with_eager_nodes_draws_and_computes_as_the_reference(both: Shared) -> None:
    assert [step.ops for step in both.plan.steps if step.kind == "eager"] == [("dropout",), ("logcumsumexp",)]
    module, program, inputs = both.module, both.computed, both.inputs
    for seed in (1, 2):
        torch.manual_seed(seed)
        expected = module(*inputs)
        torch.manual_seed(seed)
        for ours, theirs in zip(program(*inputs), expected, strict=True):
            torch.testing.assert_close(ours, theirs.detach())
        with torch.no_grad():  # weights changed in place are packed again
            for tensor, other in zip(module.parameters(), program.parameters(), strict=True):
                tensor.mul_(1.5)
                other.mul_(1.5)


def test_eager_nodes_without_the_references_files_are_refused_with_the_reason() -> None:
    class Odd(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.logcumsumexp(x, 0)

    with pytest.raises(StitchFailedError, match="the reference's files"):
        made(Odd(), [torch.randn(3)])


def test_a_program_brings_every_header_that_it_includes() -> None:
    files = made(
        torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Softmax(-1)), [torch.randn(2, 4)]
    ).stitched.files
    assert {
        "program.cpp",
        "stitch/abi.h",
        "stitch/cpu/gemm.h",
        "stitch/cpu/rows.h",
        "stitch/common/math.h",
    } <= set(files)
    text = b"".join(files.values()).decode("utf-8")
    assert "torch/" not in text
    assert "ATen" not in text


def test_a_partial_program_builds_with_the_named_onednn_and_leaves_nothing(tmp_path: Path) -> None:
    program, library = tmp_path / "program", tmp_path / "one dnn"
    for path, data in runtime_files().items():
        (program / path).parent.mkdir(parents=True, exist_ok=True)
        (program / path).write_bytes(data)
    (program / "segment_0.cpp").write_text("#include <dnnl.h>\nint value = ONLY_HERE;\n", encoding="utf-8")
    for name, text in (("include/dnnl.h", "#define ONLY_HERE 7\n"), ("lib64/libdnnl.so.3", "")):
        (library / name).parent.mkdir(parents=True)
        (library / name).write_text(text, encoding="utf-8")
    script = (
        "from pathlib import Path\nfrom stitch_runtime import segments\n"
        "built = segments.build(['segment_0'])[0]\n"
        "print(built, Path(built).is_file(), segments._libraries(), sep='|')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=program,
        env={**os.environ, "STITCH_ONEDNN": str(library), "CXX": "env g++", "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    built, existed, libraries = done.stdout.strip().split("|")
    assert (existed, libraries) == ("True", str([str(library / "lib64" / "libdnnl.so.3")]))
    assert not Path(built).parent.exists()


COUNTING = """#!/bin/sh
echo begin >> "$COUNTED"; sleep 0.3; echo end >> "$COUNTED"
"""


def test_no_more_compilers_run_at_once_than_there_are_processors_for_them(tmp_path: Path) -> None:
    for path, data in runtime_files().items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(data)
    compiler, counted = tmp_path / "compiler", tmp_path / "counted"
    compiler.write_text(COUNTING, encoding="utf-8")
    compiler.chmod(0o755)
    script = (
        "import os\nos.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])\n"
        "from stitch_runtime import segments\nsegments.build(['a', 'b', 'c'])\n"
    )
    environment = {**os.environ, "CXX": str(compiler), "COUNTED": str(counted), "TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, check=True)
    assert counted.read_text(encoding="utf-8").split() == ["begin", "end"] * 3
