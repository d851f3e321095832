"""The program to begin with: it compiles for what a task takes and gives, whatever that is."""

from pathlib import Path

import pytest

from stitch_mcp.config import Config
from stitch_mcp.server.resources import find_resource, read_resource
from stitch_mcp.server.server_context import ServerContext
from stitch_mcp.server.skeleton import skeleton
from stitch_planner.opening import begin_run
from stitch_planner.runs.recorder import OUTSIDE, record_reference
from stitch_planner.workbench import Workbench
from stitch_tools.compile.build import compile_program
from stitch_tools.errors import UsageError
from stitch_tools.models.program import Program
from stitch_tools.models.task import ITEM_BYTES, ReferenceFacts, Task, TensorSpec
from stitch_tools.run.interpreter import Interpreter
from stitch_tools.storage.store import Store

EVERY_TYPE = ReferenceFacts(
    inputs=(
        *(TensorSpec(name=f"0.{dtype}", shape=(2, 3), dtype=dtype) for dtype in ITEM_BYTES),
        TensorSpec(name="1", shape=(), dtype="float32"),
        TensorSpec(name="2", shape=(4, 5), dtype="float32", stride=(1, 4)),
    ),
    outputs=(
        *(TensorSpec(name=f"{place}", shape=(2,), dtype=dtype) for place, dtype in enumerate(ITEM_BYTES)),
        TensorSpec(name="last", shape=(), dtype="float32"),
    ),
    output_structure="[]",
    parameters=(
        TensorSpec(name="0.weight", shape=(3, 3), dtype="float32"),
        TensorSpec(name="0_weight", shape=(3,), dtype="bfloat16"),
        TensorSpec(name='a"; system("ls"); //', shape=(1,), dtype="int64"),
    ),
)
NOTHING = ReferenceFacts(inputs=(), outputs=(), output_structure="[]", parameters=())


def built(store: Store, source: str, folder: Path, main: str, target: str) -> tuple[bool, list[str]]:
    files = store.put_files({main: source.encode("utf-8")})
    program = Program(format="native", target=target, files=files, main=main)
    build = compile_program(program, store, cache_dir=folder / "cache")
    return build.ok, [row.message for row in build.diagnostics]


@pytest.mark.parametrize("facts", [EVERY_TYPE, NOTHING], ids=["every type", "nothing"])
def test_a_skeleton_compiles_without_a_warning(facts: ReferenceFacts, tmp_path: Path) -> None:
    task = Task(name='model\n#error "x"', files=(), main="model.py")
    source = skeleton(task, facts)
    assert "system(" not in source
    assert built(Store(tmp_path / "store"), source, tmp_path, "program.cpp", "cpu") == (True, [])


@pytest.mark.nvcc
def test_a_skeleton_for_a_gpu_compiles(tmp_path: Path) -> None:
    task = Task(name="model", files=(), main="model.py", target="cuda:sm_90")
    store = Store(tmp_path / "store")
    ok, messages = built(store, skeleton(task, EVERY_TYPE), tmp_path, "program.cu", task.target)
    assert ok, messages


def test_the_skeleton_of_a_run_names_its_own_shapes_and_parameters(tmp_path: Path) -> None:
    server_context = ServerContext(config=Config(workspace=tmp_path))
    with pytest.raises(UsageError, match="there is no run yet"):
        read_resource(server_context, "stitch://skeleton")
    task = Task(name="model", files=(), main="model.py")
    interpreter = Interpreter("python3", "3.11.0", "2.13.0", "own")
    run = begin_run(Workbench(server_context.workspace, interpreter), task, coder=OUTSIDE)
    with pytest.raises(UsageError, match="no analyzed reference"):
        read_resource(server_context, f"stitch://skeleton/{run.run_id}")
    record_reference(run, EVERY_TYPE)
    run.close()
    mime, source = read_resource(server_context, "stitch://skeleton")
    assert mime == "text/x-c"
    assert "// 0.weight: float32[3, 3]" in source
    assert "shape_0[] = {2, 3};" in source
    assert f"strides_{len(EVERY_TYPE.inputs) - 1}[] = {{1, 4}};" in source
    assert find_resource(server_context, f"stitch://skeleton/{run.run_id}").text == source
