"""A module with other tensors in the place of its parameters and buffers, for the length of one call."""

import contextlib
from collections.abc import Generator, Mapping

import torch


@contextlib.contextmanager
def replaced(module: torch.nn.Module, values: Mapping[str, torch.Tensor]) -> Generator[None]:
    """Puts `values` (by first name, as `named_parameters` gives it) wherever the module uses these tensors.

    Afterwards each table holds the same objects as before. `torch.func.functional_call` exchanges by name: a
    module that is registered under two names it exchanges twice, and then puts the stand-in back.
    """
    stand_ins: dict[int, torch.Tensor] = {}
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if name in values:
            stand_ins.setdefault(id(tensor), values[name])
    tables = _tables(module)
    kept = [dict(table) for table in tables]
    try:
        for table in tables:
            table.update({name: stand_ins.get(id(value), value) for name, value in table.items()})
        yield
    finally:
        for table, before in zip(tables, kept, strict=True):
            table.clear()
            table.update(before)


def _tables(module: torch.nn.Module) -> list[dict[str, torch.Tensor | None]]:
    """Where each distinct module keeps its parameters and buffers; scripted modules keep theirs elsewhere."""
    result = [vars(child).get(name) for child in module.modules() for name in ("_parameters", "_buffers")]
    return [table for table in result if isinstance(table, dict)]
