"""Window arithmetic agrees with torch's own strides."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from stitch_planner.stitcher.lower.kernel_ir import Buffer, View, channels_last, row_major
from stitch_planner.stitcher.lower.views import collapse, expand, permute, reshape, slice_dim


def window(tensor: torch.Tensor) -> View:
    size = max(tensor.untyped_storage().nbytes() // tensor.element_size(), 1)
    buffer = Buffer("x", "float32", size, "input")
    return View(buffer, tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset()))


def seen(view: View, tensor: torch.Tensor) -> torch.Tensor:
    return torch.as_strided(tensor, view.shape, view.strides, view.offset)


shapes = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)


@given(shapes, st.randoms(use_true_random=False))
def test_a_permuted_and_sliced_window_shows_what_torch_shows(shape: tuple[int, ...], rng: object) -> None:
    x = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    order = list(range(len(shape)))
    rng.shuffle(order)  # pyright: ignore[reportAttributeAccessIssue]
    moved, view = x.permute(order), permute(window(x), order)
    assert torch.equal(seen(view, x), moved)
    narrowed = slice_dim(view, 0, 0, max(1, moved.shape[0] - 1))
    assert torch.equal(seen(narrowed, x), moved[: max(1, moved.shape[0] - 1)])


@given(shapes, shapes, st.booleans())
def test_a_reshape_is_free_exactly_when_torch_can_view(
    shape: tuple[int, ...], other: tuple[int, ...], flip: bool
) -> None:
    x = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    source = x.permute(*reversed(range(x.dim()))) if flip else x
    if torch.Size(other).numel() != x.numel():
        other = (x.numel(), 1)
    found = reshape(window(source), other)
    try:
        expected = source.view(other)
    except RuntimeError:
        assert found is None
        return
    assert found is not None
    assert torch.equal(seen(found, x), expected)


@given(shapes)
def test_dense_and_channels_last_strides_are_torchs(shape: tuple[int, ...]) -> None:
    assert row_major(shape) == torch.empty(shape).stride()
    image = (*shape, 2, 3, 4)[:4]
    strides = torch.empty(image).contiguous(memory_format=torch.channels_last).stride()
    assert all(a == b or size == 1 for a, b, size in zip(channels_last(image), strides, image, strict=True))


def test_broadcast_dims_have_stride_zero() -> None:
    view = expand(window(torch.empty(3, 1)), (2, 3, 4))
    assert view.strides == (0, 1, 0)


def test_loops_that_every_walk_takes_in_one_go_are_merged() -> None:
    assert collapse((2, 3, 4), [(12, 4, 1), (12, 4, 1)]) == ([24], [[1], [1]])
    assert collapse((2, 3, 4), [(12, 4, 1), (0, 0, 1)]) == ([6, 4], [[4, 1], [0, 1]])
    assert collapse((1, 1), [(1, 1)]) == ([1], [[0]])
