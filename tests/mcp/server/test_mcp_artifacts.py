"""What is read of the store: laid out once, looked at every time."""

from pathlib import Path
from typing import Any

import pytest

from stitch_mcp.config import Config
from stitch_mcp.server.artifacts import find_artifact
from stitch_mcp.server.render import render
from stitch_mcp.server.room import Room
from stitch_mcp.server.tools.get_artifact import GetArtifact, reply
from stitch_tools.errors import StoreError
from stitch_tools.models import Program, SourceFile


def test_an_artifact_that_was_read_before_is_refused_once_its_file_is_damaged(tmp_path: Path) -> None:
    room = Room(config=Config(workspace=tmp_path))
    store = room.workspace.store
    fact = store.put(b'{"a":[1]}')
    program = store.put_fact(Program(format="native", target="cpu", files=(), main="p.cpp"))
    assert find_artifact(room, fact).text == '{\n "a": [\n  1\n ]\n}'
    assert find_artifact(room, fact) == find_artifact(room, fact[:16])
    assert find_artifact(room, program).kind == "program"
    for name in (fact, program):
        path = store.root / name[:2] / name
        path.chmod(0o600)
        path.write_bytes(b'{"a":[2]}')
        with pytest.raises(StoreError):
            find_artifact(room, name)


def test_a_long_list_of_files_is_read_in_pages(tmp_path: Path) -> None:
    room = Room(config=Config(workspace=tmp_path))
    paths = [f"kernels/a_folder_of_long_names/part_{number:03}.h" for number in range(300)]
    files = tuple(SourceFile(path=path, sha256="0" * 64, size=1) for path in paths)
    program = room.workspace.store.put_fact(Program(format="native", target="cpu", files=files, main="p.cpp"))
    seen: list[str] = []
    arguments: dict[str, Any] | None = {"id": program}
    while arguments:
        answer = render(reply(GetArtifact.model_validate(arguments), room), detailed=False)
        assert answer["size"] == len(paths)
        seen += answer["files"]
        steps = answer.get("next_steps", [])
        arguments = steps[0]["arguments"] if steps else None
    assert seen == [f"{path} (1 bytes)" for path in paths]
