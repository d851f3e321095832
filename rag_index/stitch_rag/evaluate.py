"""Measures a search on a set of questions: recall, reciprocal rank, intervals, per kind, and time."""

import json
import math
import random
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from pydantic import ValidationError

from stitch_rag.results import Hit, SearchResult
from stitch_tools.errors import UsageError
from stitch_tools.models.base import Fact

DEPTH = 10
"""Hits that count for the reciprocal rank."""
_RESAMPLES = 2000
_A_LINE = 'a file of lines like {"kind": "symbol", "question": "free device memory", "answers": ["cudaFree"]}'


class QuestionRow(Fact):
    """One question of a set."""

    kind: str
    question: str
    answers: tuple[str, ...]
    """Symbols, `note:SLUG` or `diag:SLUG`; each of them would do."""


class Scores(Fact):
    """How often the answer was found."""

    questions: int
    recall_1: float
    """Share whose first hit answers."""
    recall_5: float
    mrr: float
    """Mean reciprocal rank within ten hits."""
    recall_1_interval: tuple[float, float] | None = None
    """95 %, by resampling questions."""
    recall_5_interval: tuple[float, float] | None = None
    mrr_interval: tuple[float, float] | None = None


class Evaluation(Fact):
    """The result on one set."""

    scores: Scores
    kinds: dict[str, Scores]
    median_ms: float
    p95_ms: float
    misses: tuple[str, ...]
    """Questions whose answer is not among the first five, with what came first."""


def read_questions(path: Path) -> list[QuestionRow]:
    """The questions of a JSON Lines file.

    Raises:
        UsageError: it cannot be read, or a line is no question.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}", hint=_A_LINE) from error
    rows: list[QuestionRow] = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                rows.append(QuestionRow.model_validate(json.loads(line)))
            except ValidationError as error:
                first = error.errors()[0]
                wrong = f"`{'.'.join(map(str, first['loc']))}`: {first['msg']}"
                raise UsageError(f"{path}:{number} is no question: {wrong}", hint=_A_LINE) from error
            except ValueError as error:
                raise UsageError(f"{path}:{number} is no JSON: {error}", hint=_A_LINE) from error
    if not rows:
        raise UsageError(f"{path} is empty", hint="give at least one question")
    return rows


def evaluate(rows: Sequence[QuestionRow], ask: Callable[[str], SearchResult]) -> Evaluation:
    """How well `ask` answers the questions."""
    ranks: list[int | None] = []
    times: list[float] = []
    misses: list[str] = []
    for row in rows:
        answer = ask(row.question)
        times.append(answer.duration_ms or 0.0)
        rank = rank_of(row.answers, answer.hits[:DEPTH])
        ranks.append(rank)
        if rank is None or rank > 5:
            first = answer.hits[0].symbol if answer.hits else "nothing"
            misses.append(f"{row.kind}: {row.question} -> {first} (rank {rank or 'none'})")
    by_kind: dict[str, list[int | None]] = {}
    for row, rank in zip(rows, ranks, strict=True):
        by_kind.setdefault(row.kind, []).append(rank)
    return Evaluation(
        scores=scores(ranks, intervals=True),
        kinds={kind: scores(results) for kind, results in by_kind.items()},
        median_ms=round(statistics.median(times), 2),
        p95_ms=round(sorted(times)[math.ceil(0.95 * len(times)) - 1], 2),
        misses=tuple(misses),
    )


def rank_of(answers: Iterable[str], hits: Sequence[Hit]) -> int | None:
    """The place of the first hit that answers, from 1."""
    return place_of(answers, [names_of(hit.kind, hit.symbol, (hit.twin, *hit.aliases)) for hit in hits])


def names_of(kind: str, symbol: str, aliases: Sequence[str]) -> set[str]:
    """What an answer may call an entry."""
    names = {symbol, *aliases[:20]}
    mark = {"note": "note:", "diagnostic": "diag:"}.get(kind, "")
    return {f"{mark}{name}" for name in names}


def place_of(answers: Iterable[str], hit_names: Sequence[set[str]]) -> int | None:
    """The place of the first entry, given by its names, that answers, from 1."""
    wanted = set(answers)
    return next((place for place, names in enumerate(hit_names, 1) if names & wanted), None)


def scores(ranks: Sequence[int | None], *, intervals: bool = False) -> Scores:
    """Recall and reciprocal rank of the places where answers were found, with 95 % intervals on request."""
    first = [float(rank == 1) for rank in ranks]
    five = [float(rank is not None and rank <= 5) for rank in ranks]
    reciprocal = [1 / rank if rank else 0.0 for rank in ranks]
    bounds = [_interval(values) for values in (first, five, reciprocal)] if intervals else [None] * 3
    return Scores(
        questions=len(ranks),
        recall_1=round(statistics.fmean(first), 4),
        recall_5=round(statistics.fmean(five), 4),
        mrr=round(statistics.fmean(reciprocal), 4),
        recall_1_interval=bounds[0],
        recall_5_interval=bounds[1],
        mrr_interval=bounds[2],
    )


def _interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % of the mean, by resampling with a fixed seed."""
    draw = random.Random(0)
    means = sorted(statistics.fmean(draw.choices(values, k=len(values))) for _ in range(_RESAMPLES))
    return round(means[int(0.025 * _RESAMPLES)], 4), round(means[int(0.975 * _RESAMPLES) - 1], 4)
