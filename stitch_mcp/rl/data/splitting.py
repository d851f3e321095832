"""Splits samples into training and held-out ones, whole families on one side, and says what leaks even so."""

from collections.abc import Sequence

from stitch_mcp.rl.data.near_duplicates import ALIKE, Fingerprint, Known, fingerprint
from stitch_mcp.rl.data.samples import SkillSample
from stitch_tools.models.base import Fact, sha256_hex

_PARTS = 10_000


class LeakageReport(Fact):
    """How far the two sides of a split know each other, and benchmarks."""

    train: int
    heldout: int
    train_families: int
    heldout_families: int
    shared_families: int
    """0 by construction; counted all the same."""
    shared_sources: int
    """References whose text is on both sides."""
    near_pairs: int
    """Held-out references that are a near duplicate of one in training, by their operations."""
    dropped: int
    """Training samples that were left out for being such a near duplicate."""
    near_benchmark: int
    """Training references that are a near duplicate of a benchmark's file."""
    benchmark_files: int
    alike: float = ALIKE
    """Jaccard index from which two are near duplicates."""


def is_heldout(family: str, share: float, salt: str = "") -> bool:
    """Whether a family is held out; its hash alone decides, so that later samples fall on its side."""
    number = int(sha256_hex(f"{salt} {family}".encode())[:8], 16)
    return number % _PARTS < share * _PARTS


def split_samples(
    samples: Sequence[SkillSample], share: float, *, salt: str = "", benchmarks: Sequence[Fingerprint] = ()
) -> tuple[list[SkillSample], list[SkillSample], LeakageReport]:
    """Training samples, held-out samples, and the report.

    A training sample that is a near duplicate of a held-out one is dropped, although its family is another.

    Args:
        samples: all.
        share: of families that are held out, 0 to 1.
        salt: another one gives another split.
        benchmarks: tasks that training must not be close to; samples that are, are counted, not dropped.
    """
    heldout = [row for row in samples if is_heldout(row.family, share, salt)]
    known = Known(_prints(heldout))
    train = [row for row in samples if not is_heldout(row.family, share, salt)]
    near = {print_of.name for print_of in _prints(train) if known.near(print_of) is not None}
    kept = [row for row in train if _text(row) not in near]
    named = Known(benchmarks)
    report = LeakageReport(
        train=len(kept),
        heldout=len(heldout),
        train_families=len({row.family for row in kept}),
        heldout_families=len({row.family for row in heldout}),
        shared_families=len({row.family for row in kept} & {row.family for row in heldout}),
        shared_sources=len({_text(row) for row in kept} & {_text(row) for row in heldout}),
        near_pairs=sum(known.near(row) is not None for row in _prints(kept)),
        dropped=len(train) - len(kept),
        near_benchmark=sum(named.near(row) is not None for row in _prints(kept)),
        benchmark_files=len(benchmarks),
    )
    return kept, heldout, report


def _prints(samples: Sequence[SkillSample]) -> list[Fingerprint]:
    """One a reference; its name is the reference's text."""
    return [fingerprint(text, text) for text in dict.fromkeys(map(_text, samples))]


def _text(sample: SkillSample) -> str:
    return sample.reference_files[sample.reference]
