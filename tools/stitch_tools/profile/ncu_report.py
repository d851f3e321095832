"""Reads what ncu prints as CSV: the raw page with a column a metric, or an older one with a line a metric."""

import csv
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from stitch_tools.profile.ncu_metrics import OLDER_NAMES
from stitch_tools.profile.ownership import short_name

_HEADER = re.compile(r'^"?ID"?,')
_DIMENSIONS = re.compile(r"-?\d+")
_UNIT_SCALES = {
    "ns": 1.0,
    "nsecond": 1.0,
    "us": 1e3,
    "usecond": 1e3,
    "ms": 1e6,
    "msecond": 1e6,
    "s": 1e9,
    "second": 1e9,
    "byte": 1.0,
    "kbyte": 1e3,
    "mbyte": 1e6,
    "gbyte": 1e9,
}
"""To nanoseconds and bytes, for reports that were not printed in base units."""


@dataclass(frozen=True)
class NcuKernel:
    """One launch of a kernel with its metrics, times in nanoseconds and sizes in bytes."""

    launch: int
    """Number of the launch within the report."""
    name: str
    """Demangled, with template arguments and parameters."""
    grid: tuple[int, int, int] | None
    block: tuple[int, int, int] | None
    capability: str
    """Compute capability ("9.0"); "" where the report does not say."""
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])

    @property
    def short_name(self) -> str:
        """The name without namespaces, template arguments and parameters."""
        return short_name(self.name)

    def get(self, metric: str) -> float | None:
        """The value of a metric, by its older name where it has one; None where it was not collected."""
        value = self.metrics.get(metric)
        return value if value is not None else self.metrics.get(OLDER_NAMES.get(metric, ""))

    @property
    def duration_us(self) -> float | None:
        """Time of the launch under the tool."""
        duration_ns = self.get("gpu__time_duration.sum")
        return None if duration_ns is None else duration_ns / 1e3

    @property
    def blocks(self) -> int | None:
        """Blocks of the grid."""
        return None if self.grid is None else self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def threads(self) -> int | None:
        """Threads of a block."""
        return None if self.block is None else self.block[0] * self.block[1] * self.block[2]


def parse_ncu(text: str) -> tuple[NcuKernel, ...]:
    """The launches of `ncu --csv`, in order; of any other text none.

    Lines of ncu and of the program around the table are skipped. Both layouts are read: `--page raw` with a
    column a metric and a row of units, and the details page with the columns Metric Name, Unit and Value.
    """
    lines = text.splitlines()
    start = next((at for at, line in enumerate(lines) if _HEADER.match(line)), None)
    if start is None:
        return ()
    rows = list(csv.reader(line for line in lines[start:] if not line.startswith("==")))
    header, body = rows[0], [row for row in rows[1:] if row]
    if "Metric Name" in header:
        return _from_lines(header, body)
    if not body:
        return ()
    # The row of units has no launch's number.
    has_units = not body[0][0].strip()
    units = dict(zip(header, body[0], strict=False)) if has_units else {}
    launches = (dict(zip(header, row, strict=False)) for row in (body[1:] if has_units else body))
    return tuple(_kernel(row, _metrics(row, units)) for row in launches if row["ID"].strip().isdecimal())


def _from_lines(header: list[str], body: Iterable[list[str]]) -> tuple[NcuKernel, ...]:
    found: dict[str, tuple[dict[str, str], dict[str, float]]] = {}
    for values in body:
        row = dict(zip(header, values, strict=False))
        if not row["ID"].strip().isdecimal():
            continue
        metrics = found.setdefault(row["ID"], (row, {}))[1]
        number = _number(row.get("Metric Value", ""), row.get("Metric Unit", ""))
        if number is not None:
            metrics[row["Metric Name"]] = number
    return tuple(_kernel(row, metrics) for row, metrics in found.values())


def _kernel(row: Mapping[str, str], metrics: Mapping[str, float]) -> NcuKernel:
    name = row.get("Kernel Name") or row.get("Function Name") or ""
    return NcuKernel(
        launch=int(row["ID"]),
        name=name,
        grid=_dimensions(row.get("Grid Size", "")) or _axes(metrics, "grid"),
        block=_dimensions(row.get("Block Size", "")) or _axes(metrics, "block"),
        capability=row.get("CC", "").strip() or _capability(metrics),
        metrics=metrics,
    )


def _axes(metrics: Mapping[str, float], of: str) -> tuple[int, int, int] | None:
    """Size of grid or block from metrics: ncu of 2022 prints no column for it."""
    sizes = [metrics.get(f"launch__{of}_dim_{axis}") for axis in "xyz"]
    x, y, z = (None if size is None else int(size) for size in sizes)
    return None if x is None or y is None or z is None else (x, y, z)


def _capability(metrics: Mapping[str, float]) -> str:
    name = "device__attribute_compute_capability"
    major, minor = metrics.get(f"{name}_major"), metrics.get(f"{name}_minor")
    return "" if major is None or minor is None else f"{major:.0f}.{minor:.0f}"


def _metrics(row: Mapping[str, str], units: Mapping[str, str]) -> dict[str, float]:
    numbers = ((name, _number(value, units.get(name, ""))) for name, value in row.items() if "__" in name)
    return {name: number for name, number in numbers if number is not None}


def _number(text: str, unit: str) -> float | None:
    plain = text.strip().replace(",", "")
    # Metrics with instances print "total (one; two; ...)".
    plain = plain.partition(" ")[0]
    try:
        value = float(plain)
    except ValueError:
        return None
    return value * _UNIT_SCALES.get(unit.strip().lower().partition("/")[0], 1.0)


def _dimensions(text: str) -> tuple[int, int, int] | None:
    numbers = [int(word) for word in _DIMENSIONS.findall(text)]
    return (numbers[0], numbers[1], numbers[2]) if len(numbers) == 3 else None
