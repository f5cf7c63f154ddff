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

from rag_pipeline.adapters.embedders.unit_vectors import unit_rows
from rag_pipeline.core.parsed_document import clean_text
from rag_pipeline.core.ports import Embedder, EmbedderIdentity, Vectors
from rag_pipeline.errors import ConfigurationError, EmbeddingRejectedError
from rag_pipeline.settings import Settings

if TYPE_CHECKING:
    from onnxruntime import InferenceSession
    from tokenizers import Tokenizer

BATCH = 32
"""Texts per run of the model, of similar length, so that little is computed for padding."""
MAX_TOKENS = 512
"""Where `config.json` says nothing: the limit of BERT models. Longer texts are cut."""


class OnnxEmbedder(Embedder):
    """Runs in this process on all cores. Safe to share between threads; the model is read on first use."""

    def __init__(self, folder: Path, *, dimensions: int, query_prefix: str = "", passage_prefix: str = "") -> None:
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
        self._lock = threading.Lock()
        self._loaded: tuple[InferenceSession, Tokenizer] | None = None

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
        )

    @cached_property
    def identity(self) -> EmbedderIdentity:
        """Named by the folder and the content of the model, so an exchanged model is another embedder."""
        with (self._folder / "model.onnx").open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return EmbedderIdentity(
            provider="onnx", model=f"{self._folder.name}-{digest[:12]}", dimensions=self._dimensions
        )

    def embed_passages(self, texts: Sequence[str]) -> Vectors:
        """One unit row per text."""
        return self._embed([self._passage_prefix + clean_text(text) for text in texts])

    def embed_queries(self, texts: Sequence[str]) -> Vectors:
        """One unit row per query."""
        return self._embed([self._query_prefix + clean_text(text) for text in texts])

    def _embed(self, texts: list[str]) -> Vectors:
        raw = np.zeros((len(texts), self._dimensions), dtype=np.float32)
        if not texts:
            return raw
        session, tokenizer = self._model()
        encodings = tokenizer.encode_batch(texts)
        order = sorted(range(len(texts)), key=lambda position: len(encodings[position].ids))
        for start in range(0, len(order), BATCH):
            positions = order[start : start + BATCH]
            raw[positions] = self._run(session, [encodings[position] for position in positions])
        vectors, usable = unit_rows(raw)
        if not usable.all():
            position = int(np.argmin(usable))
            raise EmbeddingRejectedError(f"{self._folder.name} gave no vector for the text {texts[position][:60]!r}")
        return vectors

    def _run(self, session: "InferenceSession", encodings: list[Any]) -> npt.NDArray[np.float32]:
        """Vectors of one batch, shape (count, dimensions), not yet of unit length."""
        length = max(1, *(len(encoding.ids) for encoding in encodings))
        ids = np.zeros((len(encodings), length), dtype=np.int64)
        mask = np.zeros_like(ids)
        for row, encoding in enumerate(encodings):
            ids[row, : len(encoding.ids)] = encoding.ids
            mask[row, : len(encoding.ids)] = 1
        known = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        wanted = [node.name for node in session.get_inputs()]
        if not set(wanted) <= known.keys():
            raise ConfigurationError(f"{self._folder / 'model.onnx'} has the inputs {wanted}, known are {[*known]}")
        output = np.asarray(session.run(None, {name: known[name] for name in wanted})[0], dtype=np.float32)
        pooled = output if output.ndim == 2 else self._pooled(output, mask)
        if pooled.shape != (len(encodings), self._dimensions):
            raise ConfigurationError(
                f"{self._folder / 'model.onnx'} gives vectors of {pooled.shape[-1]} dimensions; "
                f"RAG_EMBEDDING_DIMENSIONS is {self._dimensions}"
            )
        return pooled

    def _pooled(self, states: npt.NDArray[np.float32], mask: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """One vector per text out of token states of shape (count, tokens, dimensions)."""
        if self._takes_first_token:
            return states[:, 0]
        weights = mask[:, :, None].astype(np.float32)
        mean: npt.NDArray[np.float32] = (states * weights).sum(axis=1) / np.maximum(weights.sum(axis=1), 1.0)
        return mean

    @cached_property
    def _takes_first_token(self) -> bool:
        return bool(self._json("1_Pooling/config.json").get("pooling_mode_cls_token", False))

    def _model(self) -> "tuple[InferenceSession, Tokenizer]":
        with self._lock:
            if self._loaded is None:
                self._loaded = self._load()
            return self._loaded

    def _load(self) -> "tuple[InferenceSession, Tokenizer]":
        import onnxruntime
        from tokenizers import Tokenizer

        try:
            session = onnxruntime.InferenceSession(str(self._folder / "model.onnx"), providers=["CPUExecutionProvider"])
        except Exception as error:  # its exceptions share no other base class
            raise ConfigurationError(f"{self._folder / 'model.onnx'} cannot be loaded: {error}") from error
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
