"""Outputs are copied as they are, whatever the program left switched on or exchanged."""

from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from stitch_tools.worker.plain_calls import copy_plainly


class Dispatch(TorchDispatchMode):
    """Copies ones, whatever is asked for."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_copy = func is torch.ops.aten.copy_.default
        return func(args[0], torch.ones_like(args[1])) if is_copy else func(*args, **(kwargs or {}))


class Function(TorchFunctionMode):
    """The same a level higher."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_copy = func is torch.Tensor.copy_
        return func(args[0], torch.ones_like(args[1])) if is_copy else func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [Dispatch, Function])
def test_a_mode_that_was_left_switched_on_does_not_see_the_copy(mode: Any) -> None:
    plain, target, values = torch.zeros(3), torch.zeros(3), torch.full((3,), 5.0)
    with mode():
        plain.copy_(values)
        copy_plainly([target], [values])
    assert plain.tolist() == [1.0, 1.0, 1.0]
    assert target.tolist() == [5.0, 5.0, 5.0]


def test_an_exchanged_method_does_not_see_the_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    target, values = torch.zeros(3), torch.full((3,), 5.0)
    monkeypatch.setattr(torch.Tensor, "copy_", lambda target, _: target.fill_(1.0))
    copy_plainly([target, values], [values, values])
    assert target.tolist() == [5.0, 5.0, 5.0]
