"""A sentence embedding model from a local folder, on ONNX Runtime.

The folder has `model.onnx` and `tokenizer.json` (the layout of exported sentence-transformers models), and optionally
`config.json` (`max_position_embeddings`) and `1_Pooling/config.json` (`pooling_mode_cls_token`; else the mean).
"""

import hashlib
import json
import threading
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rag_pipeline.adapters.embedders.onnx_session import OnnxSession
from rag_pipeline.adapters.embedders.unit_vectors import unit_rows
from rag_pipeline.core.parsed_document import clean_text
from rag_pipeline.core.ports import Embedder, EmbedderIdentity, Vectors
from rag_pipeline.errors import ConfigurationError, EmbeddingRejectedError
from rag_pipeline.settings import Settings

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MAX_TOKENS = 512
"""Where `config.json` says nothing: the limit of BERT models. Longer texts are cut."""


class OnnxEmbedder(Embedder):
    """Runs in this process. Safe to share between threads; the model is read on first use."""

    def __init__(
        self, folder: Path, *, dimensions: int, query_prefix: str = "", passage_prefix: str = "", threads: int = 1
    ) -> None:
        """Read nothing but the folder's file names.

        Raises:
            ConfigurationError: a file is missing.
        """
        for name in ("model.onnx", "tokenizer.json"):
            if not (folder / name).is_file():
                raise ConfigurationError(f"RAG_EMBEDDING_FOLDER={str(folder)!r} has no {name}")
        self._folder = folder
        self._dimensions = dimensions
        self._query_prefix = query_prefix
        self._passage_prefix = passage_prefix
        self._threads = threads
        self._lock = threading.Lock()
        self._loaded: tuple[OnnxSession, Tokenizer] | None = None

    @classmethod
    def from_settings(cls, settings: Settings) -> "OnnxEmbedder":
        """The folder that the settings name. Raises `ConfigurationError`."""
        if settings.embedding_folder is None:
            raise ConfigurationError("RAG_EMBEDDER=onnx needs RAG_EMBEDDING_FOLDER with model.onnx and tokenizer.json")
        return cls(
            settings.embedding_folder,
            dimensions=settings.embedding_dimensions,
            query_prefix=settings.embedding_query_prefix,
            passage_prefix=settings.embedding_passage_prefix,
            threads=settings.embedder_threads,
        )

    @cached_property
    def identity(self) -> EmbedderIdentity:
        """Named by the folder and the content of the model, so an exchanged model is another embedder."""
        with (self._folder / "model.onnx").open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return EmbedderIdentity(
            provider="onnx", model=f"{self._folder.name}-{digest[:12]}", dimensions=self._dimensions
        )

    def passage_input(self, text: str) -> str:
        """With the prefix."""
        return self._passage_prefix + clean_text(text)

    def embed_passages(self, texts: Sequence[str]) -> Vectors:
        """One unit row per text."""
        return self._embed([self.passage_input(text) for text in texts])

    def embed_queries(self, texts: Sequence[str]) -> Vectors:
        """One unit row per query."""
        return self._embed([self._query_prefix + clean_text(text) for text in texts])

    def _embed(self, texts: list[str]) -> Vectors:
        if not texts:
            return np.zeros((0, self._dimensions), dtype=np.float32)
        session, tokenizer = self._model()
        outputs = session.run([encoding.ids for encoding in tokenizer.encode_batch(texts)])
        raw = np.stack([self._pooled(output) for output in outputs])
        if raw.shape != (len(texts), self._dimensions):
            raise ConfigurationError(
                f"{self._folder / 'model.onnx'} gives vectors of {raw.shape[-1]} dimensions; "
                f"RAG_EMBEDDING_DIMENSIONS is {self._dimensions}"
            )
        vectors, usable = unit_rows(raw)
        if not usable.all():
            position = int(np.argmin(usable))
            raise EmbeddingRejectedError(f"{self._folder.name} gave no vector for the text {texts[position][:60]!r}")
        return vectors

    def close(self) -> None:
        """End the threads."""
        with self._lock:
            loaded, self._loaded = self._loaded, None
        if loaded is not None:
            loaded[0].close()

    def _pooled(self, output: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """The vector out of the output for a text: that vector, or token states of shape (tokens, dimensions)."""
        if output.ndim == 1:
            return output
        if self._takes_first_token or not len(output):
            return output[0] if len(output) else np.zeros(output.shape[1], dtype=np.float32)
        mean: npt.NDArray[np.float32] = output.mean(axis=0)
        return mean

    @cached_property
    def _takes_first_token(self) -> bool:
        return bool(self._json("1_Pooling/config.json").get("pooling_mode_cls_token", False))

    def _model(self) -> "tuple[OnnxSession, Tokenizer]":
        with self._lock:
            if self._loaded is None:
                self._loaded = self._load()
            return self._loaded

    def _load(self) -> "tuple[OnnxSession, Tokenizer]":
        from tokenizers import Tokenizer

        session = OnnxSession(self._folder / "model.onnx", threads=self._threads)
        try:
            tokenizer = Tokenizer.from_file(str(self._folder / "tokenizer.json"))
        except Exception as error:  # it raises Exception itself
            raise ConfigurationError(f"{self._folder / 'tokenizer.json'} cannot be loaded: {error}") from error
        tokenizer.no_padding()
        limit = int(self._json("config.json").get("max_position_embeddings", MAX_TOKENS))
        tokenizer.enable_truncation(max_length=min(limit, MAX_TOKENS))
        return session, tokenizer

    def _json(self, name: str) -> dict[str, Any]:
        """A configuration file of the folder; empty if it does not exist."""
        path = self._folder / name
        if not path.is_file():
            return {}
        try:
            content = json.loads(path.read_text("utf-8"))
        except ValueError as error:
            raise ConfigurationError(f"{path} is not JSON: {error}") from error
        return content if isinstance(content, dict) else {}
