"""Any service that speaks OpenAI's `/v1/embeddings` (OpenAI, DashScope, TEI, vLLM, Ollama), over `httpx`.

How requests are retried and answers are checked is in `openai_service`; here is how texts are spread over requests, and
how a refused request is narrowed down to the text that it was refused for.
"""

import logging
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from pydantic import SecretStr

from rag_pipeline.adapters.embedders.openai_service import BatchRefusedError, EmbeddingService
from rag_pipeline.core.parsed_document import clean_text
from rag_pipeline.core.ports import Embedder, EmbedderIdentity, PartialEmbeddings, Vectors
from rag_pipeline.errors import ConfigurationError, EmbeddingRejectedError, EmbeddingUnavailableError
from rag_pipeline.settings import Settings

logger = logging.getLogger(__name__)

PROBE = "test"
"""Sent alone when the first request ever is refused: refused as well, it is not a matter of the texts."""


class OpenAICompatibleEmbedder(Embedder):
    """Sends texts in batches, several requests at a time. Safe to share between threads."""

    def __init__(
        self,
        *,
        url: str,
        model: str,
        dimensions: int,
        api_key: SecretStr | None = None,
        batch_size: int = 64,
        concurrency: int = 4,
        timeout_seconds: float = 60.0,
        query_prefix: str = "",
        passage_prefix: str = "",
    ) -> None:
        """Call nothing yet.

        Raises:
            ConfigurationError: the URL is not http(s), or the key cannot be sent.
        """
        self._identity = EmbedderIdentity(provider="openai", model=model, dimensions=dimensions)
        self._service = EmbeddingService(
            url=url,
            model=model,
            dimensions=dimensions,
            api_key=api_key,
            concurrency=concurrency,
            timeout_seconds=timeout_seconds,
        )
        self._batch_size = batch_size
        self._concurrency = concurrency
        self._query_prefix = query_prefix
        self._passage_prefix = passage_prefix

    @classmethod
    def from_settings(cls, settings: Settings) -> "OpenAICompatibleEmbedder":
        """The service that the settings name. Raises `ConfigurationError`."""
        if not settings.embedding_url:
            raise ConfigurationError("RAG_EMBEDDER=openai needs RAG_EMBEDDING_URL, e.g. https://api.openai.com/v1")
        return cls(
            url=settings.embedding_url,
            model=settings.embedding_model,
            dimensions=settings.embedding_dimensions,
            api_key=settings.embedding_api_key,
            batch_size=settings.embedding_batch_size,
            concurrency=settings.embedding_concurrency,
            timeout_seconds=settings.embedding_timeout_seconds,
            query_prefix=settings.embedding_query_prefix,
            passage_prefix=settings.embedding_passage_prefix,
        )

    @property
    def identity(self) -> EmbedderIdentity:
        """Provider, model, dimensions."""
        return self._identity

    def passage_input(self, text: str) -> str:
        """With the prefix."""
        return self._passage_prefix + clean_text(text)

    def embed_passages(self, texts: Sequence[str]) -> Vectors:
        """One unit row per text; the first error of any text is raised."""
        return _all_or_raise(self.embed_passages_partial(texts))

    def embed_queries(self, texts: Sequence[str]) -> Vectors:
        """One unit row per query; the first error of any query is raised."""
        return _all_or_raise(self._embed([self._query_prefix + clean_text(text) for text in texts]))

    def embed_passages_partial(self, texts: Sequence[str]) -> PartialEmbeddings:
        """A vector or an error per text.

        A refused batch is halved until the text it was refused for stands alone: about log2(batch size) more requests
        per such text. When the service fails (retries included), the texts that were not sent yet get its error.
        """
        return self._embed([self.passage_input(text) for text in texts])

    def close(self) -> None:
        """Close the connections."""
        self._service.close()

    def _embed(self, texts: list[str]) -> PartialEmbeddings:
        size = self._batch_size
        call = _Call(self._service, texts, size=size)
        groups = [list(range(start, min(start + size, len(texts)))) for start in range(0, len(texts), size)]
        if groups:
            with ThreadPoolExecutor(max_workers=min(self._concurrency, len(groups))) as pool:
                for _ in pool.map(call.embed_group, groups):
                    pass
        self._batch_size = min(self._batch_size, call.size)
        return PartialEmbeddings(vectors=call.vectors, errors=dict(sorted(call.errors.items())))


class _Call:
    """The vectors and errors of one call while its requests are under way."""

    def __init__(self, service: EmbeddingService, texts: Sequence[str], *, size: int) -> None:
        self.size = size
        """Most texts per request; shrinks when the service turns out to take fewer."""
        self.vectors = np.zeros((len(texts), service.dimensions), dtype=np.float32)
        self.errors: dict[int, EmbeddingUnavailableError | EmbeddingRejectedError] = {}
        self._service = service
        self._texts = texts
        self._lock = threading.Lock()
        self._stopped_by: EmbeddingUnavailableError | EmbeddingRejectedError | None = None

    def embed_group(self, positions: list[int]) -> None:
        """Embed the texts of one batch, whatever it takes."""
        place = 0
        while place < len(positions):
            piece = positions[place : place + self.size]
            place += len(piece)
            if not self._send(piece) and not any(position in self.errors for position in piece):
                self._shrink(len(piece))

    def _shrink(self, refused: int) -> None:
        """A batch was refused although each part of it was taken: send half as many from now on."""
        with self._lock:
            if refused <= self.size:
                self.size = max(1, refused // 2)
                logger.warning(
                    "the embedding service refuses %d texts per request; set RAG_EMBEDDING_BATCH_SIZE=%d or less",
                    refused,
                    self.size,
                )

    def _send(self, positions: list[int], *, refused: BatchRefusedError | None = None) -> bool:
        """Embed the texts; whether one request was enough.

        `refused` is given when these texts are known to hold the reason for a refusal, because the other half of the
        refused batch was taken: they are halved at once. A single text is always sent: the reason may be the number.
        """
        if refused is None or len(positions) == 1:
            try:
                self._request(positions)
            except BatchRefusedError as error:
                refused = error
            else:
                return True
            if len(positions) == 1:
                self._fail(positions, refused)
                return False
            self._stop_if_everything_is_refused(refused)
        left, right = positions[: len(positions) // 2], positions[len(positions) // 2 :]
        left_taken = self._send(left)
        self._send(right, refused=refused if left_taken else None)
        return False

    def _request(self, positions: list[int]) -> None:
        """One request. Raises `BatchRefusedError`; other errors are noted for these texts and end the call."""
        if self._stopped_by is None:
            try:
                vectors, usable = self._service.request([self._texts[position] for position in positions])
            except BatchRefusedError:
                raise
            except (EmbeddingUnavailableError, EmbeddingRejectedError) as error:
                self._stopped_by = error
            else:
                self.vectors[positions] = vectors
                for position in np.asarray(positions)[~usable].tolist():
                    text = self._texts[position]
                    self._fail([position], EmbeddingRejectedError(f"the service gave no vector for {text[:60]!r}"))
                return
        self._fail(positions, self._stopped_by)

    def _stop_if_everything_is_refused(self, refused: BatchRefusedError) -> None:
        if self._service.has_answered or self._stopped_by is not None:
            return
        try:
            self._service.request([PROBE])
        except BatchRefusedError:
            self._stopped_by = EmbeddingRejectedError(f"{refused}; a one-word text is refused as well")
        except (EmbeddingUnavailableError, EmbeddingRejectedError) as error:
            self._stopped_by = error

    def _fail(self, positions: Sequence[int], error: EmbeddingUnavailableError | EmbeddingRejectedError) -> None:
        with self._lock:
            self.errors.update(dict.fromkeys(positions, error))


def _all_or_raise(outcome: PartialEmbeddings) -> Vectors:
    for error in outcome.errors.values():
        raise error
    return outcome.vectors
