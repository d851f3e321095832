"""Puts candidates in order: a weighted sum of how well text, name and first sentence fit, and of priors."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stitch_rag.question import Question, Word
from stitch_rag.ranking import Weights
from stitch_rag.store import Outline
from stitch_rag.tokens import symbol_stems

_PREFIXES = frozenset(
    ("cuda", "cu", "cublas", "lt", "cudnn", "nccl", "attr", "nvtx", "cupti", "cusparse", "torch")
)
"""Parts of names that every name of a library has."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """An entry with its score and the share of the question that its name and first sentence cover."""

    outline: Outline
    score: float
    coverage: float


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known before the candidates are compared."""

    question: Question
    idf: Mapping[str, float]
    """How much each stem of the question tells."""
    short: Mapping[int, float]
    """Full-text relevance of names and first sentences by number."""
    full: Mapping[int, float]
    """... and of everything."""
    dense: Mapping[int, float]
    """Similarity of meaning by number, the nearest first; empty without vectors."""
    exact: Sequence[int]
    """Numbers of entries that bear a name of the question, the best fit first."""
    similar: Sequence[int] = ()
    """... a name that is spelled like one of the question that does not exist, the nearest first."""


def rank(evidence: Evidence, found: Sequence[Outline], weights: Weights) -> list[Candidate]:
    """The candidates, best first."""
    rows: list[Candidate] = []
    for row in found:
        values = features(evidence, row, weights)
        score = sum(weights.score[name] * value for name, value in values.items())
        score += weights.kind.get(row.kind, 0.0) + weights.library.get(row.library, 0.0)
        rows.append(Candidate(row, score, values["coverage"]))
    rows.sort(key=lambda row: (-row.score, row.outline.number))  # equals in the order of their header
    return rows


def rarity(frequency: int, total: int) -> float:
    """How much a word tells that occurs in `frequency` of `total` chunks."""
    return math.log(1 + (total - frequency + 0.5) / (frequency + 0.5))


def features(evidence: Evidence, row: Outline, weights: Weights) -> dict[str, float]:
    """What the score adds up, by name; `ranking.toml` says what each means."""
    question = evidence.question
    fit = _Fit(evidence, row, weights.synonym)
    own = [stem for stem in symbol_stems(row.symbol) if stem not in _PREFIXES]
    hits = sum(stem in fit.matched for stem in own)
    alone = question.named_share >= weights.named_share
    place = evidence.exact.index(row.number) if row.number in evidence.exact else None
    exact = 0.0 if place is None else 1 / (1 + 0.05 * place)
    return {
        "short": _share(evidence.short, row.number),
        "full": _share(evidence.full, row.number),
        "dense": _share(evidence.dense, row.number) ** 3,
        "name": fit.in_name,
        "brief": fit.in_brief,
        "coverage": fit.covered,
        "text": fit.in_all,
        "surplus": math.log1p(len(own) - hits),
        "order": _order(own, fit.matched),
        "exact": exact if alone else 0.0,
        "exact_in_part": 0.0 if alone else exact,
        "similar": float(row.number in evidence.similar),
        "deprecated": float(row.deprecated),
        "library": float(row.library in question.libraries),
        "intent": float(row.kind in question.kinds),
    }


class _Fit:
    """How far name and first sentence cover the question, each word counting what it tells."""

    def __init__(self, evidence: Evidence, row: Outline, synonym: float) -> None:
        words = evidence.question.words
        total = sum(evidence.idf.get(word.stem, 0.0) for word in words) or 1.0
        self.in_name = self.in_brief = self.covered = self.in_all = 0.0
        self.matched: list[str] = []
        for word in words:
            share = evidence.idf.get(word.stem, 0.0) / total
            name, part = _match(word, row.name_stems, synonym)
            brief, _ = _match(word, row.brief_stems, synonym)
            self.matched += part
            self.in_name += share * name
            self.in_brief += share * brief
            self.covered += share * max(name, brief)
            self.in_all += share * max(name, brief, _match(word, row.text_stems, synonym)[0])


def _share(relevance: Mapping[int, float], number: int) -> float:
    top = next(iter(relevance.values()), 0.0)  # the best comes first
    return relevance.get(number, 0.0) / top if top else 0.0


def _order(own: Sequence[str], matched: Sequence[str]) -> float:
    """How far the name's parts come in the order of the question: 1 all, -1 none."""
    places = [own.index(stem) for stem in matched if stem in own]
    pairs = [(a, b) for number, a in enumerate(places) for b in places[number + 1 :] if a != b]
    return sum(1 if a < b else -1 for a, b in pairs) / len(pairs) if pairs else 0.0


def _match(word: Word, stems: frozenset[str], synonym: float) -> tuple[float, list[str]]:
    """How well a word fits, and the stems that it matched."""
    if word.stem in stems:
        return 1.0, [word.stem]
    if word.alternatives.isdisjoint(stems):
        return 0.0, []
    return synonym, sorted(word.alternatives & stems)
