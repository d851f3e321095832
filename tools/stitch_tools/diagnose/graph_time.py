"""How long one forward would take as one CUDA graph, from its recording.

Device time as recorded, plus the gap between two nodes of a graph for each, plus the launch of the graph,
plus the copies of the inputs. The gap is what lies between the time from one short kernel to the next in a
graph (measured without a profiler, with the ceilings) and the recorded time of the same kernels: both are the
same kernels, so their difference is what each recorded one lacks. Kernels of real networks need a little
more. The constants come from three references of KernelBench level 3, and were tried on others
(docs/benchmarks/profile.md).
"""

from dataclasses import dataclass

from stitch_tools.diagnose.evidence import ProfileEvidence

USUAL_GAP_US = 0.36
"""Where it was not measured."""
_REAL_KERNELS_US = 0.25
"""What a node of a real network needs beyond the short kernels: larger grids, more parameters."""
GRAPH_CALL_US = 13.0
"""Launching one graph and waiting for its end, beyond its nodes: an empty graph, on one H200."""
COPY_CALL_US = 15.0
"""What the copy of one input before the graph adds beside its bytes: 10 to 60, by the host."""
_LEAST_GAP_US, _MOST_GAP_US = 0.0, 1.0
_RANGE_US = 0.3
"""How far the gap of a node may be off, since it depends on grids and dependencies."""
_RANGE_BUSY = 0.02
"""How far the device's own time may be off: clocks, and what the last-level cache still holds, differ."""


@dataclass(frozen=True)
class GraphTime:
    """Predicted latency of one graph with its inputs copied in."""

    low_us: float
    expected_us: float
    high_us: float
    naive_us: float
    """The naive prediction: device time as recorded."""
    gap_us: float
    is_gap_measured: bool
    is_recurrent: bool
    """Whether layers of a recurrent network may run side by side in a graph, which no recording shows."""


def graph_time(evidence: ProfileEvidence) -> GraphTime | None:
    """The prediction; None on a CPU, or where nothing was recorded on the device."""
    system = evidence.system
    nodes = system.device_activities
    if not evidence.on_gpu or not nodes:
        return None
    gap, is_measured = _gap_us(evidence)
    fixed = GRAPH_CALL_US + _copies_us(evidence)
    expected = system.busy_us + nodes * gap + fixed
    low = (1.0 - _RANGE_BUSY) * system.busy_us + nodes * max(_LEAST_GAP_US, gap - _RANGE_US) + fixed
    high = (1.0 + _RANGE_BUSY) * system.busy_us + nodes * (gap + _RANGE_US) + fixed
    recurrent = evidence.is_recurrent
    if recurrent:
        # Layers that the host launched one after the other overlap in a graph: at best the device goes from
        # kernel to kernel at its own pace, at worst as recorded.
        pace = nodes * (evidence.launch_us or 1.4) + fixed
        low = min(low, pace, system.busy_us / 2.0 + fixed)
        expected = min(expected, max(pace, system.busy_us / 2.0 + fixed))
    return GraphTime(low, expected, high, system.busy_us, gap, is_measured, recurrent)


def device_pace_us(evidence: ProfileEvidence) -> float | None:
    """What one forward takes at least while its kernels are launched one by one; None as in `graph_time`.

    The device's time with the gap from each kernel to the next, and the wait for its end: no faster host
    makes it shorter.
    """
    nodes = evidence.system.device_activities
    if not evidence.on_gpu or not nodes:
        return None
    return evidence.system.busy_us + nodes * _gap_us(evidence)[0] + GRAPH_CALL_US


def _gap_us(evidence: ProfileEvidence) -> tuple[float, bool]:
    node_us = evidence.ceilings.node_us if evidence.ceilings is not None else None
    if node_us is None or evidence.calibration_us is None:
        return USUAL_GAP_US, False
    gap = node_us - evidence.calibration_us + _REAL_KERNELS_US
    return min(_MOST_GAP_US, max(_LEAST_GAP_US, gap)), True


def _copies_us(evidence: ProfileEvidence) -> float:
    """Time to copy the inputs of a call into the graph's own."""
    if evidence.graph is None or evidence.ceilings is None:
        return 0.0
    sizes = [row.spec.nbytes for row in evidence.graph.inputs if row.kind == "user"]
    moved_us = 2.0 * sum(sizes) / evidence.ceilings.copy_bytes_per_s * 1e6
    return COPY_CALL_US * len(sizes) + moved_us
