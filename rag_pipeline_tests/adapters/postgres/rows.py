"""Short ways to rows for the tests of the facts database."""

import uuid
from collections.abc import Callable, Mapping, Sequence

import sqlalchemy as sa

from rag_pipeline.adapters.postgres.chunk_rows import StoredVectors
from rag_pipeline.adapters.postgres.documents import NewVersion, Slot
from rag_pipeline.adapters.postgres.facts import Facts
from rag_pipeline.adapters.postgres.node_log import NodeLogEntry, node_log
from rag_pipeline.adapters.postgres.schema import batches, documents
from rag_pipeline.adapters.postgres.waiting import RequestedBatch
from rag_pipeline.core.chunk import Chunk, PageRegion
from rag_pipeline.core.documents import Document, KnowledgeBase, Stage, Status
from rag_pipeline.core.parsed_document import BoundingBox
from rag_pipeline.core.partitions import partition_key
from rag_pipeline.core.ports import EmbedderIdentity
from rag_pipeline.core.work import BatchPlan, Candidate, OutcomeKind, StageOutcome, WorkItem
from rag_pipeline.errors import RagPipelineError

EMBEDDER = EmbedderIdentity(provider="openai", model="loopback", dimensions=16)


def create_knowledge_base(facts: Facts, name: str) -> KnowledgeBase:
    """A knowledge base, with `rag_1` as the collection that answers."""
    facts.ensure_generation(prefix="rag", embedder=EMBEDDER, analyzer="standard")
    return facts.knowledge_bases.create(name)


def new_version(path: str, content: str = "content", metadata: Mapping[str, object] | None = None) -> NewVersion:
    """What a submit of a text under a path brings; the text stands for its hash."""
    return NewVersion(
        source_path=path,
        file_name=path.rpartition("/")[2],
        sha256=content,
        size_bytes=len(content),
        metadata=metadata or {},
        created_by=None,
    )


def register(
    facts: Facts,
    kb: KnowledgeBase,
    path: str,
    content: str = "content",
    store: Callable[[Slot], str] = lambda slot: f"{slot.document_id}/v{slot.version}",
    *,
    metadata: Mapping[str, object] | None = None,
) -> Document:
    """Register a document without storing an original."""
    document_id = uuid.uuid4().hex
    slot = Slot(document_id=document_id, partition_key=partition_key(kb.name, path, document_id), version=1)
    return facts.documents.register(kb, new_version(path, content, metadata), slot, store)


def one_batch(candidates: list[Candidate]) -> list[BatchPlan]:
    """All candidates in one batch."""
    return [BatchPlan(candidates=tuple(candidates))]


def claim(facts: Facts, *, limit: int = 100) -> list[RequestedBatch]:
    """What the sensor does: everything that waits in one batch."""
    return facts.waiting.claim(limit=limit, plan=one_batch, new_batch_id=lambda: uuid.uuid4().hex)


def start(facts: Facts, *, run_id: str = "run") -> str:
    """Claim all that waits and begin the batch; returns its id."""
    (batch,) = claim(facts)
    assert facts.claims.begin_queued(batch.batch_id, run_id)
    return batch.batch_id


def owners(facts: Facts) -> dict[str, str | None]:
    """The batch of every document, by document id."""
    with facts.engine.connect() as connection:
        rows = connection.execute(sa.select(documents.c.id, documents.c.batch_id))
        return {row.id: row.batch_id for row in rows}


def items(facts: Facts, *found: Document) -> list[WorkItem]:
    """The documents as a batch sees them now."""
    return facts.claims.items(partition_keys=[document.partition_key for document in found])


def attempts(facts: Facts, document: Document) -> list[NodeLogEntry]:
    """What was written down in the node log: without the stages that nobody has worked on."""
    return [entry for entry in node_log(facts.engine, document.id) if entry.run_id is not None]


def set_status(facts: Facts, document: Document, status: Status) -> None:
    """Set a status as another process would, whatever the rules."""
    with facts.engine.begin() as connection:
        connection.execute(sa.update(documents).where(documents.c.id == document.id).values(status=status))


def set_attempt(facts: Facts, document: Document, attempt: int) -> None:
    """Make the document's next run the one after that attempt."""
    with facts.engine.begin() as connection:
        connection.execute(sa.update(documents).where(documents.c.id == document.id).values(attempt=attempt))


def silence(facts: Facts, batch_id: str, seconds: float) -> None:
    """Move the batch's creation and last heartbeat into the past."""
    past = sa.func.now() - sa.func.make_interval(0, 0, 0, 0, 0, 0, seconds)
    with facts.engine.begin() as connection:
        connection.execute(
            sa.update(batches).where(batches.c.id == batch_id).values(heartbeat_at=past, created_at=past)
        )


def outcome(
    item: WorkItem,
    stage: Stage,
    kind: OutcomeKind = OutcomeKind.DONE,
    *,
    error: RagPipelineError | None = None,
    summary: dict[str, object] | None = None,
) -> StageOutcome:
    """The outcome of a stage for one document."""
    return StageOutcome(
        item=item,
        stage=stage,
        kind=kind,
        error=error,
        summary=summary or {},
        artefact_key=f"{item.document_id}/{stage}.a{item.attempt}",
        milliseconds=12,
    )


def run_stages(
    facts: Facts, batch_id: str, found: Sequence[WorkItem], *, run_id: str = "run", publish: bool = True
) -> None:
    """Take documents through every stage with fingerprints that name stage and hash."""
    ledger = facts.ledger(batch_id=batch_id, run_id=run_id)
    for stage in Stage:
        assert ledger.begin(stage, found) == {item.document_id for item in found}
        going_on = ledger.record(
            stage,
            [outcome(item, stage, summary={"pages": 3, "chunks": 2, "tokens": 7, "warnings": ["w"]}) for item in found],
            {item.document_id: fingerprint_of(item, stage) for item in found},
        )
        assert going_on == {item.document_id for item in found}
    if publish:
        assert ledger.publish(found, collection="rag_1") == {item.document_id for item in found}


def fingerprint_of(item: WorkItem, stage: Stage) -> str:
    """A fingerprint that changes with the bytes only."""
    return f"{item.sha256}-{stage}"


def make_ready(facts: Facts, document: Document) -> Document:
    """Claim and index a waiting document."""
    run_stages(facts, start(facts), items(facts, document))
    return facts.documents.get(document.id)


def fail(facts: Facts, errors: Mapping[str, RagPipelineError]) -> None:
    """Claim all that waits, and let these documents (by id) fail at their first stage."""
    ledger = facts.ledger(batch_id=start(facts), run_id="run")
    found = items(facts, *facts.documents.many(list(errors)))
    ledger.begin(Stage.SOURCE_DOCUMENT, found)
    failures = [
        outcome(each, Stage.SOURCE_DOCUMENT, OutcomeKind.FAILED, error=errors[each.document_id]) for each in found
    ]
    ledger.record(Stage.SOURCE_DOCUMENT, failures, {each.document_id: "" for each in found})


def chunk(index: int, text: str = "text") -> Chunk:
    """A chunk on pages 1 and 2, two to a section."""
    return Chunk(
        index=index,
        text=text,
        start=index * 10,
        end=index * 10 + len(text),
        tokens=3,
        heading_path=("Chapter 1", text),
        section=index // 2,
        page=1,
        page_end=2,
        regions=(
            PageRegion(page=1, bbox=BoundingBox(left=1.5, top=2, right=3, bottom=4)),
            PageRegion(page=2),
        ),
        block_types=("paragraph",),
        metadata={"sheet": text},
    )


def paid(item: WorkItem, artefact_key: str, *input_hashes: str) -> StoredVectors:
    """Vectors that an artefact holds."""
    return StoredVectors(item=item, artefact_key=artefact_key, input_hashes=input_hashes)
