"""Inputs with one element in each row beside which the exponential of any other vanishes."""

import torch


def spikes(values: torch.Tensor, lowest: float, highest: float, generator: torch.Generator) -> torch.Tensor:
    """The values with a spike of `lowest` to `highest` times their rms in each last-axis row.

    In half of the rows it lies where blocks of columns begin or end, in a quarter just beyond the diagonal,
    which a causal mask hides, else anywhere. It is positive until each edge had one, then of either sign.
    """
    rows = values.reshape(-1, values.shape[-1] if values.dim() else 1).clone()
    count, width = rows.shape
    matrix = values.shape[-2] if values.dim() > 1 else 1
    edges, row = _edges(width), torch.arange(count)
    # By turns along the rows of a matrix and from matrix to matrix: each row has each turn in some matrix.
    turn = (row % matrix + row // matrix + int(torch.randint(4, (), generator=generator))) % 4
    number = (turn < 2).cumsum(0)
    start = int(torch.randint(len(edges), (), generator=generator))
    columns = torch.randint(width, (count,), generator=generator)
    columns = torch.where(turn == 2, (row % matrix + 1) % width, columns)
    columns = torch.where(turn < 2, edges[(number + start) % len(edges)], columns)
    signs = torch.where((number <= len(edges)) | (row % 2 == 0), 1.0, -1.0)
    heights = lowest * (highest / lowest) ** torch.rand(count, generator=generator)
    rows[row, columns] = signs * heights * float(values.double().square().mean().sqrt())
    return rows.view(values.shape)


def _edges(width: int) -> torch.Tensor:
    """Columns next to a power of two, where unrolled loops and tiles begin and end, and the last one."""
    powers = [1 << exponent for exponent in range(width.bit_length())]
    near = {0, width - 1, *powers, *(power - 1 for power in powers)}
    return torch.tensor(sorted(column for column in near if column < width))
