"""Static evidence about programs that the stitcher writes."""

from pathlib import Path

import pytest
import torch

from stitch_planner.planning import make_plan
from stitch_planner.stitcher import StitchFailedError, stitch
from stitch_tools.graph import build_graph
from stitch_tools.judge.source import scan_program
from stitch_tools.models.task import Contract, Task
from stitch_tools.models.verdict import Finding
from stitch_tools.worker.capture.graph_capture import capture
from tests.planner.stitch_support import NO_FACTS
from tests.planner.test_partial_programs import CASES, TEXT
from tests.planner.test_stitch_programs import EXAMPLES, REFERENCE, load

LARGE_LAYER = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(512, 512)

    def forward(self, x):
        return torch.relu(self.layer(x))

def get_inputs():
    return [torch.randn(256, 512)]

def get_init_inputs():
    return []
"""
TRAINED = ("conv_bn_relu", "softmax_loss")


def findings(path: Path, target: str, *, training: bool) -> tuple[Finding, ...]:
    """Findings about the stitched program of a KernelBench-style file."""
    namespace = load(path)
    makers = getattr(namespace, "get_init_inputs", list)
    module = namespace.Model(*makers()).train(training)
    contract = Contract(mode="train" if training else "eval")
    task = Task(name="case", files=(), main=path.name, contract=contract, target=target)
    graph = build_graph(capture(module, namespace.get_inputs()), contract, None)
    source = path.read_bytes()
    stitched = stitch(task, NO_FACTS, graph, make_plan(graph, NO_FACTS, task, None), {path.name: source})
    return scan_program(
        stitched.files,
        format=stitched.format,
        main=stitched.main,
        reference_source=source,
    )


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90"])
@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES.glob("*.py")))
def test_a_stitched_example_gets_notes_at_most(name: str, target: str) -> None:
    try:
        found = findings(EXAMPLES / f"{name}.py", target, training=name in TRAINED)
    except StitchFailedError as error:
        if target == "cpu":
            raise  # what has no template there is left to PyTorch
        pytest.skip(f"no program for {target}: {error.message}")
    assert [(row.rule, row.file, row.quote) for row in found if row.severity != "note"] == []
    assert not [row for row in found if row.rule == "not_scanned"]


def test_a_program_with_split_products_gets_notes_at_most(tmp_path: Path) -> None:
    path = tmp_path / "reference.py"
    path.write_text(LARGE_LAYER, encoding="utf-8")
    found = findings(path, "cuda:sm_90", training=False)
    assert [(row.rule, row.file, row.quote) for row in found if row.severity != "note"] == []
    assert not [row for row in found if row.rule == "not_scanned"]


def test_a_partial_program_is_seen_to_leave_work_to_pytorch(tmp_path: Path) -> None:
    path = tmp_path / "reference.py"
    path.write_text(REFERENCE, encoding="utf-8")
    torch.manual_seed(0)
    found = findings(path, "cpu", training=True)
    assert [row for row in found if row.severity == "fatal"] == []
    computing = [row for row in found if row.rule == "torch_op_in_forward"]
    assert "suspicious" in {row.severity for row in computing}
    assert {row.file for row in computing} == {"model_new.py"}


@pytest.mark.parametrize("name", ["a constant of forward", "a weight of two modules"])
def test_what_binds_a_partial_program_is_not_suspicious(name: str, tmp_path: Path) -> None:
    init, forward = CASES[name]
    path = tmp_path / "reference.py"
    path.write_text(TEXT.format(init=init or "pass", forward=forward), encoding="utf-8")
    found = findings(path, "cpu", training=True)
    grave = {(row.rule, row.file) for row in found if row.severity != "note"}
    # The operations that it leaves to PyTorch are what there is to see.
    assert grave == {("torch_op_in_forward", "model_new.py")}
