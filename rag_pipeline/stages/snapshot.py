"""Stage `chunk_snapshot`: a readable JSON of the chunks on disk, before anything is paid for."""

from collections.abc import Iterator, Sequence

from rag_pipeline.adapters.artefacts import chunks_from_parquet
from rag_pipeline.core.documents import Stage
from rag_pipeline.core.ports import SnapshotRef
from rag_pipeline.core.snapshot import snapshot_content
from rag_pipeline.core.work import StageOutcome, WorkItem
from rag_pipeline.errors import MissingArtefactError
from rag_pipeline.parsing.serialization import document_from_bytes
from rag_pipeline.stages.outcomes import Produced, for_each, owned_groups
from rag_pipeline.stages.services import Services
from rag_pipeline.stages.workspace import Workspace


def write_snapshots(workspace: Workspace, items: Sequence[WorkItem]) -> Iterator[StageOutcome]:
    """Write one file per document version."""

    def one(item: WorkItem) -> Produced:
        location = write_snapshot(workspace, item)
        return Produced(summary={"path": location, "chunks": len(workspace.chunks(item))}, artefact_key=location)

    for group in owned_groups(workspace, Stage.CHUNK_SNAPSHOT, items):
        yield from group.lost
        yield from for_each(workspace, Stage.CHUNK_SNAPSHOT, group.items, one)


def write_snapshot(workspace: Workspace, item: WorkItem) -> str:
    """Write the snapshot of the version that is being built, and return its location.

    Raises:
        SnapshotWriteError: the disk.
        MissingArtefactError: the parsed blocks or the chunks are gone.
    """
    services = workspace.services
    document = document_from_bytes(services.artefacts.get(workspace.input_key(item, Stage.PARSED_BLOCKS)))
    return services.snapshots.write(snapshot_of(item), snapshot_content(item, document, workspace.chunks(item)))


def snapshot_of(item: WorkItem) -> SnapshotRef:
    """Which snapshot is that of the item's version."""
    return SnapshotRef(kb_id=item.kb_id, document_id=item.document_id, version=item.version)


def restore_snapshot(services: Services, live: SnapshotRef) -> bool:
    """Write the snapshot of a live version again from its artefacts, as `chunks.json`.

    Returns:
        False if the version is not live any more, or its artefacts are gone too.

    Raises:
        TemporaryError: the object store or the disk.
    """
    item = services.facts.reconciliation.live_item(live.document_id)
    if item is None or item.version != live.version:
        return False
    artefacts = services.facts.claims.artefacts([item.document_id]).get((item.document_id, item.version), {})
    parsed, chunks = artefacts.get(Stage.PARSED_BLOCKS), artefacts.get(Stage.CHUNKS)
    if parsed is None or chunks is None or parsed.artefact_key is None or chunks.artefact_key is None:
        return False
    try:
        document = document_from_bytes(services.artefacts.get(parsed.artefact_key))
        found = chunks_from_parquet(services.artefacts.get(chunks.artefact_key))
    except MissingArtefactError:
        return False
    services.snapshots.write(live, snapshot_content(item, document, found))
    services.snapshots.publish(live)
    return True
