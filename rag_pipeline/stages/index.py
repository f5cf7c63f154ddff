"""Stage `index_writes`: chunk rows to PostgreSQL, vectors to Milvus, counted on both sides, READY as the last step."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rag_pipeline.adapters.artefacts import vectors_from_parquet
from rag_pipeline.core.chunk import Chunk, chunk_id
from rag_pipeline.core.documents import Stage
from rag_pipeline.core.ports import CollectionGeneration, VectorRow, Vectors
from rag_pipeline.core.work import StageOutcome, WorkItem
from rag_pipeline.errors import InternalError, MissingArtefactError, RagPipelineError
from rag_pipeline.stages.outcomes import Produced, failed, lost, produced, timed_together
from rag_pipeline.stages.snapshot import snapshot_of, write_snapshot
from rag_pipeline.stages.workspace import Workspace, in_groups

ROWS_PER_GROUP = 2_000
"""Written, flushed, verified and published together: Milvus Lite scans what is not flushed, and results land early."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRows:
    """The chunks of a version and their vectors, in order."""

    item: WorkItem
    chunks: list[Chunk]
    vectors: Vectors

    @property
    def ids(self) -> list[str]:
        """Ids of the rows, the same in every generation."""
        return [chunk_id(self.item.document_id, self.item.version, chunk.index) for chunk in self.chunks]

    def rows(self) -> Iterator[VectorRow]:
        """What the vector index is to hold."""
        for chunk, vector, row_id in zip(self.chunks, self.vectors, self.ids, strict=True):
            yield VectorRow(
                chunk_id=row_id,
                kb_id=self.item.kb_id,
                document_id=self.item.document_id,
                version=self.item.version,
                chunk_index=chunk.index,
                content=chunk.embedded_text,
                dense=np.asarray(vector, dtype=np.float32),
            )


def index(workspace: Workspace, items: Sequence[WorkItem]) -> Iterator[StageOutcome]:
    """Write, verify and publish the documents group by group."""
    services = workspace.services
    try:
        generation = services.generation()
        services.vectors.ensure(generation)
    except RagPipelineError as error:
        yield from (failed(item, Stage.INDEX_WRITES, error) for item in items)
        return
    workspace.collection = generation.collection
    prepared: dict[str, VersionRows] = {}
    for item in items:
        try:
            prepared[item.document_id] = _prepare(workspace, item)
        except RagPipelineError as error:
            yield failed(item, Stage.INDEX_WRITES, error)
    ready = [item for item in items if item.document_id in prepared]
    sizes = {document_id: len(each.chunks) for document_id, each in prepared.items()}
    for group in in_groups(ready, sizes, ROWS_PER_GROUP):
        versions = [prepared[item.document_id] for item in group]
        yield from timed_together(_index_group(workspace, generation, versions), sizes)


def _prepare(workspace: Workspace, item: WorkItem) -> VersionRows:
    chunks = workspace.chunks(item)
    inputs = vectors_from_parquet(workspace.services.artefacts.get(workspace.input_key(item, Stage.EMBEDDINGS)))
    if len(inputs.vectors) != len(chunks):
        raise MissingArtefactError(
            f"{item.file_name} has {len(chunks)} chunks and {len(inputs.vectors)} vectors: materialize from embeddings"
        )
    return VersionRows(item=item, chunks=chunks, vectors=inputs.vectors)


def _index_group(
    workspace: Workspace, generation: CollectionGeneration, group: Sequence[VersionRows]
) -> Iterator[StageOutcome]:
    owned = workspace.ledger.still_owned([each.item for each in group])
    yield from (lost(each.item, Stage.INDEX_WRITES) for each in group if each.item.document_id not in owned)
    group = [each for each in group if each.item.document_id in owned]
    try:
        workspace.services.generation()  # a collection that was switched away from is dropped after a while
        _write(workspace, generation, group)
        missing = _missing_rows(workspace, generation, group)
    except RagPipelineError as error:
        yield from (failed(each.item, Stage.INDEX_WRITES, error) for each in group)
        return
    for each in group:
        count = missing[each.item.document_id]
        if count:
            reason = f"{count} of {len(each.chunks)} chunks are not in both stores after writing"
            yield failed(each.item, Stage.INDEX_WRITES, InternalError(f"{each.item.file_name}: {reason}"))
            continue
        try:
            _publish_snapshot(workspace, each.item)
        except RagPipelineError as error:
            yield failed(each.item, Stage.INDEX_WRITES, error)
            continue
        yield produced(
            each.item,
            Stage.INDEX_WRITES,
            Produced(
                summary={
                    "rows": len(each.chunks),
                    "collection": generation.collection,
                    "live_version": each.item.version,
                }
            ),
        )


def _write(workspace: Workspace, generation: CollectionGeneration, group: Sequence[VersionRows]) -> None:
    services = workspace.services
    repeated = [each for each in group if each.item.attempt > 1]
    for each in repeated:
        # An earlier attempt under another configuration may have left a longer tail.
        rows = services.facts.chunk_rows.ids(each.item.document_id, each.item.version)
        services.vectors.delete(generation, rows[len(each.chunks) :])
    services.facts.chunk_rows.upsert([(each.item, each.chunks) for each in group])
    services.vectors.upsert(generation, [row for each in group for row in each.rows()])
    services.vectors.flush(generation)


def _missing_rows(
    workspace: Workspace, generation: CollectionGeneration, group: Sequence[VersionRows]
) -> dict[str, int]:
    """Chunks per document that PostgreSQL or Milvus does not hold; all zero before READY."""
    services = workspace.services
    ids = {each.item.document_id: each.ids for each in group}
    stored = services.vectors.existing(generation, [one for each in ids.values() for one in each])
    counts = services.facts.chunk_rows.counts([each.item for each in group])
    return {
        document_id: max(sum(one not in stored for one in expected), abs(len(expected) - counts.get(document_id, 0)))
        for document_id, expected in ids.items()
    }


def _publish_snapshot(workspace: Workspace, item: WorkItem) -> None:
    ref = snapshot_of(item)
    if not workspace.services.snapshots.has(ref):
        # It was lost since its stage, with the folder or the machine: that is no reason to fail for ever.
        write_snapshot(workspace, item)
    workspace.services.snapshots.publish(ref)
