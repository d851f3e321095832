"""What is read of the store: laid out once, looked at every time."""

from pathlib import Path

import pytest

from stitch_mcp.config import Config
from stitch_mcp.server.artifacts import find_artifact
from stitch_mcp.server.room import Room
from stitch_tools.errors import StoreError
from stitch_tools.models import Program


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
