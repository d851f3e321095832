"""Large draws of a reference on a GPU: their other values are made there."""

from pathlib import Path

import pytest
import torch

from stitch_tools.protocol.messages_reference import ReferenceSource
from stitch_tools.worker.reference.draw_kinds import STRUCTURED
from stitch_tools.worker.reference.draw_places import at_hand
from stitch_tools.worker.reference.draws import InputBounds, make_draw, structures_of
from stitch_tools.worker.reference.load_reference import LoadedReference

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not Path("/dev/nvidiactl").exists(), reason="no NVIDIA GPU here: not measured"),
]
REFERENCE = """import torch
def Model(*xs):
    return xs
def get_inputs():
    return [torch.rand(4096, 1024), torch.randint(0, 2, (2048, 2048))]
"""
CHANGES_FLOATS = sorted(set(STRUCTURED) - {"permuted", "flipped"})


@pytest.fixture
def reference(tmp_path: Path) -> LoadedReference:
    (tmp_path / "drawn_from.py").write_text(REFERENCE, encoding="utf-8")
    return LoadedReference(ReferenceSource(str(tmp_path), "drawn_from.py", init_inputs=None, device="cuda"))


def floats(reference: LoadedReference, kind: str, seed: int = 5) -> torch.Tensor:
    drawn = make_draw(reference, kind, seed, InputBounds())
    assert isinstance(drawn, list | tuple)
    assert all(row.device.type == "cuda" for row in drawn)
    return drawn[0]


def test_each_kind_changes_values_and_is_the_same_again(reference: LoadedReference) -> None:
    own = floats(reference, "own-1")
    assert at_hand(own).device.type == "cuda"
    for kind in ("altered-3", *CHANGES_FLOATS):
        one, two = floats(reference, kind), floats(reference, kind)
        assert torch.equal(one, two), kind
        assert not torch.equal(one, own), kind
        assert bool(one.isfinite().all()), kind


def test_kinds_hold_what_they_promise(reference: LoadedReference) -> None:
    own = floats(reference, "own-1")
    signed, outliers = floats(reference, "signed"), floats(reference, "outliers")
    assert torch.equal(signed.abs(), own)
    assert 0.4 < float((signed < 0).float().mean()) < 0.6
    assert 0.0005 < float((outliers != own).float().mean()) < 0.002
    assert bool((floats(reference, "negative") <= 0).all())
    assert (floats(reference, "towers").abs() > 100).sum(1).tolist() == [1] * 4096
    assert len(floats(reference, "constants").unique()) == 1


@pytest.mark.parametrize("kind", ["permuted", "flipped"])
def test_masks_are_changed_too(reference: LoadedReference, kind: str) -> None:
    own, changed = (make_draw(reference, row, 5, InputBounds()) for row in ("own-1", kind))
    assert isinstance(own, list | tuple)
    assert isinstance(changed, list | tuple)
    assert not torch.equal(own[1], changed[1])
    assert structures_of(reference)[1].describe() == ""
