"""Puts candidates in order: a weighted sum of how well text, name and first sentence fit, and of priors."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from stitch_rag.question import ParsedQuestion
from stitch_rag.ranking_weights import RankingWeights
from stitch_rag.store import Outline
from stitch_rag.tokens import symbol_stems

_PREFIXES = frozenset(
    ("cuda", "cu", "cublas", "lt", "cudnn", "nccl", "attr", "nvtx", "cupti", "cusparse", "torch")
)
"""Parts of names that every name of a library has."""
_OTHER_WORD = 4.5
"""What a word counts that is not of the question, about as much as an average one."""
_SMOOTHING = 2.0
"""Keeps the likeness of very short texts from being chance."""
_NEAR = 2
"""Words of the question that stand together may have one word between them in the text."""
_LONG_QUESTION = 12


@dataclass(frozen=True, slots=True)
class Candidate:
    """An entry with its score and the share of the question that it covers."""

    outline: Outline
    score: float
    coverage: float
    """By name, first sentence and the ways in which people ask for it."""
    said: float
    """By name and first sentence alone."""


@dataclass(frozen=True, slots=True)
class HitEvidence:
    """What is known before the candidates are compared."""

    question: ParsedQuestion
    idf: Mapping[str, float]
    """How much each stem of the question tells."""
    short: Mapping[int, float]
    """Full-text relevance of names, first sentences and ways to ask by number."""
    full: Mapping[int, float]
    """... and of everything."""
    dense: Mapping[int, float]
    """Similarity of meaning by number, the nearest first; empty without vectors."""
    exact: Sequence[int]
    """Numbers of entries that bear a name of the question, the best fit first."""
    similar: Sequence[int] = ()
    """... a name that is spelled like one of the question that does not exist, the nearest first."""
    quoted: Sequence[int] = ()
    """... errors whose message the question repeats."""


def rank(evidence: HitEvidence, outlines: Sequence[Outline], weights: RankingWeights) -> list[Candidate]:
    """The candidates, best first."""
    lens = Lens(evidence, weights.synonym)
    rows = [_candidate(evidence, lens, row, weights) for row in outlines]
    rows.sort(key=_best_first)
    return rows


def with_meaning(
    ranked: Iterable[Candidate], evidence: HitEvidence, others: Iterable[Outline], weights: RankingWeights
) -> list[Candidate]:
    """What was ranked by words, and `others` that only meaning found; best first with meaning counted."""
    # Vectors answer late, so the words' ranking exists already: only the one term that meaning adds is
    # computed for those rows.
    lens, factor = Lens(evidence, weights.synonym), weights.score["dense"]
    rows = [replace(row, score=row.score + factor * likeness(evidence, row.outline.number)) for row in ranked]
    rows += [_candidate(evidence, lens, row, weights) for row in others]
    rows.sort(key=_best_first)
    return rows


def _candidate(evidence: HitEvidence, lens: "Lens", row: Outline, weights: RankingWeights) -> Candidate:
    values = features(evidence, lens, row, weights)
    score = sum(weights.score[name] * value for name, value in values.items() if value)
    score += weights.kind.get(row.kind, 0.0) + prior(evidence.question, row.library, weights)
    return Candidate(row, score, values["coverage"], values["said"])


def prior(question: ParsedQuestion, library: str, weights: RankingWeights) -> float:
    """What a library's entries count beforehand; nothing is held against one that the question names."""
    value = weights.library.get(library, 0.0)
    return max(value, 0.0) if library in question.libraries else value


def likeness(evidence: HitEvidence, number: int) -> float:
    """Similarity of meaning, 1 for the nearest; the third power keeps what is only near from counting."""
    return _share(evidence.dense, number) ** 3


def _best_first(row: Candidate) -> tuple[float, int]:
    return -row.score, row.outline.number  # equals in the order of their header


def rarity(frequency: int, total: int) -> float:
    """How much a word tells that occurs in `frequency` of `total` chunks."""
    return math.log(1 + (total - frequency + 0.5) / (frequency + 0.5))


class Lens:
    """The question, prepared for looking at many entries."""

    def __init__(self, evidence: HitEvidence, synonym: float) -> None:
        words = evidence.question.words
        # Every feature weighs a word by its rarity: "cuda" matches nearly every entry and says nothing.
        self._weights = [evidence.idf.get(word.stem, 0.0) for word in words]
        total = sum(self._weights) or 1.0
        self._shares = [weight / total for weight in self._weights]
        self._length = math.sqrt(sum(weight * weight for weight in self._weights)) or 1.0
        self._uses: dict[str, list[tuple[int, float]]] = {}
        """Stem to the words of the question (by place) that it stands for, and how well."""
        for place, word in enumerate(words):
            self._uses.setdefault(word.stem, []).append((place, 1.0))
            # A synonym counts less than the word itself: it may mean something else in this question.
            for other in word.alternatives:
                self._uses.setdefault(other, []).append((place, synonym))
        self._known = frozenset(self._uses)
        self._first = {stem: uses[0] for stem, uses in self._uses.items()}
        pairs = itertools.pairwise(range(len(words)))
        self._pairs = {(a, b): self._weights[a] + self._weights[b] for a, b in pairs}
        self._all_pairs = sum(self._pairs.values()) or 1.0
        self._telling = sorted(range(len(words)), key=lambda place: -self._weights[place])[:2]
        self._seen: dict[frozenset[str], tuple[dict[int, float], float]] = {}
        """Most entries share their few words with others."""

    def known(self, stems: Iterable[str]) -> frozenset[str]:
        """Those that stand for a word of the question."""
        return self._known.intersection(stems)

    def found(self, known: frozenset[str]) -> dict[int, float]:
        """The words of the question (by place) that these stems stand for: 1 the word itself, else less."""
        return self._look(known)[0]

    def covered(self, known: frozenset[str]) -> float:
        """Share of the question that these stems cover, each word counting what it tells."""
        return self._look(known)[1]

    def _look(self, known: frozenset[str]) -> tuple[dict[int, float], float]:
        cached = self._seen.get(known)
        if cached is not None:
            return cached
        scores: dict[int, float] = {}
        for stem in known:
            for place, value in self._uses[stem]:
                if value > scores.get(place, 0.0):
                    scores[place] = value
        covered = sum([self._shares[place] * value for place, value in scores.items()])
        self._seen[known] = scores, covered
        return scores, covered

    def rarest(self, known: frozenset[str]) -> float:
        """How far the two most telling words were found."""
        scores = self.found(known)
        return sum([scores.get(place, 0.0) for place in self._telling]) / 2

    def asked(self, ways: Sequence[Sequence[str]]) -> tuple[frozenset[str], float, float, float]:
        """Of the ways in which people ask: known stems, and the best coverage, likeness and `together`."""
        covered = alike = together = 0.0
        every: frozenset[str] = frozenset()
        for phrase in ways:
            # Most phrases share no word with the question; this test costs far less than making their set.
            if self._known.isdisjoint(phrase):
                continue
            stems = frozenset(phrase)
            stems_found = self._known.intersection(stems)
            every |= stems_found
            scores, share = self._look(stems_found)
            # Each way to ask is compared alone and the best one counts, so that nine others do not hide a
            # match.
            covered = max(covered, share)
            product = squares = 0.0
            for place, value in scores.items():
                product += self._weights[place] ** 2 * value
                squares += (self._weights[place] * value) ** 2
            # Words of the phrase that the question lacks make it less alike, as in a cosine of two vectors of
            # words.
            squares += _OTHER_WORD**2 * (len(stems) - len(stems_found))
            alike = max(alike, product / (self._length * (math.sqrt(squares) + _SMOOTHING)))
            # One word has no neighbours.
            if len(stems_found) > 1:
                together = max(together, self.together(phrase))
        return every, covered, alike, together

    def together(self, stems: Sequence[str]) -> float:
        """Share of the question's neighbouring words that stand together in a text, too."""
        first = self._first
        places = [(place, first[stem][0]) for place, stem in enumerate(stems) if stem in first]
        if len(places) < 2:
            return 0.0
        lines = {
            (before, word)
            for number, (place, word) in enumerate(places)
            for there, before in places[max(0, number - _NEAR) : number]
            if place - there <= _NEAR
        }
        return sum([self._pairs.get(pair, 0.0) for pair in lines]) / self._all_pairs

    def precision(self, own: Sequence[str]) -> float:
        """Share of a name's parts that the question asks for."""
        asked = whole = 0.0
        for stem in own:
            use = self._first.get(stem)
            if use is None:
                whole += _OTHER_WORD
            else:
                asked += self._weights[use[0]] * use[1]
        whole += asked
        return asked / whole if whole else 0.0

    def in_order(self, known: Iterable[str]) -> list[str]:
        """Stems in the order of the words that they stand for."""
        return sorted(known, key=lambda stem: (self._first[stem][0], stem))


def features(evidence: HitEvidence, lens: Lens, row: Outline, weights: RankingWeights) -> dict[str, float]:
    """What the score adds up, by name; `ranking.toml` says what each means."""
    question = evidence.question
    in_name, in_brief = lens.known(row.name_words), lens.known(row.brief_words)
    in_asked, covered, alike, together = lens.asked(row.asked)
    both = in_name | in_brief | in_asked
    # A vendor's prefix is no surplus part of a name: nobody asks for "cuda" and "memcpy" as two things.
    own = [stem for stem in symbol_stems(row.symbol) if stem not in _PREFIXES]
    hits = sum([stem in in_name for stem in own])
    alone = question.named_share >= weights.named_share
    place = evidence.exact.index(row.number) if row.number in evidence.exact else None
    exact = 0.0 if place is None else 1 / (1 + 0.05 * place)
    quoted = row.number in evidence.quoted
    return {
        "short": _share(evidence.short, row.number),
        "full": _share(evidence.full, row.number),
        "dense": likeness(evidence, row.number),
        "name": lens.covered(in_name),
        "brief": lens.covered(in_brief | in_asked),
        "coverage": lens.covered(both),
        "said": lens.covered(in_name | in_brief),
        "text": lens.covered(both | lens.known(row.text_words)),
        "asked": covered,
        "likeness": alike,
        "together": max(together, lens.together(row.brief_words), lens.together(own)),
        "precision": lens.precision(own),
        "rarest": lens.rarest(both),
        "surplus": math.log1p(len(own) - hits),
        "order": _order(own, lens.in_order(in_name)) if len(in_name) > 1 else 0.0,
        "exact": float(quoted) or (exact if alone else 0.0),
        "exact_in_part": 0.0 if alone or quoted else exact,
        "similar": float(row.number in evidence.similar),
        "deprecated": float(row.deprecated),
        "library": float(row.library in question.libraries),
        "intent": float(row.kind in question.kinds),
        "advice": float(row.kind == "note" and question.asks_advice),
        "verb": float(not question.verbs.isdisjoint(own)),
        "story": min(len(question.words) / _LONG_QUESTION, 1.0) if row.kind == "note" else 0.0,
    }


def _share(relevance: Mapping[int, float], number: int) -> float:
    # bm25 has no fixed scale: relative to the best match it can be weighed against the other features.
    top = next(iter(relevance.values()), 0.0)  # the best comes first
    return relevance.get(number, 0.0) / top if top else 0.0


def _order(own: Sequence[str], matched: Sequence[str]) -> float:
    """How far the name's parts come in the order of the question: 1 all, -1 none."""
    places = [own.index(stem) for stem in matched if stem in own]
    pairs = [(a, b) for number, a in enumerate(places) for b in places[number + 1 :] if a != b]
    return sum(1 if a < b else -1 for a, b in pairs) / len(pairs) if pairs else 0.0
