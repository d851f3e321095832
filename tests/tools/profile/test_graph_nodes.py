"""Kernels of a recording belong to operations of the captured graph, whatever both sides leave out."""

from pathlib import Path

import pytest

from stitch_tools.models.graph import Ceilings, Graph, GraphNode
from stitch_tools.models.profile import SystemProfile
from stitch_tools.models.task import Contract, TensorSpec
from stitch_tools.profile.graph_nodes import match_nodes, with_bounds
from stitch_tools.profile.host_ranges import OperatorCall
from stitch_tools.profile.recorded_trace import read_trace
from stitch_tools.profile.system import summarize
from tests.tools.profile_support import RecordingBuilder, host_bound_recording


def node(name: str, op: str, module: str = "", nbytes: int = 1 << 20) -> GraphNode:
    spec = TensorSpec(name=name, shape=(nbytes // 4,), dtype="float32")
    return GraphNode(name=name, op=op, module_path=module, outputs=(spec,), bytes_written=nbytes)


def graph_of(*nodes: GraphNode) -> Graph:
    return Graph(source="export", nodes=nodes)


def matched(calls: list[tuple[str, str]], graph: Graph) -> list[str]:
    """The name of each call's node, "" where it has none."""
    found = match_nodes([OperatorCall(name, module, 1) for name, module in calls], graph)
    return [found[position].name if position in found else "" for position in range(len(calls))]


def test_spellings_of_eager_and_captured_operators_are_one() -> None:
    graph = graph_of(
        node("conv2d", "aten.conv2d.default", "conv"),
        node("relu", "aten.relu.default"),
        node("add", "aten.add.Tensor"),
    )
    assert matched([("aten::conv2d", "conv"), ("aten::relu_", ""), ("aten::add_", "")], graph) == [
        "conv2d",
        "relu",
        "add",
    ]


def test_what_one_side_lacks_shifts_nothing() -> None:
    graph = graph_of(
        node("linear", "aten.linear.default", "a"),
        node("mul", "aten.mul.Tensor", "a"),
        node("linear_1", "aten.linear.default", "a"),
        node("relu", "aten.relu.default", "b"),
    )
    # Eager runs a dropout that the graph dropped, and no multiplication by one.
    calls = [("aten::linear", "a"), ("aten::dropout", "a"), ("aten::linear", "a"), ("aten::relu", "c")]
    assert matched(calls, graph) == ["linear", "", "linear_1", ""]


def test_a_module_that_is_called_again_has_its_nodes_in_turn() -> None:
    graph = graph_of(*(node(f"tanh_{index}", "aten.tanh.default", "cell") for index in range(4)))
    assert matched([("aten::tanh", "cell")] * 4, graph) == [f"tanh_{index}" for index in range(4)]


def summed(path: Path, graph: Graph | None, *, is_reference: bool = True) -> SystemProfile:
    return summarize(read_trace(path), origin="nsys", is_reference=is_reference, graph=graph)


def test_time_of_kernels_is_that_of_the_operation_that_launched_them(tmp_path: Path) -> None:
    graph = graph_of(
        *(node(f"linear_{index}", "aten.linear.default", f"layer{index % 2}") for index in range(20))
    )
    path = host_bound_recording(tmp_path / "r.sqlite")
    system = summed(path, graph)
    assert len(system.nodes) == 20
    assert sum(row.time_us for row in system.nodes) == pytest.approx(80.0)
    assert {row.launches for row in system.nodes} == {1}
    assert {row.module for row in system.nodes} == {"layer0", "layer1"}
    by_name = {row.short_name: row.node for row in system.kernels}
    assert by_name["sgemm_128x64"] in {f"linear_{index}" for index in range(1, 20, 2)}
    assert summed(path, None).nodes == ()
    # A program's operators are none of the reference's graph.
    assert summed(path, graph, is_reference=False).nodes == ()


def test_an_operation_owns_the_kernels_of_all_that_it_calls(tmp_path: Path) -> None:
    builder = RecordingBuilder(tmp_path / "r.sqlite")
    builder.iteration(0, 100, 60)
    for index, name in enumerate(("transform", "gemm", "add", "stray")):
        builder.kernel(name, 10 * index, 10 * index + 5, 4.0 + index)
    builder.range("stitch:named", 200, 400)
    builder.range("stitch:module:|Model", 201, 399)
    builder.range("aten::conv2d", 210, 250)
    builder.range("aten::convolution", 212, 248)
    builder.kernel("transform", 215, 300, 9.0)
    builder.kernel("gemm", 230, 310, 9.0)
    builder.range("aten::add", 260, 280)
    builder.kernel("add", 265, 320, 9.0)
    builder.kernel("stray", 290, 330, 9.0)
    graph = graph_of(node("conv2d", "aten.conv2d.default"), node("add", "aten.add.Tensor"))
    system = summed(builder.finish(), graph)
    assert [(row.node, row.time_us, row.launches) for row in system.nodes] == [
        ("conv2d", 9.0, 2),
        ("add", 6.0, 1),
    ]
    assert {row.name: (row.op, row.node) for row in system.kernels} == {
        "transform": ("aten::convolution", "conv2d"),
        "gemm": ("aten::convolution", "conv2d"),
        "add": ("aten::add", "add"),
        "stray": ("", ""),
    }


def test_headroom_is_the_time_over_what_the_bytes_allow(tmp_path: Path) -> None:
    builder = RecordingBuilder(tmp_path / "r.sqlite")
    builder.iteration(0, 100, 60)
    builder.kernel("add", 10, 20, 12.0)
    builder.range("stitch:named", 200, 400)
    builder.range("aten::add", 260, 280)
    builder.kernel("add", 265, 320, 9.0)
    graph = graph_of(node("add", "aten.add.Tensor", nbytes=4_000_000))
    ceilings = Ceilings(
        device="a GPU",
        target="cuda:sm_90",
        copy_bytes_per_s=1e12,
        last_level_cache_bytes=1 << 20,
        flops_per_s={"fp32": 1e13},
        launch_us=1.0,
    )
    (row,) = with_bounds(summed(builder.finish(), graph).nodes, graph, ceilings, Contract())
    assert row.bound_us == pytest.approx(4.0)
    assert row.headroom == pytest.approx(3.0)
