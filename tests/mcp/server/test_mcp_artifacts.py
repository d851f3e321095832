"""What is read of the store: laid out once, looked at every time."""

from pathlib import Path
from typing import Any

import pytest

from stitch_mcp.config import Config
from stitch_mcp.server.artifacts import find_artifact
from stitch_mcp.server.render import render
from stitch_mcp.server.request_inputs import job_request
from stitch_mcp.server.resources import read_resource
from stitch_mcp.server.server_context import ServerContext
from stitch_mcp.server.tool_list import find_tool
from stitch_mcp.server.tools.get_artifact import GetArtifact, reply
from stitch_planner.opening import begin_run
from stitch_planner.runs.recorder import record_program
from stitch_planner.workbench import Workbench
from stitch_tools.errors import StoreError, UsageError
from stitch_tools.models.program import STITCHER, Program
from stitch_tools.models.task import SourceFile, Task
from stitch_tools.run.interpreter import Interpreter


def test_an_artifact_that_was_read_before_is_refused_once_its_file_is_damaged(tmp_path: Path) -> None:
    server_context = ServerContext(config=Config(workspace=tmp_path))
    store = server_context.workspace.store
    fact = store.put(b'{"a":[1]}')
    program = store.put_fact(Program(format="native", target="cpu", files=(), main="p.cpp"))
    assert find_artifact(server_context, fact).text == '{\n "a": [\n  1\n ]\n}'
    assert find_artifact(server_context, fact) == find_artifact(server_context, fact[:16])
    assert find_artifact(server_context, program).kind == "program"
    for name in (fact, program):
        path = store.root / name[:2] / name
        path.chmod(0o600)
        path.write_bytes(b'{"a":[2]}')
        with pytest.raises(StoreError):
            find_artifact(server_context, name)


def test_a_long_list_of_files_is_read_in_pages(tmp_path: Path) -> None:
    server_context = ServerContext(config=Config(workspace=tmp_path))
    paths = [f"kernels/a_folder_of_long_names/part_{number:03}.h" for number in range(300)]
    files = tuple(SourceFile(path=path, sha256="0" * 64, size=1) for path in paths)
    program = server_context.workspace.store.put_fact(
        Program(format="native", target="cpu", files=files, main="p.cpp")
    )
    seen: list[str] = []
    arguments: dict[str, Any] | None = {"id": program}
    while arguments:
        answer = render(reply(GetArtifact.model_validate(arguments), server_context), detailed=False)
        assert answer["size"] == len(paths)
        seen += answer["files"]
        steps = answer.get("next_steps", [])
        arguments = steps[0]["arguments"] if steps else None
    assert seen == [f"{path} (1 bytes)" for path in paths]


def test_the_program_of_a_run_is_found_by_the_id_that_solve_names(tmp_path: Path) -> None:
    server_context = ServerContext(config=Config(workspace=tmp_path))
    workspace = server_context.workspace
    task = Task(name="model", files=(), main="model.py")
    files = workspace.store.put_files({"program.cpp": b"int x;"})
    program = Program(format="native", target="cpu", files=files, main="program.cpp", author=STITCHER)
    interpreter = Interpreter("python3", "3.11.0", "2.13.0", "own")
    run = begin_run(Workbench(workspace, interpreter), task, coder=STITCHER)
    record_program(run, program)
    run.close()
    named = program.program_id[:16]
    assert find_artifact(server_context, named).files == ("program.cpp (6 bytes)",)
    assert find_artifact(server_context, named, "program.cpp").text == "int x;"
    check_program = find_tool("check_program")
    arguments = {"program": named, "reference": workspace.store.put_fact(task)}
    job = job_request(server_context, check_program, check_program.request.model_validate(arguments))
    assert job.subject.program_id == program.program_id
    with pytest.raises(UsageError, match="names no artifact"):
        find_artifact(server_context, "0" * 16)


def run_of(root: Path) -> tuple[ServerContext, Path]:
    """A room with one run, which has a log."""
    server_context = ServerContext(config=Config(workspace=root))
    folder = server_context.workspace.runs_folder / "20260101T000000.000-model-00000000"
    folder.mkdir(parents=True)
    (folder / "events.jsonl").write_text("{}\n", encoding="utf-8")
    return server_context, folder


def test_files_that_go_while_a_run_is_listed_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server_context, folder = run_of(tmp_path)
    (folder / "report.html").write_text("...", encoding="utf-8")
    is_file = Path.is_file

    def seen_at_last(path: Path) -> bool:
        found = is_file(path)
        if path.name == "report.html":
            path.unlink(missing_ok=True)
        return found

    monkeypatch.setattr(Path, "is_file", seen_at_last)
    assert find_artifact(server_context, folder.name).files == ("events.jsonl (3 bytes)",)


@pytest.mark.parametrize("path", ["a" * 5000, "events.jsonl/x", "gone", ".", "..", "x\0y"])
def test_a_file_that_a_run_does_not_have_is_told_whatever_its_name(tmp_path: Path, path: str) -> None:
    server_context, folder = run_of(tmp_path)
    with pytest.raises(UsageError, match="the run has no file"):
        find_artifact(server_context, folder.name, path)


def test_a_run_that_is_a_link_out_of_the_workspace_is_not_read(tmp_path: Path) -> None:
    _, outside = run_of(tmp_path / "other")
    server_context, folder = run_of(tmp_path / "workspace")
    link = folder.with_name("linked")
    link.symlink_to(outside)
    with pytest.raises(UsageError, match="outside the workspace"):
        find_artifact(server_context, "linked", "events.jsonl")


@pytest.mark.parametrize("name", ["guide", "abi", "contract"])
def test_what_is_a_resource_can_be_read_by_a_client_that_has_tools_alone(tmp_path: Path, name: str) -> None:
    server_context, folder = run_of(tmp_path)
    uri = f"stitch://{name}"
    page = reply(GetArtifact(id=uri), server_context)
    assert page.text
    assert read_resource(server_context, uri)[1].startswith(page.text)
    assert "untrusted" not in render(page, detailed=False), "these are our own words"
    address = f"stitch://run/{folder.name}"
    for id, path in ((f"{address}/events.jsonl", ""), (address, "events.jsonl")):
        log = reply(GetArtifact(id=id, path=path), server_context)
        assert log.text == "{}\n"
        assert "untrusted" in render(log, detailed=False)
    with pytest.raises(UsageError, match="no resource"):
        reply(GetArtifact(id="stitch://nothing"), server_context)
