"""Reranking services over HTTP, in the two shapes that are in use.

`cohere`: `{"query", "documents", "top_n"}` -> `{"results": [{"index", "relevance_score"}]}` (Cohere, Jina, vLLM,
Xinference). `tei`: `{"query", "texts"}` -> `[{"index", "score"}]` (Hugging Face Text Embeddings Inference).
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import SecretStr

from rag_pipeline.adapters.http_service import JsonService
from rag_pipeline.core.parsed_document import clean_text
from rag_pipeline.core.ports import Reranker
from rag_pipeline.settings import Settings

TEXT_CHARACTERS = 8_000
"""Passages are cut here; rerankers read 512 to 8,192 tokens, and our chunks have at most 480."""


class HttpReranker(Reranker):
    """One request per call. Safe to share between threads."""

    def __init__(
        self,
        *,
        url: str,
        api: Literal["cohere", "tei"] = "cohere",
        model: str = "",
        api_key: SecretStr | None = None,
        timeout_seconds: float = 5.0,
    ) -> None:
        """Call nothing yet. Raises `ConfigurationError`."""
        self._service = JsonService(
            url=url, path="/rerank", api_key=api_key, setting="RAG_RERANK", timeout_seconds=timeout_seconds
        )
        self._api = api
        self._model = {"model": model} if model else {}

    @classmethod
    def from_settings(cls, settings: Settings) -> "HttpReranker | None":
        """The service that the settings name, None without one. Raises `ConfigurationError`."""
        if not settings.rerank_url:
            return None
        return cls(
            url=settings.rerank_url,
            api=settings.rerank_api,
            model=settings.rerank_model,
            api_key=settings.rerank_api_key,
            timeout_seconds=settings.rerank_timeout_seconds,
        )

    def rerank(self, query: str, texts: Sequence[str]) -> Mapping[int, float]:
        """Scores by position; places that do not exist are passed over, a score that is no number spoils the answer."""
        passages = [clean_text(text)[:TEXT_CHARACTERS] for text in texts]
        if self._api == "tei":
            answer = self._service.post({"query": query, "texts": passages, "truncate": True, **self._model})
        else:
            body = {"query": query, "documents": passages, "top_n": len(passages), **self._model}
            answer = self._service.post(body)
        scores = _scores(answer, len(texts))
        if not scores:
            raise self._service.malformed(json.dumps(answer))
        return scores

    def close(self) -> None:
        """Close the connections."""
        self._service.close()


def _scores(answer: Any, count: int) -> dict[int, float]:
    """Scores by position out of either shape; empty when the answer has no sense."""
    rows = answer.get("results") if isinstance(answer, dict) else answer
    if not isinstance(rows, list):
        return {}
    scores: dict[int, float] = {}
    for row in rows:
        if not isinstance(row, dict):
            return {}
        index, score = row.get("index"), row.get("relevance_score", row.get("score"))
        if not isinstance(index, int) or not isinstance(score, int | float) or not math.isfinite(score):
            return {}
        if 0 <= index < count:
            scores.setdefault(index, float(score))
    return scores
