"""The rerank step: the candidates in the order of a reranking service."""

from collections.abc import Sequence
from dataclasses import replace

from rag_pipeline.core.chunk import with_heading_path
from rag_pipeline.core.ports import Reranker
from rag_pipeline.query.results import Candidate


def reranked(query: str, candidates: Sequence[Candidate], reranker: Reranker) -> list[Candidate]:
    """Candidates by the service's scores; those that it left out follow in their old order.

    Raises:
        ModelUnavailableError: the service is down or too slow.
        ModelRejectedError: it refuses the request, or its answer has no sense.
    """
    texts = [with_heading_path(each.chunk.heading_path, each.chunk.text) for each in candidates]
    scores = reranker.rerank(query, texts)
    scored = [
        replace(candidate, rerank_score=scores[place]) for place, candidate in enumerate(candidates) if place in scores
    ]
    scored.sort(key=lambda candidate: -(candidate.rerank_score or 0.0))
    return scored + [candidate for place, candidate in enumerate(candidates) if place not in scores]
