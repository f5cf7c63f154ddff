"""Golden sets: questions with known right answers that are asked of a knowledge base again and again. Pure values."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

Leg = Literal["dense", "bm25", "hybrid"]
LEGS: tuple[Leg, ...] = ("dense", "bm25", "hybrid")
MEASURES = ("ndcg@10", "recall@10", "hit@1", "answer_hit@1", "answer_hit@10")
JUDGED = MEASURES[:2]
"""Measures that must not fall; the others are for people: one question more or less moves a hit@1 a lot."""
ROUNDING = 1e-6
"""A fall that is larger than allowed by less than this comes from the arithmetic of floating point numbers."""

Figures = Mapping[str, Mapping[str, float]]
"""Means over the questions, 0 to 1, by leg and measure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenQuestion:
    """A question and where its answer is."""

    id: str
    text: str
    relevant: Mapping[str, int]
    """Grades over 0 by document: its source path, its file name with or without extension, in this order of
    preference; with `#pNNNN` behind it where the set judges pages."""
    answer: str | None = None
    """Text that a right passage holds, word for word; None where only documents or pages are judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenSet:
    """The questions that are attached to a knowledge base; one set each."""

    kb_id: str
    kb_name: str
    name: str
    has_pages: bool
    """Whether the judged unit is a page."""
    questions: tuple[GoldenQuestion, ...]
    fingerprint: str
    """Of name and questions: only results of the same questions are compared."""
    attached_at: datetime

    @property
    def documents(self) -> frozenset[str]:
        """Names of the documents with answers."""
        return frozenset(document_of(each, has_pages=self.has_pages) for one in self.questions for each in one.relevant)


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenResult:
    """What asking a golden set has given at one time."""

    figures: Figures
    missing: tuple[str, ...]
    """Documents with answers that the knowledge base does not have; their questions count as not answered."""
    collection: str
    """That was searched, and the key of the embedder that it was filled by."""
    embedder: str
    is_accepted: bool
    measured_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Fall:
    """A measure that is lower than before by more than is allowed."""

    leg: str
    measure: str
    before: float
    now: float

    def __str__(self) -> str:
        return f"{self.leg} {self.measure} {self.before:.3f} -> {self.now:.3f} ({self.now - self.before:+.3f})"


def document_of(unit: str, *, has_pages: bool) -> str:
    """The document of a judged unit."""
    return unit.rpartition("#p")[0] if has_pages else unit


def falls(before: Figures, now: Figures, *, most: float, legs: Sequence[str] = LEGS) -> tuple[Fall, ...]:
    """Judged measures of the legs that have fallen by more than `most`; a leg that is missing in one is passed over."""
    return tuple(fall for fall in _changes(before, now, legs) if fall.before - fall.now > most + ROUNDING)


def is_as_good(before: Figures, now: Figures) -> bool:
    """Whether no judged measure is lower at all: a slow decline in small steps never becomes what is compared with."""
    return not falls(before, now, most=0.0)


def _changes(before: Figures, now: Figures, legs: Sequence[str]) -> Iterator[Fall]:
    for leg in legs:
        for measure in JUDGED:
            if measure in before.get(leg, {}) and measure in now.get(leg, {}):
                yield Fall(leg=leg, measure=measure, before=before[leg][measure], now=now[leg][measure])
