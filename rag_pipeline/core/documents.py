"""Documents, their status, and the one table of legal status changes. Pure values, no I/O."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from rag_pipeline.errors import ErrorClass, IllegalTransitionError


class Status(StrEnum):
    """Where the newest version of a document stands; which version answers queries is `Document.live_version`."""

    PENDING = "PENDING"
    PARSING = "PARSING"
    CHUNKING = "CHUNKING"
    EMBEDDING = "EMBEDDING"
    INDEXING = "INDEXING"
    READY = "READY"
    NO_CONTENT = "NO_CONTENT"
    FAILED = "FAILED"
    CANCELING = "CANCELING"
    CANCELED = "CANCELED"
    DELETING = "DELETING"


class Stage(StrEnum):
    """The stages, named as their assets, in order."""

    SOURCE_DOCUMENT = "source_document"
    PARSED_BLOCKS = "parsed_blocks"
    CHUNKS = "chunks"
    CHUNK_SNAPSHOT = "chunk_snapshot"
    EMBEDDINGS = "embeddings"
    INDEX_WRITES = "index_writes"

    @property
    def upstream(self) -> "Stage | None":
        """The stage before, None for the first."""
        order = list(Stage)
        position = order.index(self)
        return order[position - 1] if position else None


STATUS_DURING: Mapping[Stage, Status] = {
    Stage.SOURCE_DOCUMENT: Status.PARSING,
    Stage.PARSED_BLOCKS: Status.PARSING,
    Stage.CHUNKS: Status.CHUNKING,
    Stage.CHUNK_SNAPSHOT: Status.CHUNKING,
    Stage.EMBEDDINGS: Status.EMBEDDING,
    Stage.INDEX_WRITES: Status.INDEXING,
}
"""The status is set before the stage begins, so a crash leaves the last stage started."""

SHORTEST_ID = 12
"""Hex digits of a document id that are enough to name it; they end its partition key as well."""

WORKING = frozenset(STATUS_DURING.values())
FINISHED = frozenset({Status.READY, Status.NO_CONTENT})
"""What a document comes to when nothing is wrong."""
SETTLED = FINISHED | {Status.FAILED, Status.CANCELED}

TRANSITIONS: Mapping[Status, frozenset[Status]] = {
    Status.PENDING: frozenset(WORKING | {Status.FAILED, Status.CANCELING, Status.DELETING}),
    Status.PARSING: frozenset(WORKING | {Status.NO_CONTENT, Status.PENDING, Status.FAILED, Status.CANCELING}),
    Status.CHUNKING: frozenset(
        {
            Status.CHUNKING,
            Status.EMBEDDING,
            Status.INDEXING,
            Status.NO_CONTENT,
            Status.PENDING,
            Status.FAILED,
            Status.CANCELING,
        }
    ),
    Status.EMBEDDING: frozenset({Status.EMBEDDING, Status.INDEXING, Status.PENDING, Status.FAILED, Status.CANCELING}),
    Status.INDEXING: frozenset({Status.INDEXING, Status.READY, Status.PENDING, Status.FAILED, Status.CANCELING}),
    Status.READY: frozenset({Status.PENDING, Status.DELETING}),
    Status.NO_CONTENT: frozenset({Status.PENDING, Status.DELETING}),
    Status.FAILED: frozenset(WORKING | {Status.PENDING, Status.CANCELING, Status.DELETING}),
    Status.CANCELING: frozenset({Status.CANCELED, Status.DELETING}),
    Status.CANCELED: frozenset(WORKING | {Status.PENDING, Status.DELETING}),
    Status.DELETING: frozenset(),
}
"""Allowed next states. WORKING -> PENDING hands a document back (a partial materialization, a dead run).

A stage with nothing to do is passed over, so work goes forward by one state or more, and never back. READY and
NO_CONTENT versions are never worked on again: the next version is opened beside them, PENDING.
"""


def allowed_from(target: Status) -> tuple[Status, ...]:
    """States from which `target` may be entered: what a conditional UPDATE names in its WHERE."""
    return tuple(status for status in Status if target in TRANSITIONS[status])


def check_transition(current: Status, target: Status) -> None:
    """Raise `IllegalTransitionError` unless the table allows the change."""
    if target not in TRANSITIONS[current]:
        raise IllegalTransitionError(f"a document that is {current} cannot become {target}")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnowledgeBase:
    """A collection of documents that is searched as one."""

    id: str
    name: str
    status: str
    """ACTIVE, DELETING or DELETED."""
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """What stays of a deleted document or knowledge base."""

    target_id: str
    """Id of the document or the knowledge base."""
    kind: str
    """`document` or `knowledge_base`; the documents of a deleted knowledge base have no record of their own."""
    kb_name: str
    name: str
    """Source path of the document, or name of the knowledge base."""
    reason: str | None
    requested_at: datetime
    finished_at: datetime | None
    """None while something is left in a store; it is tried again until nothing is."""
    counts: Mapping[str, int]
    """What was removed so far: documents, chunk_rows, vectors, snapshots, objects, partitions."""
    last_error: str | None
    """Why the last try did not get to the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentError:
    """Why a document failed."""

    stage: str
    code: str
    error_class: ErrorClass
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One document of a knowledge base: identity is (knowledge base, source path)."""

    id: str
    kb_id: str
    kb_name: str
    source_path: str
    """Relative path given at submit, NFC, `/` separated."""
    file_name: str
    partition_key: str
    status: Status
    version: int
    """The newest version."""
    live_version: int | None
    """The version that answers queries; None until the first becomes READY."""
    sha256: str
    size_bytes: int
    attempt: int
    """Runs that have worked on the newest version."""
    created_at: datetime
    updated_at: datetime
    error: DocumentError | None = None
    pages: int | None = None
    chunk_count: int | None = None
    token_count: int | None = None
    metadata: Mapping[str, object] = field(default_factory=dict)
    """Of the newest version; queries use those of the live one."""
    warnings: tuple[str, ...] = ()
    duplicate: bool = False
    """Set on the answer of a submit that found the same bytes under the same path."""
    cancel_reason: str | None = None
    """Why the newest version was canceled."""
    created_by: str | None = None
    """Who submitted the bytes of the newest version, as far as is known."""
    retry_at: datetime | None = None
    """When a FAILED document is tried again by itself, at the earliest; None: it is not."""
    stages_done: int = 0
    """Stages of the newest version that are finished, of `len(Stage)`."""

    @property
    def progress(self) -> float:
        """How far the newest version is, from 0 to 1; a document without content is done early."""
        if self.status in FINISHED:
            return 1.0
        return self.stages_done / len(Stage)

    @property
    def is_settled(self) -> bool:
        """Whether nothing is going on: READY, NO_CONTENT, FAILED or CANCELED."""
        return self.status in SETTLED
