"""Puts candidates in order: full-text relevance, how well the name and first sentence fit, and priors."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stitch_rag.question import Question, Word
from stitch_rag.ranking import Weights
from stitch_rag.store import Outline
from stitch_rag.tokens import name_words

_SUFFIXED = re.compile(r"_(?:v\d+|ptsz|ptds|64|32)$|V\d$|_MAX(?:_ENUM)?$")


@dataclass(frozen=True, slots=True)
class Candidate:
    """An entry with its score and the share of the question that its name and first sentence cover."""

    outline: Outline
    score: float
    coverage: float


def rank(
    question: Question,
    found: Sequence[Outline],
    relevance: Mapping[int, float],
    exact: Sequence[int],
    idf: Mapping[str, float],
    weights: Weights,
) -> list[Candidate]:
    """The candidates, best first.

    Args:
        question: what is asked.
        found: the candidates.
        relevance: full-text relevance by number; candidates by name alone have none.
        exact: numbers of chunks that bear a name of the question, the best fit first.
        idf: how much each stem of the question tells.
        weights: of everything.
    """
    top = max(relevance.values(), default=1.0) or 1.0
    places = {number: place for place, number in reversed(list(enumerate(exact)))}
    rows: list[Candidate] = []
    for row in found:
        score, coverage = _fit(question, row, idf, weights)
        score += weights.score.relevance * relevance.get(row.number, 0.0) / top + _prior(row, weights)
        if row.number in places:
            score += weights.score.exact / (1 + 0.05 * places[row.number])
        rows.append(Candidate(row, score, coverage))
    rows.sort(key=lambda row: (-row.score, row.outline.chunk_id, row.outline.number))
    return rows


def rarity(frequency: int, total: int) -> float:
    """How much a word tells that occurs in `frequency` of `total` chunks."""
    return math.log(1 + (total - frequency + 0.5) / (frequency + 0.5))


def _fit(question: Question, row: Outline, idf: Mapping[str, float], weights: Weights) -> tuple[float, float]:
    """Score of name and first sentence, and the share of the question that the two cover."""
    total = sum(idf.get(word.stem, 0.0) for word in question.words) or 1.0
    in_name = in_brief = covered = 0.0
    matched: set[str] = set()
    for word in question.words:
        share = idf.get(word.stem, 0.0) / total
        name_fit = _match(word, row.name_stems, weights.synonym, matched)
        brief_fit = _match(word, row.brief_stems, weights.synonym, set())
        in_name += share * name_fit
        in_brief += share * brief_fit
        covered += share * max(name_fit, brief_fit)
    own = set(name_words([row.symbol]).split())
    precision = len(own & matched) / len(own) if own else 0.0
    score = (
        weights.score.name * in_name + weights.score.brief * in_brief + weights.score.precision * precision
    )
    return score, covered


def _match(word: Word, stems: frozenset[str], synonym: float, matched: set[str]) -> float:
    if word.stem in stems:
        matched.add(word.stem)
        return 1.0
    others = word.alternatives & stems
    matched |= others
    return synonym if others else 0.0


def _prior(row: Outline, weights: Weights) -> float:
    score = weights.kind.get(row.kind, 0.0) + weights.library.get(row.library, 0.0)
    if not row.documented:
        score += weights.score.undocumented
    if row.deprecated:
        score += weights.score.deprecated
    if _SUFFIXED.search(row.symbol):
        score += weights.score.suffixed
    return score
