"""Inputs that lie in each other's memory still do after copies."""

import torch

from stitch_tools.worker.aliased_inputs import SharedPlace, map_shared, places_of, reunite
from stitch_tools.worker.trees import fresh_copy


def test_the_same_tensor_twice_is_one_tensor_after_a_copy() -> None:
    x = torch.randn(3, 4)
    first, (second,) = map_shared((x, [x]), fresh_copy)
    assert first.data_ptr() == second.data_ptr() != x.data_ptr()
    first.add_(1)
    assert torch.equal(second, x + 1)


def test_a_view_before_its_base_is_a_view_of_the_copy() -> None:
    base = torch.randn(6, 4)
    view, copied = map_shared([base[2:, 1:3].t(), base], fresh_copy)
    assert torch.equal(view, base[2:, 1:3].t())
    copied.zero_()
    assert not view.any()


def test_places_tell_root_and_offset_and_neighbors_stay_apart() -> None:
    base = torch.randn(6, 4)
    tensors = [base[1], base, base[:, 2], torch.randn(3), torch.empty(0), base.view(torch.int32)]
    assert places_of(tensors) == [
        SharedPlace(1, 4),
        SharedPlace(1),
        SharedPlace(1, 2),
        SharedPlace(3),
        SharedPlace(4),
        SharedPlace(5),
    ]
    halves = places_of([base[:4], base[3:]])
    assert halves == [SharedPlace(0), SharedPlace(1)]


def test_copies_that_travelled_apart_are_put_together_again() -> None:
    base = torch.arange(12.0).view(3, 4)
    tensors = [base, base[1:, ::2]]
    apart = [fresh_copy(tensor) for tensor in tensors]
    root, view = reunite(apart, places_of(tensors))
    root[1, 0] = 50
    assert view[0, 0] == 50
    assert reunite(apart, ()) == apart


def test_a_change_of_strides_leaves_views_their_own_values() -> None:
    base = torch.randn(4, 6).t()
    whole, part = map_shared([base, base[1:3]], lambda tensor: tensor.contiguous() * 2)
    assert torch.equal(part, whole[1:3])
