"""What one look at a reference tells: specs in the order in which tensors travel, state, doubts."""

import json
from pathlib import Path
from typing import Any

import pytest

from stitch_tools.models.task import ReferenceFacts
from stitch_tools.protocol.messages_reference import ObserveReference
from stitch_tools.worker.reference.load_reference import LoadedReference, ReferenceFault, ReferenceSource
from stitch_tools.worker.reference.observe import observe

HEAD = "import torch\nfrom torch import nn\n"


def look(folder: Path, source: str, **fields: Any) -> ReferenceFacts:
    (folder / "watched.py").write_text(HEAD + source, encoding="utf-8")
    fields.setdefault("init_inputs", None)
    reference = LoadedReference(ReferenceSource(str(folder), "watched.py", **fields))
    module, _ = reference.construct(1)
    return ReferenceFacts.model_validate(
        observe(reference, module, ObserveReference(1, 2, 3, 4), rtol=1e-3, atol=1e-5)
    )


def test_inputs_are_listed_in_order_with_their_layout_and_constants_are_left_out(tmp_path: Path) -> None:
    facts = look(
        tmp_path,
        """
def Model(x, pair, scale, table, mask, empty):
    return (x.sum(1) * scale, [pair[0], pair[1]["ids"]]), {"n": 3, "mask": mask, "none": None}
def get_inputs():
    return [torch.rand(4, 6).t(), (torch.rand(2), {"ids": torch.randint(0, 9, (2,))}), 0.5,
            torch.rand(1, 3).expand(5, 3), torch.rand(3) > 0.5, torch.rand(0, 7)]
""",
    )
    rows = [(spec.name, spec.shape, spec.dtype, spec.stride) for spec in facts.inputs]
    assert rows == [
        ("0", (6, 4), "float32", (1, 6)),
        ("1.0", (2,), "float32", None),
        ("1.1.ids", (2,), "int64", None),
        ("3", (5, 3), "float32", (0, 1)),
        ("4", (3,), "bool", None),
        ("5", (0, 7), "float32", None),
    ]
    assert [(spec.name, spec.shape, spec.dtype) for spec in facts.outputs] == [
        ("0.0", (6,), "float32"),
        ("0.1.0", (2,), "float32"),
        ("0.1.1", (2,), "int64"),
        ("1.n", (), "int64"),
        ("1.mask", (3,), "bool"),
    ]
    assert json.loads(facts.output_structure) == [
        "tuple",
        ["tuple", "leaf", ["list", "leaf", "leaf"]],
        {"dict": {"n": ["scalar", "int"], "mask": "leaf", "none": ["none"]}},
    ]
    assert facts.warnings == ()
    assert json.loads(facts.input_structure)[3] == ["constant", "float", "0.5"]
    assert facts.input_names == ("x", "pair", "scale", "table", "mask", "empty")


def test_buffers_are_told_from_parameters_and_the_updated_ones_are_named(tmp_path: Path) -> None:
    facts = look(
        tmp_path,
        """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("table", torch.ones(2), persistent=False)
    def forward(self, x):
        return self.norm(x) * self.table.sum()
def get_inputs():
    return [torch.rand(5, 3)]
""",
    )
    assert [spec.name for spec in facts.parameters] == [
        "norm.weight",
        "norm.bias",
        "norm.running_mean",
        "norm.running_var",
        "norm.num_batches_tracked",
        "table",
    ]
    assert facts.buffers == ("norm.running_mean", "norm.running_var", "norm.num_batches_tracked", "table")
    assert facts.mutated_buffers == ("norm.num_batches_tracked", "norm.running_mean", "norm.running_var")
    assert facts.deterministic
    assert not facts.uses_rng


MODES = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.drop = nn.BatchNorm1d(3), nn.Dropout(0.0)
        self.gru = nn.GRU(3, 3, num_layers=2, dropout=0.5)
        self.frozen = nn.Sequential(nn.InstanceNorm1d(3, track_running_stats=True)).eval()
    def forward(self, x):
        return self.norm(self.gru(x)[0])
def get_inputs():
    return [torch.rand(5, 3)]
"""


def test_layers_that_differ_in_eval_mode_are_a_warning_unless_the_mode_was_named(tmp_path: Path) -> None:
    facts = look(tmp_path, MODES)
    assert facts.mode_layers == ("BatchNorm1d", "GRU")
    assert facts.warnings == (
        "the reference runs in train mode: BatchNorm1d uses the statistics of the batch, GRU drops values at"
        ' random between its layers; for inference write mode = "eval" under [contract] in watched.task.toml',
    )
    assert look(tmp_path, MODES, mode="train").warnings == ()
    assert look(tmp_path, MODES, mode="eval").warnings == ()


def test_use_of_random_numbers_is_seen_and_is_not_called_nondeterministic(tmp_path: Path) -> None:
    source = "Model = nn.Dropout(0.5)\ndef get_inputs():\n    return [torch.rand(50)]\n"
    facts = look(tmp_path, source)
    assert facts.uses_rng
    assert facts.deterministic
    assert not look(tmp_path, source, mode="eval").uses_rng


def test_output_that_differs_from_call_to_call_is_a_warning_with_the_difference(tmp_path: Path) -> None:
    facts = look(
        tmp_path,
        """
import itertools
count = itertools.count()
def Model(x):
    return x + next(count)
def get_inputs():
    return [torch.rand(3)]
""",
    )
    assert not facts.deterministic
    assert facts.repeat_error == pytest.approx(1 / 0.5, rel=1.0)
    assert facts.repeat_errors == {"0": facts.repeat_error}
    assert "gave different outputs (largest difference 1)" in facts.warnings[0]
    assert "seed or remove the source of chance" in facts.warnings[0]


@pytest.mark.parametrize("values", ["torch.zeros(3, dtype=torch.int64) + n", "torch.ones(3) / (n % 2)"])
def test_another_whole_number_or_infinity_at_a_second_call_counts_as_an_error_of_one(
    tmp_path: Path, values: str
) -> None:
    head = "import itertools\ncount = itertools.count()\ndef Model(x):\n    n = next(count)\n"
    tail = "def get_inputs():\n    return [torch.rand(3)]\n"
    facts = look(tmp_path, f"{head}    return {values}\n{tail}")
    assert facts.repeat_error == 1.0


@pytest.mark.parametrize(
    "body",
    [
        "return torch.zeros(3) * x.sum()",
        "return torch.softmax(x.sum() * torch.ones(3), 0)",
        "return torch.ones(3) + 1e-7 * x.sum()",
    ],
)
def test_output_that_ignores_its_input_is_a_warning_with_the_figure(tmp_path: Path, body: str) -> None:
    facts = look(tmp_path, f"def Model(x):\n    {body}\ndef get_inputs():\n    return [torch.rand(3)]\n")
    assert not facts.depends_on_inputs
    assert "times the tolerance" in facts.warnings[0]


def test_a_maker_of_constant_inputs_does_not_hide_the_dependence(tmp_path: Path) -> None:
    facts = look(tmp_path, "def Model(x):\n    return x * 2\ndef get_inputs():\n    return [torch.ones(3)]\n")
    assert facts.depends_on_inputs


def test_side_effects_and_odd_values_are_warnings(tmp_path: Path) -> None:
    facts = look(
        tmp_path,
        """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = torch.zeros(3)
    def forward(self, x):
        self.hidden = self.hidden + x
        x.mul_(2)
        return self.hidden / 0
def get_inputs():
    return [torch.rand(3)]
""",
    )
    text = " ".join(facts.warnings)
    assert "modifies its inputs" in text
    assert "attributes that are no buffers: hidden" in text
    assert "not finite: 0" in text
    assert facts.deterministic  # the attribute is reset before each call


def test_a_type_that_cannot_cross_the_abi_is_a_fault(tmp_path: Path) -> None:
    source = "def Model(x):\n    return x.to(torch.uint16)\ndef get_inputs():\n    return [torch.rand(3)]\n"
    with pytest.raises(ReferenceFault, match="uint16"):
        look(tmp_path, source)
