"""Answers to questions about a kernel from its build and source: no gain is claimed, since nothing ran."""

import math
from collections import Counter
from collections.abc import Sequence

from stitch_tools.models.profile import KernelAnswer, KernelQuestion, Quantity
from stitch_tools.models.program import KernelResources
from stitch_tools.profile.answers import measured, no_problem
from stitch_tools.profile.index_patterns import IndexFinding
from stitch_tools.profile.occupancy import occupancy, registers_for
from stitch_tools.profile.own_paths import own_path
from stitch_tools.profile.sass import SassKernel, SourcePlace
from stitch_tools.profile.thresholds import THRESHOLDS

_BLOCKS = (128, 256, 512, 1024)
_LEAST_FUSED = 64
"""Multiply-adds in the text of an unrolled product's inner loop; elementwise kernels have a few."""
_SHORT_KERNEL = 128
"""Instructions of an elementwise kernel or a copy, at most."""


def answer_occupancy(row: KernelResources, block: tuple[int, int, int] | None) -> KernelAnswer:
    """How many warps fit at the block size of the launch, or at the best one where it is not known."""
    sizes = _BLOCKS if block is None else (math.prod(block),)
    rows = [
        (size, found)
        for size in sizes
        if (
            found := occupancy(row.arch, threads=size, registers=row.registers, shared_bytes=row.shared_bytes)
        )
    ]
    if not rows:
        return _unknown("occupancy", f"the limits of {row.arch or 'this architecture'} are not known")
    threads, best = max(rows, key=lambda item: item[1].share)
    evidence = (
        measured("registers a thread", row.registers, origin="ptxas"),
        measured("shared memory a block", row.shared_bytes, "B", "ptxas"),
        measured("threads a block", threads, origin="counted" if block is not None else "estimated"),
        measured("theoretical occupancy", 100.0 * best.share, "%", "estimated"),
    )
    at = f"with blocks of {threads} threads" + ("" if block is not None else " (the best size)")
    summary = f"{best.share:.0%} of the warps fit {at}, limited by {best.limited_by}."
    if best.share > THRESHOLDS.low_occupancy:
        return no_problem("occupancy", "enough", summary, evidence)
    # What would let half of the warps fit.
    half = math.ceil(best.blocks / best.share / 2) if best.blocks else 1
    wanted = registers_for(row.arch, threads=threads, blocks=half)
    action = f"Come down to {best.limited_by} that let more blocks fit"
    if best.limited_by == "registers" and wanted is not None:
        action = f"At most {wanted} registers a thread let half of the warps fit: smaller tiles a thread, or "
        action += "__launch_bounds__ with the number of blocks (and look at the spills)"
    return KernelAnswer(
        question="occupancy",
        verdict=best.limited_by,
        is_problem=True,
        summary=f"{summary} It matters for a kernel that waits for memory.",
        evidence=evidence,
        action=f"{action}.",
    )


def answer_spills(row: KernelResources, code: SassKernel | None, files: Sequence[str]) -> KernelAnswer:
    """What ptxas says of spilled registers and of the stack."""
    spilled = row.spill_store_bytes + row.spill_load_bytes
    evidence: list[Quantity] = [
        measured("spill stores", row.spill_store_bytes, "B", "ptxas"),
        measured("spill loads", row.spill_load_bytes, "B", "ptxas"),
        measured("stack a thread", row.stack_bytes, "B", "ptxas"),
    ]
    if code is not None:
        evidence.append(measured("local accesses in the code", code.local, origin="cubin"))
    if not spilled and not row.stack_bytes:
        return no_problem("spills", "none", "No register is spilled and no stack is used.", evidence)
    place = _most(code.local_places) if code is not None else None
    what = f"{spilled} bytes of registers a thread are spilled" if spilled else "the thread has a stack"
    help_text = (
        "Keep fewer values a thread, or allow more registers (__launch_bounds__ with fewer blocks)."
        if spilled
        else "Unroll loops over local arrays so that every index is a constant."
    )
    return _problem(
        "spills",
        "spilled" if spilled else "stack",
        f"Local memory is used: {what}.",
        evidence,
        help_text,
        place,
        files,
    )


def answer_bank_conflicts(findings: Sequence[tuple[str, IndexFinding]]) -> KernelAnswer:
    """Conflicts of shared memory that the source's own index arithmetic shows."""
    mine = [row for row in findings if row[1].memory == "shared"]
    if not mine:
        return no_problem("bank_conflicts", "none seen", "No simple index of shared memory conflicts.")
    file, worst = max(mine, key=lambda row: row[1].passes)
    return KernelAnswer(
        question="bank_conflicts",
        verdict=f"{worst.passes}-way",
        is_problem=True,
        summary=f"The {worst.access} {worst.text} takes {worst.passes} passes: its threads meet in one bank.",
        evidence=(measured("passes per access", worst.passes, origin="counted"),),
        action="Pad the rows of the shared array by one element (four for float4), or swizzle its columns.",
        file=file,
        line=worst.line,
    )


def answer_coalescing(findings: Sequence[tuple[str, IndexFinding]]) -> KernelAnswer:
    """Scattered accesses of global memory that the source's own index arithmetic shows."""
    mine = [row for row in findings if row[1].memory == "global"]
    if not mine:
        return no_problem("coalescing", "none seen", "No simple index of global memory is scattered.")
    file, worst = max(mine, key=lambda row: row[1].passes)
    return KernelAnswer(
        question="coalescing",
        verdict="uncoalesced",
        is_problem=True,
        summary=f"The {worst.access} {worst.text} touches {worst.passes} sectors a warp.",
        evidence=(measured("sectors per request", worst.passes, origin="counted"),),
        action="Let neighbouring threads access neighbouring addresses: change the thread's index or the "
        "layout, or turn a tile around in shared memory.",
        file=file,
        line=worst.line,
    )


def answer_vector_width(code: SassKernel | None, files: Sequence[str]) -> KernelAnswer:
    """How wide the accesses of global memory are."""
    if code is None:
        return _unknown("vector_width", "the machine code was not read")
    total = code.global_bits.total()
    evidence = [
        measured(f"accesses of {bits} bits", count, origin="cubin")
        for bits, count in sorted(code.global_bits.items())
    ]
    if not total:
        return no_problem("vector_width", "none", "Global memory is not accessed.", evidence)
    widest = max(code.global_bits)
    # In a kernel that does more than pass data through, the width hardly decides.
    if widest > 32 or code.shared_bits or code.instructions > _SHORT_KERNEL:
        return no_problem(
            "vector_width", f"{widest} bits", f"Accesses are up to {widest} bits wide.", evidence
        )
    return _problem(
        "vector_width",
        f"{widest} bits",
        f"All accesses of global memory are at most {widest} bits wide.",
        evidence,
        "Where addresses are aligned and neighbouring, load and store float4 (or eight halves): fewer "
        "instructions and more bytes in flight.",
        _most(code.narrow_places),
        files,
    )


def answer_tensor_cores(code: SassKernel | None, files: Sequence[str]) -> KernelAnswer:
    """Whether an unrolled product runs on ordinary pipes."""
    if code is None:
        return _unknown("tensor_cores", "the machine code was not read")
    evidence = (
        measured("tensor instructions in the code", code.tensor, origin="cubin"),
        measured("multiply-adds in the code", code.fused, origin="cubin"),
    )
    if code.tensor:
        return no_problem("tensor_cores", "used", "The code has tensor instructions.", evidence)
    share = code.fused / code.instructions
    if code.fused < _LEAST_FUSED or share < THRESHOLDS.product_share:
        return no_problem("tensor_cores", "not needed", "The code has few multiply-adds.", evidence)
    return _problem(
        "tensor_cores",
        "unused",
        f"{share:.0%} of the code are multiply-adds on ordinary pipes.",
        evidence,
        "If this is a matrix product, run it on tensor cores in the fastest format that the contract allows; "
        "strict fp32 can use three TF32 products of split operands.",
        _most(code.fused_places),
        files,
    )


def _problem(
    question: KernelQuestion,
    verdict: str,
    summary: str,
    evidence: Sequence[Quantity],
    action: str,
    place: SourcePlace | None,
    files: Sequence[str],
) -> KernelAnswer:
    return KernelAnswer(
        question=question,
        verdict=verdict,
        is_problem=True,
        summary=summary,
        evidence=tuple(evidence),
        action=action,
        file=None if place is None else own_path(place.file, files),
        line=None if place is None else place.line,
    )


def _unknown(question: KernelQuestion, reason: str) -> KernelAnswer:
    return KernelAnswer(
        question=question,
        verdict="unknown",
        is_problem=False,
        summary="The build does not tell.",
        reason=reason,
    )


def _most(places: Counter[SourcePlace]) -> SourcePlace | None:
    return max(places, key=lambda place: places[place]) if places else None
