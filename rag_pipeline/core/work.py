"""What a batch works on and what comes out of it. Pure values, no I/O."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from rag_pipeline.core.documents import Stage, Status
from rag_pipeline.errors import RagPipelineError


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkItem:
    """One document version that a batch owns, or looks at."""

    document_id: str
    kb_id: str
    kb_name: str
    partition_key: str
    source_path: str
    file_name: str
    status: Status
    version: int
    live_version: int | None
    attempt: int
    """Number of the current run over this version, from 1; part of artefact keys."""
    uncounted_attempts: int = 0
    """Attempts before the last retry by hand."""
    batch_id: str | None
    sha256: str
    size_bytes: int
    object_key: str
    metadata: Mapping[str, object]

    @property
    def counted_attempts(self) -> int:
        """Attempts that count towards the limit after which a temporary failure is dead."""
        return self.attempt - self.uncounted_attempts


@dataclass(frozen=True, slots=True, kw_only=True)
class StageArtefact:
    """The winning result of a stage for one document version."""

    stage: Stage
    fingerprint: str
    artefact_key: str | None
    summary: Mapping[str, object]


class OutcomeKind(StrEnum):
    """What happened to one document at one stage."""

    DONE = "done"
    """The stage did its work."""
    UNCHANGED = "unchanged"
    """Nothing to do: equal fingerprint and existing artefact."""
    EMPTY = "empty"
    """No content to go on with: a warning, not an error."""
    FAILED = "failed"
    DROPPED = "dropped"
    """The batch does not own the document (any more): canceled, deleted, or busy in another run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageOutcome:
    """The outcome of one stage for one document."""

    item: WorkItem
    stage: Stage
    kind: OutcomeKind
    summary: Mapping[str, object] = field(default_factory=dict)
    """Counts and facts for people: pages, characters, chunks, tokens, warnings, preview, ..."""
    artefact_key: str | None = None
    error: RagPipelineError | None = None
    milliseconds: int = 0


RUN_DIED = "run_died"
"""Error code of documents whose run ended without a word: its process was killed, or the machine stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A PENDING document that the sensor may put into a batch."""

    document_id: str
    kb_id: str
    partition_key: str
    file_name: str
    size_bytes: int
    died_runs: int = 0
    """Runs of this version that died, the last one among them; 0 when the last one ended by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """Documents whose partitions are contiguous, to be done by one run."""

    candidates: tuple[Candidate, ...]
    is_large: bool = False
    """One document that takes long."""

    @property
    def first_partition(self) -> str:
        """Start of the range."""
        return self.candidates[0].partition_key

    @property
    def last_partition(self) -> str:
        """End of the range, inclusive."""
        return self.candidates[-1].partition_key
