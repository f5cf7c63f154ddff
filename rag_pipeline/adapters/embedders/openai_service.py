"""One request to an OpenAI-compatible `/embeddings`: short retries, error translation, checks of the answer."""

import base64
import binascii
import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import tenacity
from pydantic import SecretStr

from rag_pipeline.adapters.embedders.unit_vectors import unit_rows
from rag_pipeline.adapters.http_service import (
    CONNECT_SECONDS,
    DIRECT,
    TEMPORARY_STATUS,
    header_key,
    retry_after,
    service_message,
    service_url,
    shortened,
    shown_url,
)
from rag_pipeline.core.ports import Vectors
from rag_pipeline.errors import EmbeddingRejectedError, EmbeddingUnavailableError

ATTEMPTS = 3
"""Per request. More patience is the pipeline's: it retries documents."""
MOST_WAIT_SECONDS = 5.0
"""A longer Retry-After is handed to the caller instead of waited for."""

_NARROWABLE = frozenset({400, 413, 422})
"""May be the fault of one text or of the size; other 4xx (401, 403, 404) are the fault of the configuration."""


class BatchRefusedError(EmbeddingRejectedError):
    """The service refuses this batch; a part of it may be taken."""


class EmbeddingService:
    """The HTTP side of the embedder. Safe to share between threads."""

    def __init__(
        self,
        *,
        url: str,
        model: str,
        dimensions: int,
        api_key: SecretStr | None,
        concurrency: int,
        timeout_seconds: float,
    ) -> None:
        self._url = service_url(url, "/embeddings", setting="RAG_EMBEDDING_URL")
        self._shown_url = shown_url(self._url)
        key = header_key(api_key, setting="RAG_EMBEDDING_API_KEY")
        self.dimensions = dimensions
        self.has_answered = False
        """Whether any request has ever been answered with vectors."""
        self._model = model
        self._key = key
        self._in_flight = threading.BoundedSemaphore(concurrency)
        self._client = httpx.Client(
            headers={"Authorization": f"Bearer {key}"} if key else None,
            timeout=httpx.Timeout(timeout_seconds, connect=CONNECT_SECONDS, pool=None),
            limits=httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency),
            mounts=DIRECT,
        )
        self._retrying = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(ATTEMPTS),
            wait=_wait_seconds,
            retry=tenacity.retry_if_exception(_is_worth_waiting),
            reraise=True,
        )

    def request(self, texts: Sequence[str]) -> tuple[Vectors, npt.NDArray[np.bool_]]:
        """Embed a batch in one request, tried up to `ATTEMPTS` times.

        Returns:
            Unit rows in the order of the texts, and which rows are usable (the others are zero).

        Raises:
            BatchRefusedError: HTTP 400, 413 or 422, or not one vector per text.
            EmbeddingRejectedError: other 4xx, or an answer of another shape.
            EmbeddingUnavailableError: network, 408, 429, 5xx.
        """
        return self._retrying.copy()(self._request_once, texts)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _request_once(self, texts: Sequence[str]) -> tuple[Vectors, npt.NDArray[np.bool_]]:
        with self._in_flight, self._translated():
            response = self._client.post(self._url, json={"model": self._model, "input": list(texts)})
        if response.status_code != httpx.codes.OK:
            raise self._from_status(response)
        rows, usable = unit_rows(self._rows(response, len(texts)))
        self.has_answered = True
        return rows, usable

    def _rows(self, response: httpx.Response, count: int) -> npt.NDArray[np.float32]:
        """The vectors, ordered by their `index`, shape (count, dimensions)."""
        try:
            data = response.json()["data"]
            rows = {int(item.get("index", place)): _vector(item["embedding"]) for place, item in enumerate(data)}
        except (ValueError, TypeError, KeyError, AttributeError, binascii.Error) as error:
            raise EmbeddingRejectedError(
                f"{self._shown_url} does not answer like an embedding service: {self._shortened(response.text)}"
            ) from error
        if len(data) != count or rows.keys() != set(range(count)):
            raise BatchRefusedError(f"{self._shown_url} gave {len(data)} vectors for {count} texts")
        lengths = {len(row) for row in rows.values()}
        if lengths != {self.dimensions}:
            raise EmbeddingRejectedError(
                f"{self._shown_url} gives vectors of {sorted(lengths)} dimensions; "
                f"RAG_EMBEDDING_DIMENSIONS is {self.dimensions}"
            )
        return np.stack([rows[place] for place in range(count)])

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """The one place where errors of `httpx` become ours."""
        try:
            yield
        except (httpx.RequestError, httpx.StreamError) as error:
            raise EmbeddingUnavailableError(
                f"{self._shown_url}: {type(error).__name__}: {self._shortened(str(error))}"
            ) from error

    def _from_status(self, response: httpx.Response) -> EmbeddingUnavailableError | EmbeddingRejectedError:
        status = response.status_code
        message = f"{self._shown_url}: HTTP {status}: {self._shortened(service_message(response.text))}"
        if status in TEMPORARY_STATUS or status >= 500:
            return EmbeddingUnavailableError(message, retry_after_seconds=retry_after(response.headers))
        return BatchRefusedError(message) if status in _NARROWABLE else EmbeddingRejectedError(message)

    def _shortened(self, text: str) -> str:
        return shortened(text, key=self._key)


def _vector(embedding: Any) -> npt.NDArray[np.float32]:
    if isinstance(embedding, str):
        return np.frombuffer(base64.b64decode(embedding, validate=True), dtype="<f4")
    row = np.asarray(embedding, dtype=np.float32)
    if row.ndim != 1:
        raise ValueError("an embedding is not a list of numbers")
    return row


def _is_worth_waiting(error: BaseException) -> bool:
    """Not after a timeout (the time is spent) nor for a longer wait than `MOST_WAIT_SECONDS`."""
    return (
        isinstance(error, EmbeddingUnavailableError)
        and not isinstance(error.__cause__, httpx.TimeoutException)
        and (error.retry_after_seconds or 0.0) <= MOST_WAIT_SECONDS
    )


_BACKOFF = tenacity.wait_exponential(multiplier=0.2, max=2.0) + tenacity.wait_random(0.0, 0.2)


def _wait_seconds(state: tenacity.RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    asked = error.retry_after_seconds if isinstance(error, EmbeddingUnavailableError) else None
    return _BACKOFF(state) if asked is None else asked
