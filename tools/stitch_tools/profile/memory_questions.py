"""Questions about how a kernel uses memory: coalescing, bank conflicts and spilled registers."""

from dataclasses import dataclass

from stitch_tools.models.profile import KernelAnswer
from stitch_tools.profile import ncu_metrics as m
from stitch_tools.profile.answers import (
    is_worth,
    measured,
    missing,
    no_problem,
    share,
    unknown,
    waits_for,
)
from stitch_tools.profile.ncu_report import NcuKernel
from stitch_tools.profile.thresholds import THRESHOLDS


@dataclass(frozen=True)
class _Access:
    """Loads or stores of global memory."""

    name: str
    requests: float
    sectors: float
    use: float
    """Share of the sectors' bytes that the threads asked for."""

    @property
    def is_scattered(self) -> bool:
        many = self.sectors / self.requests >= THRESHOLDS.sectors_per_request
        return many and self.use <= THRESHOLDS.sector_use


def ask_coalescing(kernel: NcuKernel) -> KernelAnswer:
    """Do the threads of a warp read and write whole sectors of global memory?"""
    absent = missing(kernel, m.LOAD_REQUESTS, m.LOAD_SECTORS, m.STORE_REQUESTS, m.STORE_SECTORS)
    if absent:
        return unknown("coalescing", absent)
    accesses = [
        access
        for access in (
            _access(kernel, "loads", m.LOAD_REQUESTS, m.LOAD_SECTORS, m.LOAD_SECTOR_USE),
            _access(kernel, "stores", m.STORE_REQUESTS, m.STORE_SECTORS, m.STORE_SECTOR_USE),
        )
        if access is not None
    ]
    evidence = [
        figure
        for access in accesses
        for figure in (
            measured(f"sectors per request of {access.name}", access.sectors / access.requests),
            measured(f"used bytes of the sectors of {access.name}", 100.0 * access.use, "%"),
        )
    ]
    scattered = [access for access in accesses if access.is_scattered]
    sectors = sum(access.sectors for access in accesses)
    wasted = sum(access.sectors * (1.0 - access.use) for access in scattered) / sectors if sectors else 0.0
    weight = max(share(kernel, m.MEMORY), waits_for(kernel, "long_scoreboard", "lg_throttle"))
    if not is_worth(wasted * weight):
        return no_problem("coalescing", "coalesced", "Global memory is accessed in whole sectors.", evidence)
    return KernelAnswer(
        question="coalescing",
        verdict="uncoalesced",
        is_problem=True,
        summary=f"Global {' and '.join(access.name for access in scattered)} waste {wasted:.0%} of the "
        "sectors moved.",
        evidence=tuple(evidence),
        saves_share=round(wasted * weight, 4),
        action="Let neighbouring threads access neighbouring addresses: change the thread's index or the "
        "layout, or turn a tile around in shared memory.",
    )


def _access(kernel: NcuKernel, name: str, requests: str, sectors: str, use: str) -> _Access | None:
    asked, moved, used = kernel.get(requests), kernel.get(sectors), kernel.get(use)
    if not asked or not moved:
        return None
    # Without the SASS metric: four sectors are what a warp of floats needs.
    return _Access(name, asked, moved, min(1.0, 4.0 * asked / moved if used is None else used / 100.0))


def ask_bank_conflicts(kernel: NcuKernel) -> KernelAnswer:
    """Do the threads of a warp hit the same bank of shared memory at different addresses?"""
    absent = missing(kernel, m.SHARED_LOAD_CONFLICTS, m.SHARED_STORE_CONFLICTS)
    absent += missing(kernel, m.SHARED_LOAD_PASSES, m.SHARED_STORE_PASSES)
    if absent:
        return unknown("bank_conflicts", absent)
    loads, stores = kernel.metrics[m.SHARED_LOAD_CONFLICTS], kernel.metrics[m.SHARED_STORE_CONFLICTS]
    passes = kernel.metrics[m.SHARED_LOAD_PASSES] + kernel.metrics[m.SHARED_STORE_PASSES]
    if not passes:
        return no_problem("bank_conflicts", "unused", "The kernel does not use shared memory.")
    conflicts = min(1.0, (loads + stores) / passes)
    evidence = [measured("passes through shared memory that only conflicts need", 100.0 * conflicts, "%")]
    for side, pass_metric, instruction_metric in (
        ("load", m.SHARED_LOAD_PASSES, m.SHARED_LOADS),
        ("store", m.SHARED_STORE_PASSES, m.SHARED_STORES),
    ):
        instructions = kernel.get(instruction_metric)
        if instructions:
            evidence.append(measured(f"passes per shared {side}", kernel.metrics[pass_metric] / instructions))
    waiting = waits_for(kernel, "short_scoreboard", "mio_throttle")
    saves = conflicts * max(share(kernel, m.DATA_PASSES_ACTIVE), waiting)
    if conflicts < THRESHOLDS.conflict_share or not is_worth(saves):
        return no_problem(
            "bank_conflicts", "few", "Shared memory is accessed without costly conflicts.", evidence
        )
    side = "loads" if loads >= stores else "stores"
    return KernelAnswer(
        question="bank_conflicts",
        verdict=side,
        is_problem=True,
        summary=f"Bank conflicts, of {side} above all, are {conflicts:.0%} of the shared memory passes.",
        evidence=tuple(evidence),
        saves_share=round(saves, 4),
        action="Pad the rows of the shared array by one element (four for float4), or swizzle its columns.",
    )


def ask_spills(kernel: NcuKernel) -> KernelAnswer:
    """Does the kernel keep values of its threads in local memory?"""
    absent = missing(kernel, m.LOCAL_LOAD_SECTORS, m.LOCAL_STORE_SECTORS, m.LOAD_SECTORS, m.STORE_SECTORS)
    if absent:
        return unknown("spills", absent)
    local = kernel.metrics[m.LOCAL_LOAD_SECTORS] + kernel.metrics[m.LOCAL_STORE_SECTORS]
    if not local:
        return no_problem("spills", "none", "No local memory is used: nothing is spilled.")
    whole = local + kernel.metrics[m.LOAD_SECTORS] + kernel.metrics[m.STORE_SECTORS]
    evidence = [measured("local share of the sectors of global and local memory", 100.0 * local / whole, "%")]
    executed, instructions = kernel.get(m.LOCAL_INSTRUCTIONS), kernel.get(m.INSTRUCTIONS)
    if executed is not None and instructions:
        evidence.append(
            measured("local loads and stores of all instructions", 100.0 * executed / instructions, "%")
        )
    registers = kernel.get(m.REGISTERS)
    if registers is not None:
        evidence.append(measured("registers a thread", registers))
    weight = max(share(kernel, m.MEMORY), waits_for(kernel, "long_scoreboard", "lg_throttle"))
    saves = local / whole * weight
    if local / whole < THRESHOLDS.local_share or not is_worth(saves):
        return no_problem("spills", "few", "Local memory is used, and hardly costs anything.", evidence)
    return KernelAnswer(
        question="spills",
        verdict="local memory",
        is_problem=True,
        summary=f"{local / whole:.0%} of the sectors that global and local accesses move are local: "
        "registers that were spilled, or arrays with indices that are not known at compile time.",
        evidence=tuple(evidence),
        saves_share=round(saves, 4),
        action="Keep fewer values a thread, raise the register limit (__launch_bounds__, -maxrregcount), and "
        "unroll loops over local arrays so that every index is a constant.",
    )
