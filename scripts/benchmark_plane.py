"""How long tensors on a GPU take between judge and program, in memory of the GPU and through the host's."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmark_table import Table, spread

ROOT = Path(__file__).resolve().parent.parent
SIZES = (("1 MB", 10**6, 40, 20), ("200 MB", 2 * 10**8, 20, 7), ("4 GB", 4 * 10**9, 7, 3))
"""Name, bytes, and rounds in memory of the GPU and of the host."""
STEPS = (("inputs in", "inputs_s"), ("outputs made and poisoned", "poisoned_s"), ("outputs out", "outputs_s"))


def plane() -> Table:
    """Inputs from the judge's master to the program's copy, outputs back to the judge's; two processes."""
    from stitch_tools.run.child_outcome import ChildDied
    from stitch_tools.run.data_plane import PlaneError, started_pair
    from stitch_tools.run.interpreter import find_interpreter
    from stitch_tools.run.session import TargetSession

    table = Table("Tensors between judge and program", ("bytes", "step", "plane", "median", "half IQR", "n"))
    with TargetSession(find_interpreter(None, ROOT)) as session:
        table.notes.append(f"isolation level: {session.sandbox_level}; GPU: {gpu()}")
        table.notes.append("by the controller's clock, messages included; each round is in fresh memory")
        for kind in ("device", "host"):
            try:
                with started_pair(session, kind) as pair:
                    pair.round_trip(10**6)
                    measure(table, kind, pair)
            except (PlaneError, ChildDied) as error:
                table.notes.append(f"{kind}: not measured any further: {error}")
    table.rows.sort(key=lambda row: [size[0] for size in SIZES].index(row[0]))
    return table


def measure(table: Table, kind: str, pair: Any) -> None:
    """Rows of one plane."""
    for name, nbytes, on_device, on_host in SIZES:
        pair.round_trip(nbytes)
        seen = [pair.round_trip(nbytes) for _ in range(on_device if kind == "device" else on_host)]
        for step, field in STEPS:
            milliseconds = [getattr(times, field) * 1e3 for times in seen]
            table.rows.append([name, step, kind, *spread(milliseconds, "ms", 2)])


def gpu() -> str:
    """Its model and driver."""
    from stitch_tools.machine.devices import find_gpus

    found = find_gpus()
    names = ", ".join(gpu.name for gpu in found.gpus) or "none"
    return f"{names}, driver {found.driver or 'unknown'}"


SECTIONS: dict[str, Callable[[], Table]] = {"plane": plane}
