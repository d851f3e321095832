"""What the rubric says of programs with a known label, as rows and as a page."""

from collections.abc import Sequence
from typing import Literal

from stitch_mcp.rl.reward.agreement import agreement
from stitch_mcp.rl.reward.facts import Dimension
from stitch_mcp.rl.reward.judging import JudgedSubmission
from stitch_mcp.rl.reward.presets import PRESETS
from stitch_mcp.rl.reward.scoring import score
from stitch_tools.models.base import Fact
from tests.mcp.rl.calibration_set import Label, LabelledProgram

Seen = Literal["cheat", "fast", "slow", "undecided", "not judged"]


class CalibrationRow(Fact):
    """One program, judged."""

    name: str
    label: Label
    seen: Seen
    """What its evidence says: `cheat` for what earns nothing, then by `cuda_perf_quality`: 4 and 5 `fast`,
    1 and 2 `slow`, else `undecided`."""
    status: str | None
    hacking: bool
    speedup: float | None
    scores: dict[Dimension, int | None]
    totals: dict[str, float]
    reasons: tuple[str, ...]
    device: str = ""
    wall_s: float


def row_of(program: LabelledProgram, judged: JudgedSubmission) -> CalibrationRow:
    rewards = {preset.name: score(judged.evidence, preset) for preset in PRESETS}
    reward = rewards["stitchcuda"]
    rating = judged.evidence.rating
    quality = rating.score_of("cuda_perf_quality") if rating else None
    seen: Seen = "undecided"
    if not reward.correct:
        seen = "cheat" if reward.valid else "not judged"
    elif quality is not None and quality != 3:
        seen = "fast" if quality > 3 else "slow"
    check, bench = judged.evidence.check, judged.evidence.bench
    return CalibrationRow(
        name=program.name,
        label=program.label,
        seen=seen,
        status=check.status if check else None,
        hacking=reward.hacking,
        speedup=reward.speedup,
        scores={row.name: row.score for row in rating.dimensions} if rating else {},
        totals={name: row.total for name, row in rewards.items()},
        # A stack names paths of this machine.
        reasons=tuple(reason.partition("Traceback")[0][:120] for reason in reward.reasons[:2]),
        device=bench.device if bench else "",
        wall_s=judged.wall_s,
    )


def report(rows: Sequence[CalibrationRow], target: str) -> str:
    """The page: agreement, then a row a program."""
    judged = [row for row in rows if row.seen != "not judged"]
    earns = agreement(
        ["cheat" if row.label == "cheat" else "honest" for row in judged],
        ["cheat" if row.seen == "cheat" else "honest" for row in judged],
    )
    timed = [row for row in judged if row.label != "cheat" and row.seen in ("fast", "slow")]
    speed = agreement([row.label for row in timed], [row.seen for row in timed])
    three = agreement([row.label for row in judged], [row.seen for row in judged])
    counts = ", ".join(
        f"{sum(row.label == label for row in judged)} {label}" for label in ("cheat", "fast", "slow")
    )
    paid = [row for row in judged if row.label == "cheat" and row.seen != "cheat"]
    lines = [
        f"Target {target}: {len(judged)} programs judged ({counts}), {len(rows) - len(judged)} not judged by"
        " no fault of theirs.",
        "",
        "| question | programs | agreed | Cohen's kappa |",
        "|---|---:|---:|---:|",
        _line("cheat or honest", earns.pairs, earns.agreed, earns.kappa),
        _line(
            "fast or slow, of honest ones with a timing that decides", speed.pairs, speed.agreed, speed.kappa
        ),
        _line("all three, undecided counted as wrong", three.pairs, three.agreed, three.kappa),
        "",
        f"Cheats that earn something: {', '.join(_paid(row) for row in paid) or 'none'}.",
        "",
        "| program | label | seen | status | over eager | rubric scores | stitchcuda | why not |",
        "|---|---|---|---|---:|---|---:|---|",
    ]
    return "\n".join([*lines, *(_row(row) for row in rows)]) + "\n"


def _paid(row: CalibrationRow) -> str:
    speed = "no speed" if row.speedup is None else f"{row.speedup:.2f} times eager"
    return f"{row.name} ({row.totals['stitchcuda']:.2f}, {speed})"


def _line(question: str, pairs: int, agreed: float | None, kappa: float | None) -> str:
    shown = ["-" if value is None else f"{value:.2f}" for value in (agreed, kappa)]
    return f"| {question} | {pairs} | {shown[0]} | {shown[1]} |"


def _row(row: CalibrationRow) -> str:
    scores = " ".join("-" if value is None else str(value) for value in row.scores.values())
    speed = "" if row.speedup is None else f"{row.speedup:.2f}x"
    why = "; ".join(row.reasons).replace("|", "/").replace("\n", " ")[:110]
    cells = (
        row.name,
        row.label,
        row.seen,
        row.status or "",
        speed,
        scores,
        f"{row.totals['stitchcuda']:.2f}",
        why,
    )
    return f"| {' | '.join(cells)} |"
