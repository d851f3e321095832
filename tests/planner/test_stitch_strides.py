"""Inputs that are not dense: programs read them in the strides that they were captured with."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from stitch_tools.worker.runtime.native import ProgramError
from tests.planner.stitch_support import Built, assert_equal_to_torch, made


class Called(nn.Module):
    """A function of tensors as a module."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.function(*inputs)


def images(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).to(memory_format=torch.channels_last)


def padded(rows: int, columns: int) -> torch.Tensor:
    return torch.randn(rows, columns + 5)[:, :columns]


CASES: dict[str, tuple[Callable[..., torch.Tensor], list[torch.Tensor]]] = {
    "channels-last pointwise": (lambda x: torch.relu(x) + 1, [images(2, 37, 9, 11)]),
    "channels-last beside dense": (lambda x, y: x * y, [images(2, 37, 9, 11), torch.randn(2, 37, 9, 11)]),
    "transposed pointwise": (lambda x: x.exp(), [torch.randn(70, 45).t()]),
    "transposed integers": (lambda x: x + 1, [torch.arange(70 * 45).reshape(70, 45).t()]),
    "transposed booleans": (lambda x: ~x, [(torch.randn(70, 45) > 0).t()]),
    "transposed doubles": (lambda x: x * 2, [torch.randn(70, 45, dtype=torch.float64).t()]),
    "transposed product": (lambda a, b: a @ b, [torch.randn(48, 33).t(), torch.randn(20, 48).t()]),
    "transposed softmax": (lambda x: torch.softmax(x, -1), [torch.randn(90, 70).t()]),
    "transposed sum": (lambda x: x.sum(-1), [torch.randn(90, 70).t()]),
    "padded softmax": (lambda x: torch.softmax(x, -1), [padded(40, 61)]),
    "padded sum of all": (lambda x: x.sum(), [padded(40, 61)]),
    "expanded row": (lambda x, b: x + b, [torch.randn(30, 20), torch.randn(20).expand(30, 20)]),
    "expanded column alone": (lambda b: b * 2, [torch.randn(30, 1).expand(30, 20)]),
    "expanded product": (lambda a, b: a @ b, [torch.randn(3, 8, 9), torch.randn(1, 9, 7).expand(3, 9, 7)]),
    "sliding windows": (lambda x: x * 2, [torch.randn(40).unfold(0, 8, 3)]),
    "every other": (lambda x: x + 1, [torch.randn(40, 30)[::2, ::3]]),
    "returned as it came": (lambda x: x, [torch.randn(40, 30).t()]),
    "nothing": (lambda x: x + 1, [torch.randn(0, 30).t()]),
}


class All(nn.Module):
    """Every case: a program is built once."""

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        waiting = iter(inputs)
        return tuple(function(*(next(waiting) for _ in given)) for function, given in CASES.values())


def test_strided_inputs_give_what_torch_gives(tmp_path: Path) -> None:
    torch.manual_seed(0)
    inputs = [x for _, given in CASES.values() for x in given]

    assert_equal_to_torch(All(), inputs, tmp_path)


@pytest.mark.parametrize("captured", ["dense", "turned"])
def test_an_input_that_lies_otherwise_than_captured_is_copied(captured: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    dense = torch.randn(5, 64, 80)
    layouts = {
        "dense": dense,
        "transposed": dense.transpose(1, 2).contiguous().transpose(1, 2),
        "padded": torch.zeros(5, 64, 83)[..., :80].copy_(dense),
        "sliced": torch.zeros(5, 128, 160)[:, ::2, ::2].copy_(dense),
        "turned": dense.permute(2, 1, 0).contiguous().permute(2, 1, 0),
    }
    module = Called(lambda x: torch.softmax(x * 2, -1))
    program = Built(made(module, [layouts[captured]]).stitched, module, tmp_path)

    results = {name: program([layout])[0] for name, layout in layouts.items()}

    for name, result in results.items():
        torch.testing.assert_close(result, torch.softmax(dense * 2, -1), msg=name)


def test_what_was_captured_as_one_value_for_a_dim_is_refused_where_it_may_be_several(tmp_path: Path) -> None:
    module = Called(lambda x: x * 2)
    row = torch.randn(20)
    program = Built(made(module, [row.expand(30, 20)]).stitched, module, tmp_path)

    with pytest.raises(ProgramError, match=r"one value for all of dim 0.*expand\(\)") as refused:
        program([row.repeat(30, 1)])

    assert refused.value.status == "unsupported"
    wider = torch.zeros(40)[::2].copy_(row).expand(30, 20)
    torch.testing.assert_close(program([wider])[0], wider * 2)


class Writing(nn.Module):
    """Adds to its input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2


@pytest.mark.parametrize("given", ["captured", "dense"])
def test_a_strided_input_is_written_in_any_layout(given: str, tmp_path: Path) -> None:
    module = Writing()
    program = Built(made(module, [torch.randn(30, 20).t()]).stitched, module, tmp_path)
    x = torch.randn(30, 20).t() if given == "captured" else torch.randn(20, 30)
    before = x.clone()

    result = program([x])

    torch.testing.assert_close(x, before + 1)
    torch.testing.assert_close(result[0], (before + 1) * 2)


def test_a_convolution_reads_channels_last_images_without_a_copy(tmp_path: Path) -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(16, 8, 3)

    turned = made(layer, [torch.randn(2, 16, 20, 20)])
    direct = assert_equal_to_torch(layer, [images(2, 16, 20, 20)], tmp_path)

    moved = 4 * 2 * 2 * 16 * 20 * 20
    assert turned.plan.steps[0].copied_bytes - direct.plan.steps[0].copied_bytes == moved
    assert turned.source.count("into another order") == direct.source.count("into another order") + 1
