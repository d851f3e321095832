"""Random references are valid, the same for the same seed, and captured by export."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch
from torch.utils import _pytree as pytree

from stitch_tools.graph import build_graph
from stitch_tools.storage.store import Store
from stitch_tools.task.references import load_task
from stitch_tools.worker.capture.graph_capture import capture
from tests.compose import compose
from tests.graph_runner import run_graph
from tests.sampling import sampled


@pytest.mark.parametrize("seed", sampled(range(30), 5))
def test_a_composed_reference_loads_runs_and_is_captured(seed: int, tmp_path: Path) -> None:
    path = compose(seed).write(tmp_path)
    task = load_task(path.name, workspace=tmp_path, store=Store(tmp_path / "store"))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    namespace = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(namespace)
    torch.manual_seed(seed)
    module = namespace.Model().train(task.contract.mode == "train")
    inputs = namespace.get_inputs()
    data = capture(module, inputs)
    graph = build_graph(json.loads(json.dumps(data, allow_nan=False)), task.contract, None)
    assert (graph.source, graph.reason) == ("export", "")
    actual = run_graph(graph, module, inputs)
    with torch.no_grad():
        expected = pytree.tree_leaves(module(*inputs))
    for ours, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_the_same_seed_gives_the_same_text_and_others_give_others() -> None:
    assert compose(5) == compose(5)
    assert len({compose(seed).source for seed in range(60)}) == 60


def test_every_layer_is_drawn_and_references_have_three_to_eight() -> None:
    drawn = [compose(seed).layers for seed in range(200)]
    assert {len(layers) for layers in drawn} == {3, 4, 5, 6, 7, 8}
    assert len({layer for layers in drawn for layer in layers}) >= 22
