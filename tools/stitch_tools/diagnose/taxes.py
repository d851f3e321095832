"""The three taxes: what launching, waiting between kernels, and traffic between kernels cost."""

from stitch_tools.diagnose.evidence import ProfileEvidence, quantity, total_quantity
from stitch_tools.diagnose.graph_time import graph_time
from stitch_tools.graph.lower_bounds import graph_traffic
from stitch_tools.models.profile import Quantity, Tax


def taxes_of(evidence: ProfileEvidence) -> tuple[Tax, ...]:
    """The taxes that can be told from what is known, largest first."""
    found = (_launch(evidence), _bulk_synchronous(evidence), _traffic(evidence))
    return tuple(sorted((tax for tax in found if tax is not None), key=lambda tax: -tax.saves_at_most_ms))


def _launch(evidence: ProfileEvidence) -> Tax | None:
    """What the host adds. A recording stretches idle time: the bound starts from the untraced latency."""
    predicted = graph_time(evidence)
    untraced = evidence.system.untraced_us
    if predicted is None or untraced is None:
        return None
    paid = max(0.0, untraced - predicted.expected_us)
    most = max(0.0, untraced - predicted.low_us)
    rows = [
        total_quantity(evidence),
        quantity("device time of an iteration", evidence.system.busy_us, "us", evidence),
        Quantity(name="predicted as one graph", value=predicted.expected_us, unit="us", origin="estimated"),
    ]
    if evidence.system.launches is not None:
        rows.append(quantity("launches by the host", evidence.system.launches, "", evidence))
    return Tax(
        kind="launch",
        ms=paid / 1e3,
        saves_at_most_ms=most / 1e3,
        remedy="graph_capture",
        explanation="latency without a profiler, less the predicted time of one CUDA graph of its kernels",
        evidence=tuple(rows),
    )


def _bulk_synchronous(evidence: ProfileEvidence) -> Tax | None:
    """What it costs that each kernel waits for the one before to end on every multiprocessor."""
    nodes, launch_us = evidence.system.device_activities, evidence.launch_us
    if nodes is None or launch_us is None:
        return None
    saved = max(0.0, nodes - 1.0) * launch_us
    saved = min(saved, 0.98 * evidence.total_us)
    return Tax(
        kind="bulk_synchronous",
        ms=saved / 1e3,
        saves_at_most_ms=saved / 1e3,
        remedy="fusion",
        explanation="kernels less one, times the device's time from one empty kernel to the next; one kernel "
        "for all would win it, each pair that is fused its part",
        evidence=(
            quantity("kernels, copies and fills", nodes, "", evidence),
            Quantity(name="time from kernel to kernel", value=launch_us, unit="us", origin="ceilings"),
        ),
    )


def _traffic(evidence: ProfileEvidence) -> Tax | None:
    """What is written for a later kernel only to be read again."""
    graph, ceilings = evidence.graph, evidence.ceilings
    if graph is None or ceilings is None or not graph.nodes:
        return None
    traffic = graph_traffic(graph)
    rate = ceilings.copy_bytes_per_s
    # What fits the last-level cache need not cost device memory's time.
    if traffic.between_bytes <= ceilings.last_level_cache_bytes and ceilings.cache_bytes_per_s is not None:
        rate = max(rate, ceilings.cache_bytes_per_s)
    paid = min(traffic.between_bytes / rate * 1e6, 0.98 * evidence.total_us)
    # Only what was not under arithmetic already is won.
    most = paid
    if evidence.bounds is not None and evidence.bounds.fused_us is not None:
        most = min(paid, max(0.0, evidence.total_us - evidence.bounds.fused_us))
    return Tax(
        kind="traffic",
        ms=paid / 1e3,
        saves_at_most_ms=most / 1e3,
        remedy="fusion",
        explanation="bytes that operations hand to each other through memory, at the measured bandwidth; "
        "products cannot be fused with each other, so that part of it stays",
        evidence=(
            Quantity(
                name="bytes between operations", value=traffic.between_bytes, unit="B", origin="counted"
            ),
            Quantity(name="bytes that must move", value=traffic.compulsory_bytes, unit="B", origin="counted"),
            Quantity(name="bandwidth", value=rate, unit="B/s", origin="ceilings"),
        ),
    )
