"""Cutting the waiting documents into batches bounded by count, bytes and pages. Pure, no I/O."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rag_pipeline.core.work import BatchPlan, Candidate

PDF_BYTES_PER_PAGE = 25_000
"""Median over real reports; only bounds batches until a document has been parsed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """Bounds of one batch; a document over half of one of them goes alone."""

    documents: int
    bytes: int
    pages: int


def estimated_pages(candidate: Candidate) -> int:
    """Pages a PDF probably has, 0 for formats that parse fast."""
    return candidate.size_bytes // PDF_BYTES_PER_PAGE if candidate.file_name.lower().endswith(".pdf") else 0


def goes_alone(candidate: Candidate, limits: BatchLimits) -> bool:
    """Whether a document would hold up the others of a batch."""
    return candidate.size_bytes > limits.bytes // 2 or estimated_pages(candidate) > limits.pages // 2


def in_partition_order(candidates: Sequence[Candidate], limits: BatchLimits) -> list[Candidate]:
    """New documents in the order in which their partitions should be added: those that go alone come last."""
    return sorted(candidates, key=lambda candidate: goes_alone(candidate, limits))


def plan_batches(candidates: Sequence[Candidate], positions: Mapping[str, int], limits: BatchLimits) -> list[BatchPlan]:
    """Contiguous, bounded batches that together hold every candidate exactly once.

    Args:
        candidates: documents to work on, in any order.
        positions: place of every existing partition key in Dagster's order; a range run covers all keys between its
            endpoints, so a batch never spans a key that is not its own.
        limits: bounds of a batch.
    """
    ordered = sorted(candidates, key=lambda candidate: positions[candidate.partition_key])
    plans: list[list[Candidate]] = []
    total_bytes = total_pages = 0
    for candidate in ordered:
        pages = estimated_pages(candidate)
        batch = plans[-1] if plans else []
        fits = (
            batch
            and positions[candidate.partition_key] == positions[batch[-1].partition_key] + 1
            and len(batch) < limits.documents
            and total_bytes + candidate.size_bytes <= limits.bytes
            and total_pages + pages <= limits.pages
            and not goes_alone(candidate, limits)
            and not goes_alone(batch[-1], limits)
        )
        if fits:
            batch.append(candidate)
            total_bytes += candidate.size_bytes
            total_pages += pages
        else:
            plans.append([candidate])
            total_bytes, total_pages = candidate.size_bytes, pages
    return [BatchPlan(candidates=tuple(batch)) for batch in plans]
