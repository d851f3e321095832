"""Nested values travel as a flat list of tensors and a JSON structure, and come back the same."""

import json
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stitch_tools.worker.trees import TreeError, flatten_inputs, flatten_outputs, fresh_copy, unflatten

LEAVES = st.one_of(
    st.integers(-9, 9).map(torch.tensor),
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=4), inner, max_size=3),
    ),
    max_leaves=8,
)


@given(TREES)
def test_inputs_come_back_as_they_were(tree: Any) -> None:
    flat = flatten_inputs(tree)
    structure = json.loads(json.dumps(flat.structure))
    assert unflatten(structure, list(flat.tensors)) == tree
    assert len(flat.names) == len(flat.tensors)


@given(TREES)
def test_outputs_come_back_as_they_were_with_numbers_as_tensors_on_the_way(tree: Any) -> None:
    flat = flatten_outputs(tree)
    structure = json.loads(json.dumps(flat.structure))
    assert unflatten(structure, list(flat.tensors)) == tree


def test_dtypes_devices_and_strings_are_constants() -> None:
    tree = (torch.float16, torch.device("cpu"), "mean", float("inf"))
    assert unflatten(flatten_inputs(tree).structure, []) == tree


def test_objects_do_not_travel_and_say_so() -> None:
    flat = flatten_inputs([object()])
    with pytest.raises(TreeError, match="type object"):
        unflatten(flat.structure, [])
    with pytest.raises(TreeError, match="output 1 is of type str"):
        flatten_outputs([1, "text"])
    with pytest.raises(TreeError, match="keys that are not strings"):
        flatten_outputs({1: torch.ones(1)})
    with pytest.raises(TreeError, match="beyond 64 bits"):
        flatten_outputs(2**63)


def test_a_structure_that_does_not_fit_its_tensors_is_refused() -> None:
    with pytest.raises(TreeError, match="fewer"):
        unflatten(["list", "leaf", "leaf"], [torch.ones(1)])
    with pytest.raises(TreeError, match="more"):
        unflatten("leaf", [torch.ones(1), torch.ones(1)])


@pytest.mark.parametrize(
    "tensor",
    [
        torch.rand(4, 5).t(),
        torch.rand(8, 9)[1::2, 2:5],
        torch.rand(1, 5).expand(3, 5),
        torch.rand(0, 3),
        torch.rand(()),
        torch.arange(6)[4:],
    ],
)
def test_a_fresh_copy_has_the_values_and_the_strides_in_other_memory(tensor: torch.Tensor) -> None:
    copy = fresh_copy(tensor)
    assert torch.equal(copy, tensor)
    assert copy.stride() == tensor.stride()
    if tensor.numel():
        assert copy.data_ptr() != tensor.data_ptr()
