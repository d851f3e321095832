"""How much of a `ModelNew`'s time is torch's own operators: a worker's claim, for the `partial` flag."""

import time
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# They move no data: memory, shapes and types only. (One string: thirty quotes would hide the names.)
_FREE = frozenset(
    """empty empty_strided empty_like view _unsafe_view reshape as_strided alias detach t transpose permute
    expand squeeze unsqueeze select slice narrow split unbind chunk lift_fresh resize_ set_ is_same_size
    _local_scalar_dense""".split()  # noqa: SIM905
)


class _Stopwatch(TorchDispatchMode):
    """Adds up the time of every operator that computes."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.seconds = 0.0
        self.names: dict[str, int] = {}
        self._cuda = device.startswith("cuda")

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func._schema.name
        if name.startswith("aten::") and name.removeprefix("aten::") in _FREE:
            return func(*args, **(kwargs or {}))
        if self._cuda:
            torch.cuda.synchronize()
        start = time.perf_counter()
        out = func(*args, **(kwargs or {}))
        if self._cuda:
            torch.cuda.synchronize()
        if name.startswith("aten::"):
            self.seconds += time.perf_counter() - start
            self.names[name] = self.names.get(name, 0) + 1
        return out


def eager_share(module: torch.nn.Module, arguments: Any, device: str) -> tuple[float, list[str]]:
    """Share of a forward's time spent in torch's operators (at most 1), and their names by frequency.

    The module's buffers are put back afterwards.
    """
    buffers = {name: tensor.clone() for name, tensor in module.named_buffers()}

    def call() -> float:
        start = time.perf_counter()
        with torch.no_grad():
            _ = module(**arguments) if isinstance(arguments, dict) else module(*arguments)
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        return time.perf_counter() - start

    call()
    total = min(call() for _ in range(3))
    watch = _Stopwatch(device)
    with watch:
        call()
    with torch.no_grad():
        for name, tensor in module.named_buffers():
            tensor.copy_(buffers[name])
    names = sorted(watch.names, key=lambda name: -watch.names[name])
    return min(1.0, watch.seconds / max(total, 1e-9)), names
