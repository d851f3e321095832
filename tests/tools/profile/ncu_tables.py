"""Launches of kernels and pages of ncu for tests: a healthy kernel, of which a test changes a few figures."""

import csv
import io
from collections.abc import Mapping, Sequence

from stitch_tools.profile import ncu_metrics as m
from stitch_tools.profile.ncu_report import NcuKernel

HEALTHY: dict[str, float] = {
    m.DURATION_NS: 100_000.0,
    m.SM: 55.0,
    m.MEMORY: 85.0,
    m.DRAM: 85.0,
    m.L2: 50.0,
    m.L1: 40.0,
    m.ISSUE_ACTIVE: 45.0,
    m.DRAM_READ_BYTES: 1.5e8,
    m.DRAM_WRITE_BYTES: 1.5e8,
    m.LOAD_REQUESTS: 1e6,
    m.LOAD_SECTORS: 16e6,
    m.STORE_REQUESTS: 1e6,
    m.STORE_SECTORS: 16e6,
    m.LOAD_SECTOR_USE: 100.0,
    m.STORE_SECTOR_USE: 100.0,
    m.SHARED_LOAD_CONFLICTS: 0.0,
    m.SHARED_STORE_CONFLICTS: 0.0,
    m.SHARED_LOAD_PASSES: 0.0,
    m.SHARED_STORE_PASSES: 0.0,
    m.SHARED_LOADS: 0.0,
    m.SHARED_STORES: 0.0,
    m.DATA_PASSES_ACTIVE: 30.0,
    m.LOCAL_INSTRUCTIONS: 0.0,
    m.LOCAL_LOAD_SECTORS: 0.0,
    m.LOCAL_STORE_SECTORS: 0.0,
    m.INSTRUCTIONS: 1e7,
    m.TENSOR_INSTRUCTIONS: 0.0,
    m.TENSOR_ACTIVE: 0.0,
    m.FMA_ACTIVE: 10.0,
    m.FFMA: 1e7,
    m.FADD: 1e7,
    m.FMUL: 1e7,
    m.HFMA: 0.0,
    m.DFMA: 0.0,
    m.REGISTERS: 32.0,
    m.SHARED_STATIC: 0.0,
    m.SHARED_DYNAMIC: 0.0,
    m.SHARED_DRIVER: 1024.0,
    m.MULTIPROCESSORS: 132.0,
    m.WARPS_ACTIVE: 90.0,
    m.ELIGIBLE: 1.5,
    m.ACTIVE_THREADS: 32.0,
    m.UNIFORM_BRANCHES: 100.0,
    **{m.stall_metric(stall): 0.1 for stall in m.STALLS},
    m.stall_metric("selected"): 1.0,
    m.stall_metric("long_scoreboard"): 4.0,
}
"""A copy with float4 on a GPU of 132 multiprocessors: bound by DRAM, and nothing to be said against it."""


def launch(
    changed: Mapping[str, float] | None = None,
    *,
    blocks: int = 1_000_000,
    threads: int = 256,
    name: str = "scale(const float *, float *)",
    without: Sequence[str] = (),
) -> NcuKernel:
    """The healthy kernel with other figures."""
    metrics = {name: value for name, value in {**HEALTHY, **(changed or {})}.items() if name not in without}
    return NcuKernel(0, name, (blocks, 1, 1), (threads, 1, 1), "9.0", metrics)


def raw_page(kernels: Sequence[NcuKernel], *, unit: str = "ns") -> str:
    """The kernels as `ncu --csv --page raw` prints them, with lines of ncu around."""
    names = list(dict.fromkeys(name for kernel in kernels for name in kernel.metrics))
    fixed = ["ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream"]
    fixed += ["Block Size", "Grid Size", "Device", "CC"]
    text = io.StringIO()
    text.write("==PROF== Connected to process 725\n")
    writer = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerow([*fixed, *names])
    writer.writerow([*[""] * len(fixed), *(unit if name == m.DURATION_NS else "" for name in names)])
    for number, kernel in enumerate(kernels):
        row = [str(number), "725", "python", "127.0.0.1", kernel.name, "1", "7"]
        row += [str(kernel.block), str(kernel.grid), "0", kernel.capability]
        writer.writerow(
            [*row, *(f"{kernel.metrics[n]:,.6f}" if n in kernel.metrics else "n/a" for n in names)]
        )
    text.write("==PROF== Disconnected from process 725\n")
    return text.getvalue()


def details_page(kernels: Sequence[NcuKernel]) -> str:
    """The kernels as the details page of older versions prints them: a line a metric."""
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerow(
        ["ID", "Kernel Name", "Block Size", "Grid Size", "CC", "Metric Name", "Metric Unit", "Metric Value"]
    )
    for number, kernel in enumerate(kernels):
        for metric, value in kernel.metrics.items():
            unit = "nsecond" if metric == m.DURATION_NS else ""
            where = [str(number), kernel.name, str(kernel.block), str(kernel.grid), kernel.capability]
            writer.writerow([*where, metric, unit, f"{value:,.6f}"])
    return text.getvalue()


def rules_page(rows: Sequence[Sequence[str]]) -> str:
    """Results of rules as the details page of ncu 2025 prints them, beside a line with a metric.

    Args:
        rows: launch, kernel, rule, its type, what it says, "global" or "local", and percent; "" where it
            estimates nothing.
    """
    columns = ("ID", "Kernel Name", "Section Name", "Metric Name", "Metric Unit", "Metric Value")
    more = ("Rule Name", "Rule Type", "Rule Description", "Estimated Speedup Type", "Estimated Speedup")
    text = io.StringIO()
    text.write("==PROF== Disconnected from process 725\n")
    writer = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerow([*columns, *more])
    writer.writerow(["0", "k", "Occupancy", "Achieved Occupancy", "%", "16.61", "", "", "", "", ""])
    for launch_id, kernel, name, kind, said, scope, percent in rows:
        writer.writerow([launch_id, kernel, "Occupancy", "", "", "", name, kind, said, scope, percent])
    return text.getvalue()
