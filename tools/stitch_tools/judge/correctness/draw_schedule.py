"""Which draws a check makes, under which weights, in which order."""

from dataclasses import dataclass, field
from typing import Literal

from stitch_tools.judge.check_options import CheckOptions
from stitch_tools.models.program import ProgramFormat
from stitch_tools.models.task import Contract
from stitch_tools.models.verdict import Sensitivity
from stitch_tools.worker.reference.draw_kinds import ALTERED, BATCHES, PROBES, STRUCTURED, SensitivityProbe

FIRST, SECOND, RELOADED = "weights-1", "weights-2", "weights-3"
AGAIN = "own-1 again"
KERNELBENCH_DRAWS = 5
_OWN, _ORDER_ONE = PROBES[0], PROBES[1]


@dataclass(frozen=True)
class DrawRequest:
    """One set of inputs, and how the program meets it."""

    kind: str
    """What the reference server makes."""
    name: str
    """How the Check calls it."""
    shared: bool = False
    """In memory that shows writes to inputs."""
    reuse: bool = False
    """In the memory of the draw before."""
    repeat: bool = False
    seed_of: str | None = None
    """Name of an earlier draw whose inputs come again, or all but a few values of them."""
    other_size: bool = False
    """Of another size than the task's own; the program may refuse it."""
    own: bool = False
    """By the task's own maker: the reference has to run on it."""
    listed: bool = False
    """One of the contract's variants."""


@dataclass(frozen=True)
class Round:
    """Draws under one set of weights."""

    label: str
    draws: tuple[DrawRequest, ...]
    probe: SensitivityProbe = _OWN
    """What weights are taken: the task's own, or of order 1."""
    fallback: SensitivityProbe | None = None
    """Other weights for the case that the reference cannot be judged under these."""


DrawGroup = Literal["values", "sizes", "weights", "variants"]
"""What the judge made up about a draw: the inputs' values, their leading size, the weights. The contract's
variants are a group of their own: of a listed size the maker's values are cut or joined."""

_LEAST_DECIDED: dict[DrawGroup, int] = {"values": 3, "sizes": 1, "weights": 1}


def least_decided(group: DrawGroup, made: int) -> int:
    """How many of the draws made in a group have to be decided where some are not; a pass with fewer is weak.

    A task whose contract or inputs allow few draws cannot be asked for as many as others: half of them are
    enough. Each variant was asked for by name, and counts.
    """
    return made if group == "variants" else min(_LEAST_DECIDED[group], (made + 1) // 2)


def group_of(draw: DrawRequest, round_: Round) -> DrawGroup | None:
    """Where a draw counts that may be undecided; None for the task's own."""
    if draw.listed:
        return "variants"
    if draw.own:
        return None
    if round_.probe.gain is not None:
        return "weights"
    return "sizes" if draw.other_size else "values"


@dataclass
class Passed:
    """Which weights and inputs the program was right under."""

    own_inputs: int = 0
    weight_sets: set[str] = field(default_factory=set[str])
    probes: set[str] = field(default_factory=set[str])

    def covers(self, subject: str, probe: str) -> bool:
        """Whether a program that ignores its inputs (weights) would have failed, if this probe reacts."""
        if probe != _OWN.name:
            return probe in self.probes
        return self.own_inputs > 1 if subject == "inputs" else len(self.weight_sets) > 1


def ordinary_rounds(options: CheckOptions, contract: Contract, form: ProgramFormat) -> list[Round]:
    """The rounds that every program goes through."""
    rounds = [Round(FIRST, _first(options, contract))]
    number = _own_draws(options)
    if options.second_weights:
        scaled = (DrawRequest("scaled", f"{SECOND}/scaled", shared=True),) if options.structured else ()
        rounds.append(Round(SECOND, (_own(number + 1, f"{SECOND}/"), *scaled)))
    if form == "kernelbench":
        rounds.append(Round(RELOADED, (_own(number + 2, f"{RELOADED}/"),)))
    if options.order_one_weights:
        rounds.append(probe_round(_ORDER_ONE, number + 3))
    return rounds


def probe_round(probe: SensitivityProbe, number: int) -> Round:
    """A draw under a probe's weights and inputs; under milder ones where the reference cannot be judged."""
    kind = f"own-{number}" if probe.inputs.startswith("own") else probe.inputs
    milder = SensitivityProbe(probe.name, probe.inputs, (probe.gain or 1.0) / 2, positive=True)
    return Round(probe.name, (DrawRequest(kind, f"{probe.name}/{kind}"),), probe, milder)


def missing_rounds(rows: tuple[Sensitivity, ...], passed: Passed, options: CheckOptions) -> list[Round]:
    """Rounds under the probes that react where the draws so far did not."""
    if not options.order_one_weights:
        return []
    names = {row.probe for row in rows if row.reacts and not _is_covered(rows, row.subject, passed)}
    number = _own_draws(options) + 4
    return [
        probe_round(probe, number + index)
        for index, probe in enumerate(PROBES)
        if probe.name in names and probe.gain is not None and probe.name not in passed.probes
    ]


def uncovered_subjects(rows: tuple[Sensitivity, ...], passed: Passed) -> list[str]:
    """Of `inputs` and `weights` those that no right draw depended on noticeably."""
    subjects = dict.fromkeys(row.subject for row in rows)
    return [subject for subject in subjects if not _is_covered(rows, subject, passed)]


def _is_covered(rows: tuple[Sensitivity, ...], subject: str, passed: Passed) -> bool:
    return any(row.subject == subject and row.reacts and passed.covers(subject, row.probe) for row in rows)


def _first(options: CheckOptions, contract: Contract) -> tuple[DrawRequest, ...]:
    draws = [
        DrawRequest(
            f"own-{number}",
            f"own-{number}",
            shared=number == 1,
            reuse=options.mutate_storage and number == 2,
            repeat=options.repeat and number == min(3, _own_draws(options)),
            own=True,
        )
        for number in range(1, _own_draws(options) + 1)
    ]
    if options.mutate_storage:
        draws.append(DrawRequest(ALTERED, ALTERED, reuse=True, seed_of=draws[-1].name))
    if options.structured:
        draws += [DrawRequest(kind, kind, shared=True) for kind in STRUCTURED]
    if options.batch_probe and contract.shape_policy == "batch-probe":
        draws += [DrawRequest(kind, kind, shared=True, other_size=True) for kind in BATCHES]
    if options.variants:
        draws += [_variant(text) for text in contract.variants]
    if options.late_repeat:
        draws.append(DrawRequest("own-1", AGAIN, seed_of="own-1", own=True))
    return tuple(draws)


def _variant(text: str) -> DrawRequest:
    kind = f"size-{text}" if text.isdigit() else f"maker-{text}"
    return DrawRequest(kind, f"variant {text}", shared=True, own=True, listed=True)


def _own(number: int, prefix: str) -> DrawRequest:
    return DrawRequest(f"own-{number}", f"{prefix}own-{number}", own=True)


def _own_draws(options: CheckOptions) -> int:
    return max(options.own_draws, KERNELBENCH_DRAWS) if options.reference_tolerance else options.own_draws
