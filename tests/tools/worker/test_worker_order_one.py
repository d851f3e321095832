"""Weights of order 1: the same in two processes that build alike, whatever the default initialisers give."""

import copy
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn

from stitch_tools.worker.order_one_weights import Scale, order_one_weights

STATE = b"some generator state"


def build(make: Callable[[], nn.Module], state: bytes = STATE, **scale: object) -> nn.Module:
    with order_one_weights(state, Scale(**scale)):  # pyright: ignore[reportArgumentType]
        return make()


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(64, 32)
        self.norm = nn.BatchNorm1d(32)
        self.scale = nn.Parameter(1e-6 * torch.ones(32))
        self.table = nn.Embedding(9, 4, padding_idx=2)
        self.steps = nn.Parameter(torch.arange(3), requires_grad=False)


class HandMade(nn.Module):
    """The same parameters under other names, started otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(32, 64))
        self.weight.data.uniform_(-1, 1)
        self.bias = nn.Parameter(torch.zeros(32))
        self.gamma, self.beta = nn.Parameter(torch.ones(32)), nn.Parameter(torch.zeros(32))
        self.scale = nn.Parameter(torch.full((32,), 3.0))


def test_what_starts_as_zeros_and_ones_is_of_order_one() -> None:
    module = build(Layers)
    assert isinstance(module, Layers)
    vectors = [module.fc.bias, module.norm.weight, module.norm.bias, module.scale, module.norm.running_mean]
    for tensor in vectors:
        assert tensor is not None
        values = tensor.detach()
        assert 0.5 <= float(values.abs().min()) <= float(values.abs().max()) <= 1.5
        assert bool((values < 0).any())
    assert module.norm.running_var is not None
    assert float(module.norm.running_var.min()) >= 0.5
    assert 0.5 < float(module.fc.weight.detach().square().mean()) * 32 < 2
    assert not module.table.weight[2].any()
    assert module.steps.tolist() == [0, 1, 2]


def test_other_code_for_the_same_parameters_gets_the_same_values() -> None:
    left, right = build(Layers), build(HandMade)
    assert isinstance(left, Layers)
    assert isinstance(right, HandMade)
    pairs = [
        (left.fc.weight, right.weight),
        (left.fc.bias, right.bias),
        (left.norm.weight, right.gamma),
        (left.norm.bias, right.beta),
        (left.scale, right.scale),
    ]
    assert all(torch.equal(one, two) for one, two in pairs)
    other = build(Layers, b"another state")
    assert isinstance(other, Layers)
    assert not torch.equal(left.scale, other.scale)


def test_the_generator_is_consumed_as_without_it() -> None:
    torch.manual_seed(3)
    build(Layers)
    first = torch.rand(4)
    torch.manual_seed(3)
    Layers()
    assert torch.equal(first, torch.rand(4))
    assert nn.Parameter(torch.zeros(3)).tolist() == [0, 0, 0]


def test_what_is_computed_from_other_parameters_stays_as_computed() -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
            self.both = nn.Parameter(torch.cat([self.one.weight, self.two.weight]))
            self.copied = nn.Linear(4, 4)
            self.copied.load_state_dict(self.one.state_dict())
            self.twin = copy.deepcopy(self.two)

    module = build(Packed)
    assert isinstance(module, Packed)
    assert torch.equal(module.both, torch.cat([module.one.weight, module.two.weight]))
    assert torch.equal(module.copied.weight, module.one.weight)
    assert torch.equal(module.twin.weight, module.two.weight)
    assert not torch.equal(module.one.weight, module.two.weight)


def test_initialisers_that_run_after_a_copy_count_too() -> None:
    def make() -> nn.Module:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            stack = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 2)
        for parameter in stack.parameters():
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)
        return stack

    stack = build(make)
    weights = stack.state_dict()
    assert not torch.equal(weights["layers.0.linear1.weight"], weights["layers.1.linear1.weight"])
    assert torch.equal(weights["layers.0.norm1.weight"], weights["layers.1.norm1.weight"])


@pytest.mark.parametrize("make", [lambda: nn.LSTM(4, 5, 2), lambda: nn.Conv2d(3, 8, 3), nn.Identity])
def test_positive_vectors_and_gain_are_as_asked(make: Callable[[], nn.Module]) -> None:
    plain, scaled = build(make), build(make, gain=4.0, positive=True)
    for one, four in zip(plain.parameters(), scaled.parameters(), strict=True):
        assert torch.equal(four, 4 * one if one.dim() > 1 else one.abs())
