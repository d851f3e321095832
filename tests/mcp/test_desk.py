"""What a desk looks at again, and what it takes from an earlier look."""

from pathlib import Path

from stitch_mcp.desk import open_desk

REFERENCE = """
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)


def get_inputs():
    return [torch.randn(8, 16)]
"""


def test_a_known_reference_is_not_observed_again_unless_torch_is_another(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(REFERENCE, encoding="utf-8")
    said: list[str] = []
    desk = open_desk({"workspace": str(tmp_path)}, said.append)
    task = desk.task(tmp_path / "model.py")
    with desk.session() as session:
        said.clear()
        with desk.observed(session, task) as (_, facts):
            assert facts.torch_version == session.torch_version
        with desk.observed(session, task, facts) as (server, known):
            assert known is facts
            assert server.observe().outputs == facts.outputs
        older = facts.model_copy(update={"torch_version": "2.6.0"})
        with desk.observed(session, task, older) as (_, anew):
            assert anew.torch_version == facts.torch_version
    assert said == ["observing the reference", "loading the reference", "observing the reference"]
