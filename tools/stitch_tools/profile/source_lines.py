"""Reads ncu's source page (`--page source --csv --print-source cuda`): which line has most of each figure."""

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

LineFigure = Literal[
    "samples", "excess_sectors", "excess_passes", "local_sectors", "instructions", "idle_threads"
]
_COLUMNS: dict[LineFigure, tuple[str, ...]] = {
    "samples": ("warp stall sampling (all samples)", "# samples", "sampling data (all)"),
    "excess_sectors": ("l2 theoretical sectors global excessive",),
    "excess_passes": ("l1 wavefronts shared excessive",),
    "local_sectors": ("l2 theoretical sectors local",),
    "instructions": ("instructions executed",),
}
"""Columns by figure, lower case, as versions of ncu name them; the first one that is there counts."""
_INSTRUCTIONS, _THREADS = "instructions executed", "thread instructions executed"
_LANES = 32


@dataclass(frozen=True)
class HotLine:
    """The line of a kernel's source with most of one figure."""

    file: str
    """As the compiler wrote it."""
    number: int
    """1-based."""
    source: str
    share: float
    """Of the kernel's whole figure, 0 to 1."""


@dataclass(frozen=True)
class _Row:
    file: str
    number: int
    source: str
    figures: Mapping[LineFigure, float]


def hot_lines(text: str) -> dict[str, dict[LineFigure, HotLine]]:
    """By kernel (as the page names it), the line with most of each figure; {} of any other text."""
    rows: dict[str, list[_Row]] = {}
    for kernel, row in _rows(text):
        rows.setdefault(kernel, []).append(row)
    return {kernel: found for kernel, mine in rows.items() if (found := _hottest(mine))}


def _hottest(rows: Sequence[_Row]) -> dict[LineFigure, HotLine]:
    found: dict[LineFigure, HotLine] = {}
    figures: tuple[LineFigure, ...] = (*_COLUMNS, "idle_threads")
    for figure in figures:
        total = sum(row.figures.get(figure, 0.0) for row in rows)
        if total > 0:
            most = _largest(rows, figure)
            share = most.figures.get(figure, 0.0) / total
            found[figure] = HotLine(most.file, most.number, most.source.strip(), round(share, 4))
    return found


def _largest(rows: Sequence[_Row], figure: LineFigure) -> _Row:
    return max(rows, key=lambda row: row.figures.get(figure, 0.0))


def _rows(text: str) -> Iterator[tuple[str, _Row]]:
    """Lines with figures, each with its kernel; a page holds a table a file of each kernel."""
    kernel, file, header = "", "", list[str]()
    for values in csv.reader(line for line in text.splitlines() if not line.startswith("==")):
        if not values:
            continue
        label = values[0].strip().lower()
        if label in ("kernel name", "function name") and len(values) > 1:
            kernel, file, header = values[1], "", []
        elif label in ("file path", "file name", "file") and len(values) > 1:
            # The path is printed before the bare name.
            file, header = (values[1] if label == "file path" or not file else file), []
        elif label in ("#", "line", "line no"):
            header = [name.strip().lower() for name in values]
        elif header and label.isdecimal() and "address" not in header:
            cells = dict(zip(header, values, strict=False))
            figures = _figures(cells)
            if any(figures.values()):
                yield kernel, _Row(file, int(label), cells.get("source", ""), figures)


def _figures(cells: Mapping[str, str]) -> dict[LineFigure, float]:
    figures: dict[LineFigure, float] = {}
    for figure, columns in _COLUMNS.items():
        column = next((name for name in columns if name in cells), None)
        if column is not None:
            figures[figure] = _number(cells[column])
    if _INSTRUCTIONS in cells and _THREADS in cells:
        idle = _LANES * _number(cells[_INSTRUCTIONS]) - _number(cells[_THREADS])
        figures["idle_threads"] = max(0.0, idle)
    return figures


def _number(text: str) -> float:
    try:
        return float(text.replace(",", "").split()[0])
    except (ValueError, IndexError):
        return 0.0
