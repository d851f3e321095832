"""What rounding of a draw's inputs excuses, and which few values of a draw make a difference."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from stitch_tools.worker.reference.altered import smallest_alteration
from stitch_tools.worker.reference.draws import DrawUnavailableError
from stitch_tools.worker.reference.load import ReferenceSource
from stitch_tools.worker.reference.state import Draw, ServerState, Settings
from stitch_tools.worker.streams import generator_state, restore_generators
from stitch_tools.worker.trees import flatten_inputs

EPS = 2.0**-23


@pytest.fixture(autouse=True)
def generators() -> Iterator[None]:
    state = generator_state()
    yield
    restore_generators(state)


def server(folder: Path, forward: str, inputs: str = "torch.randn(16, 256)") -> ServerState:
    source = (
        "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n"
        f"class Model(nn.Module):\n    def forward(self, x):\n        return {forward}\n"
        f"def get_inputs():\n    return [{inputs}]\ndef get_init_inputs():\n    return []\n"
    )
    (folder / "conditioned.py").write_text(source, encoding="utf-8")
    state = ServerState()
    state.load(ReferenceSource(str(folder), "conditioned.py"), Settings())
    state.set_weights(3)
    return state


def expect(state: ServerState, kind: str) -> Draw:
    state.make_draw(kind, 5, 7)
    return state.expect(())


def test_a_norm_of_constant_rows_excuses_what_a_plain_sum_rounds(tmp_path: Path) -> None:
    state = server(tmp_path, "F.layer_norm(x, (300,))", "torch.randn(16, 300)")
    draw = expect(state, "constants")
    assert state.unusable() is None
    x = flatten_inputs(draw.arguments).tensors[0]
    mean = sum(x.unbind(1), torch.zeros(16)) / 300
    plain = (x - mean[:, None]) / (1e-5**0.5)
    assert float(plain.abs().max()) < draw.expected[0].slack < 1e-1
    assert state.compare([plain])[0].problem is None
    assert state.compare([plain + 0.2])[0].problem is not None


@pytest.mark.parametrize("kind", ["constants", "peaks", "amplified", "spikes"])
def test_a_task_that_rounds_as_its_inputs_do_is_excused_next_to_nothing(tmp_path: Path, kind: str) -> None:
    row = expect(server(tmp_path, "x.sum(-1)"), kind).expected[0]
    rms = float(row.oracle.square().mean().sqrt())
    assert 0 < row.slack < 8 * 16 * EPS * 256**0.5 * rms
    assert expect(server(tmp_path, "x.sum(-1)"), "own-1").expected[0].slack == 0.0


def test_where_the_last_bit_of_the_inputs_decides_nothing_is_judged(tmp_path: Path) -> None:
    state = server(tmp_path, "F.layer_norm(x * 1e4, (256,), eps=1e-12)")
    _ = expect(state, "constants")
    assert "last bit of the inputs" in (state.unusable() or "")


def test_a_division_of_nothing_by_nothing_is_judged_and_an_overflow_is_not(tmp_path: Path) -> None:
    state = server(tmp_path, "x / x.abs().sum(-1, keepdim=True)")
    _ = expect(state, "own-1")
    _ = expect(state, "zeros")
    assert state.unusable() is None
    assert state.compare([torch.full((16, 256), torch.nan)])[0].problem is None
    assert "where the reference has NaN" in (state.compare([torch.zeros(16, 256)])[0].problem or "")
    state = server(tmp_path, "torch.exp(x * 9)")
    _ = expect(state, "own-1")
    _ = expect(state, "amplified")
    assert "not finite" in (state.unusable() or "")


@pytest.mark.parametrize(
    ("forward", "kind"),
    [
        ("torch.softmax(x, -1)", "altered-1"),
        ("x.square().mean() + 0 * x", "altered-1024"),
    ],
)
def test_as_few_values_are_altered_as_make_a_difference(tmp_path: Path, forward: str, kind: str) -> None:
    state = server(tmp_path, forward, "torch.randn(16, 2048)")
    assert smallest_alteration(state, 5, 7) == kind


def test_a_task_that_does_not_look_at_its_values_is_not_altered(tmp_path: Path) -> None:
    with pytest.raises(DrawUnavailableError, match="hardly change"):
        smallest_alteration(server(tmp_path, "torch.ones_like(x)"), 5, 7)
    refusing = server(tmp_path, "x if self.__dict__.setdefault('kept', x.sum()) == x.sum() else 1 / 0")
    with pytest.raises(DrawUnavailableError, match="refuses it: ZeroDivisionError"):
        smallest_alteration(refusing, 5, 7)
