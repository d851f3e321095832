"""Causes on the host's side of a GPU: launches, waits, transfers, allocations."""

from stitch_tools.diagnose.evidence import ProfileEvidence, quantity, total_quantity
from stitch_tools.diagnose.graph_time import device_pace_us, graph_time
from stitch_tools.diagnose.rule import Looked, Seen
from stitch_tools.models.profile import Quantity, Transfer

_MATTERS = 0.05
"""Share of the whole below which a cause is ruled out."""
_OFTEN = 0.25
"""Waits per launch from which waiting, and not launching, is what the host does."""
_PINNED_BYTES_PER_S = 50e9
"""What pinned memory reaches over PCIe 5 x16, where the device's own rate was not measured."""
_NEARLY = 0.8
"""Share of the measured rate from which copies cannot be made much faster."""


def host_bound(evidence: ProfileEvidence) -> Looked:
    """The device waits for the host: fewer or cheaper launches win that time."""
    predicted, untraced = graph_time(evidence), evidence.system.untraced_us
    if predicted is None or untraced is None:
        return None
    graphs, launches = evidence.system.graph_launches or 0.0, evidence.system.launches or 0.0
    if graphs and graphs >= 0.5 * launches:
        return "it is launched as a graph already"
    waits = sum(row.count for row in evidence.system.syncs)
    if waits >= _OFTEN * max(1.0, launches):
        return (
            f"the host waits {waits:g} times inside of the forward: no graph holds such waits, and what the "
            "launches cost shows when they are gone"
        )
    saved = untraced - predicted.expected_us
    if saved < _MATTERS * untraced:
        return (
            f"device time with its gaps ({predicted.expected_us:.0f} us) is nearly the whole latency "
            f"({untraced:.0f} us)"
        )
    between = evidence.system.host_between_launches_us
    rows = [
        total_quantity(evidence),
        quantity("device time of an iteration", evidence.system.busy_us, "us", evidence),
        quantity("launches by the host", launches, "", evidence),
        Quantity(name="predicted as one graph", value=predicted.expected_us, unit="us", origin="estimated"),
    ]
    if between is not None:
        rows.append(quantity("host time between launches (median)", between, "us", evidence))
    kind = " (layers of the recurrent network may overlap in a graph)" if predicted.is_recurrent else ""
    return Seen(
        f"the device is idle {1.0 - min(1.0, predicted.expected_us / untraced):.0%} of the time, since the "
        f"host needs that long for {launches:.0f} launches{kind}",
        max(0.0, untraced - predicted.high_us),
        saved,
        max(saved, untraced - predicted.low_us),
        tuple(rows),
    )


def sync_in_loop(evidence: ProfileEvidence) -> Looked:
    """The host waits for the device in the middle of the forward."""
    syncs = evidence.system.syncs
    count = sum(row.count for row in syncs)
    if count < 0.5:
        return "the host waits for the device nowhere inside of the forward"
    idle = evidence.system.idle_us or 0.0
    waited = sum(row.total_us for row in syncs)
    names = ", ".join(f"{row.name} x{row.count:g}" for row in syncs[:3])
    waits = [quantity(f"{row.name} per iteration", row.count, "", evidence) for row in syncs[:3]]
    return Seen(
        f"the host waits for the device {count:g} times inside of the forward ({names}), and after each wait "
        "the device idles until something is launched again",
        0.0,
        min(idle, _saved_without(evidence, waited)),
        idle,
        (
            *waits,
            quantity("host time in these waits", waited, "us", evidence),
            quantity("device idle", idle, "us", evidence),
        ),
    )


def _saved_without(evidence: ProfileEvidence, spent_us: float) -> float:
    """What the whole gets faster by when the host no longer spends this time in a call.

    Host and device then work side by side: what takes longer stays, the host's other work or the device's.
    """
    system, total = evidence.system, evidence.total_us
    # Recording makes the host slower: its time counts in proportion to the whole.
    host = max(0.0, system.wall_us - spent_us) * min(1.0, total / system.wall_us)
    return max(0.0, total - max(host, device_pace_us(evidence) or system.busy_us))


def transfer_pageable(evidence: ProfileEvidence) -> Looked:
    """Copies between host and device through memory that is not pinned."""
    rows = [row for row in evidence.system.transfers if row.pageable_share is not None]
    nbytes = sum(row.bytes * (row.pageable_share or 0.0) for row in rows)
    if nbytes < 1.0:
        return "no copy inside of the forward uses pageable host memory"
    spent = sum(row.total_us * (row.pageable_share or 0.0) for row in rows)
    pinned = sum(
        row.bytes * (row.pageable_share or 0.0) / _pinned_rate(evidence, row).value * 1e6 for row in rows
    )
    saved = max(0.0, spent - pinned)
    if saved < 0.01 * evidence.total_us:
        return (
            f"copies through pageable memory take {spent:.1f} us of {evidence.total_us:.0f}, and pinned "
            f"memory would win {saved:.1f}"
        )
    rate = nbytes / max(1e-9, spent * 1e-6)
    return Seen(
        f"{nbytes / 1e6:.2f} MB per iteration go through pageable host memory at {rate / 1e9:.1f} GB/s",
        0.5 * saved,
        saved,
        spent,
        (
            quantity("bytes through pageable memory", nbytes, "B", evidence),
            quantity("time of these copies", spent, "us", evidence),
            _pinned_rate(evidence, max(rows, key=lambda row: row.bytes)),
        ),
    )


def _pinned_rate(evidence: ProfileEvidence, row: Transfer) -> Quantity:
    """What pinned memory reaches in this direction."""
    rates = evidence.ceilings.transfers if evidence.ceilings is not None else None
    outward = row.direction == "device_to_host"
    rate = None if rates is None else rates.to_host_pinned if outward else rates.to_device_pinned
    return Quantity(
        name=f"rate of pinned memory {'to the host' if outward else 'to the device'}",
        value=rate or _PINNED_BYTES_PER_S,
        unit="B/s",
        origin="ceilings" if rate else "estimated",
    )


def transfer_heavy(evidence: ProfileEvidence) -> Looked:
    """Copies between host and device take a good part of the iteration."""
    rows = [row for row in evidence.system.transfers if row.direction in ("host_to_device", "device_to_host")]
    spent = sum(row.total_us for row in rows)
    if spent < _MATTERS * evidence.total_us:
        return f"copies between host and device take {spent:.1f} us of {evidence.total_us:.0f}"
    nbytes = sum(row.bytes for row in rows)
    largest = _pinned_rate(evidence, max(rows, key=lambda row: row.total_us))
    best_us = sum(row.bytes / _pinned_rate(evidence, row).value * 1e6 for row in rows)
    full = ", as fast as this machine copies" if best_us > _NEARLY * spent else ""
    return Seen(
        f"copies between host and device take {spent / evidence.total_us:.0%} of an iteration "
        f"({nbytes / 1e6:.2f} MB at {nbytes / max(1e-9, spent) / 1e3:.1f} GB/s{full})",
        0.0,
        0.7 * spent,
        spent,
        (
            quantity("time of copies", spent, "us", evidence),
            quantity("bytes copied", nbytes, "B", evidence),
            largest,
        ),
    )


def memory_calls(evidence: ProfileEvidence) -> Looked:
    """Device memory is allocated or freed inside of the forward."""
    rows = evidence.system.memory_calls
    spent = sum(row.total_us for row in rows)
    if not rows:
        return "no device memory is allocated or freed inside of the forward"
    if spent < 0.02 * evidence.total_us:
        return f"allocations take {spent:.1f} us of {evidence.total_us:.0f}"
    names = ", ".join(f"{row.name} x{row.count:g}" for row in rows[:3])
    # Freeing waits for the device: of its time only what the device does not need is won.
    saved = _saved_without(evidence, spent)
    return Seen(
        f"memory is allocated or freed inside of the forward ({names}), {spent:.0f} us of host time",
        0.5 * saved,
        saved,
        max(saved, min(1.5 * spent, evidence.system.idle_us or 0.0)),
        tuple(quantity(f"{row.name} per iteration", row.count, "", evidence) for row in rows[:3]),
    )
