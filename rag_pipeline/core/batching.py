"""Cutting the waiting documents into batches bounded by count, bytes and pages. Pure, no I/O.

A run covers all partitions between its endpoints. Documents of these that are READY are passed over, which costs about
a hundredth of what starting another run costs, so scattered documents share a run across them.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from rag_pipeline.core.work import BatchPlan, Candidate

PDF_BYTES_PER_PAGE = 25_000
"""Median over real reports; only bounds batches until a document has been parsed."""
LARGE_PDF_BYTES = 8_000_000
"""A scan of a hundred pages or more: OCR takes seconds a page, and the stages of a batch wait for its slowest."""
SHARE_AFTER_DEATH = 4
"""A document whose run died counts as this many, so it is tried again in a smaller batch; after two deaths alone."""
LONGEST_RANGE = 1_024
"""Partitions of one run, with those passed over: their events take 10 to 15 ms CPU each, a run seven seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """Bounds of one batch."""

    documents: int
    bytes: int
    pages: int


def estimated_pages(candidate: Candidate) -> int:
    """Pages a PDF probably has, 0 for formats that parse fast."""
    return candidate.size_bytes // PDF_BYTES_PER_PAGE if _is_pdf(candidate) else 0


def is_large(candidate: Candidate, limits: BatchLimits) -> bool:
    """Whether a document would hold up the others of a batch, and its run those of other documents."""
    return (
        candidate.size_bytes > limits.bytes // 2
        or estimated_pages(candidate) > limits.pages // 2
        or (_is_pdf(candidate) and candidate.size_bytes > LARGE_PDF_BYTES)
    )


def goes_alone(candidate: Candidate, limits: BatchLimits) -> bool:
    """Whether a document has a run of its own: it takes long, or two runs with it have died."""
    return is_large(candidate, limits) or candidate.died_runs > 1


def weight(candidate: Candidate, limits: BatchLimits) -> int:
    """How many documents of a batch this one stands for."""
    return min(SHARE_AFTER_DEATH, limits.documents) if candidate.died_runs else 1


def in_partition_order(candidates: Sequence[Candidate], limits: BatchLimits) -> list[Candidate]:
    """New documents in the order in which their partitions should be added.

    Those of one knowledge base stay together, and those that go alone come last.
    """
    return sorted(candidates, key=lambda candidate: (goes_alone(candidate, limits), candidate.kb_id))


def keys_between(candidates: Sequence[Candidate], order: Sequence[str]) -> list[str]:
    """Partitions that lie between neighbouring candidates near enough to share a run."""
    places = {key: place for place, key in enumerate(order)}
    found = sorted(places[candidate.partition_key] for candidate in candidates)
    between: list[str] = []
    for left, right in itertools.pairwise(found):
        if right - left < LONGEST_RANGE:
            between += order[left + 1 : right]
    return between


def plan_batches(
    candidates: Sequence[Candidate],
    order: Sequence[str],
    limits: BatchLimits,
    passable: frozenset[str] = frozenset(),
) -> list[BatchPlan]:
    """Bounded batches, each of one range of partitions, that together hold every candidate exactly once.

    Args:
        candidates: documents to work on, in any order.
        order: every existing partition key, in Dagster's order.
        limits: bounds of a batch.
        passable: partitions that a range may cover although they are no candidates, because a run passes over them.
    """
    places = {key: place for place, key in enumerate(order)}
    plans: list[_Batch] = []
    for candidate in sorted(candidates, key=lambda each: places[each.partition_key]):
        place = places[candidate.partition_key]
        batch = plans[-1] if plans else None
        if batch is None or not batch.takes(candidate, order[batch.last + 1 : place], passable, limits):
            plans.append(batch := _Batch(first=place))
        batch.add(candidate, place, weight(candidate, limits))
    return [
        BatchPlan(candidates=tuple(batch.candidates), is_large=any(is_large(each, limits) for each in batch.candidates))
        for batch in plans
    ]


def _is_pdf(candidate: Candidate) -> bool:
    return candidate.file_name.lower().endswith(".pdf")


@dataclass(kw_only=True)
class _Batch:
    """A batch while it grows."""

    first: int
    last: int = 0
    candidates: list[Candidate] = field(default_factory=list)
    documents: int = 0
    """As many as they stand for."""
    bytes: int = 0
    pages: int = 0

    def add(self, candidate: Candidate, place: int, documents: int) -> None:
        self.candidates.append(candidate)
        self.documents += documents
        self.last = place
        self.bytes += candidate.size_bytes
        self.pages += estimated_pages(candidate)

    def takes(
        self, candidate: Candidate, between: Sequence[str], passable: frozenset[str], limits: BatchLimits
    ) -> bool:
        return (
            self.documents + weight(candidate, limits) <= limits.documents
            and self.bytes + candidate.size_bytes <= limits.bytes
            and self.pages + estimated_pages(candidate) <= limits.pages
            and not goes_alone(candidate, limits)
            and not goes_alone(self.candidates[-1], limits)
            and self.last + len(between) + 1 - self.first < LONGEST_RANGE
            and passable.issuperset(between)
        )
