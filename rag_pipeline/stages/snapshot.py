"""Stage `chunk_snapshot`: a readable JSON of the chunks on disk, before anything is paid for."""

from collections.abc import Iterator, Sequence

from rag_pipeline.core.documents import Stage
from rag_pipeline.core.ports import SnapshotRef
from rag_pipeline.core.snapshot import snapshot_content
from rag_pipeline.core.work import StageOutcome, WorkItem
from rag_pipeline.parsing.serialization import document_from_bytes
from rag_pipeline.stages.outcomes import Produced, for_each, owned_groups
from rag_pipeline.stages.workspace import Workspace


def write_snapshots(workspace: Workspace, items: Sequence[WorkItem]) -> Iterator[StageOutcome]:
    """Write one file per document version."""
    services = workspace.services

    def one(item: WorkItem) -> Produced:
        document = document_from_bytes(services.artefacts.get(workspace.input_key(item, Stage.PARSED_BLOCKS)))
        chunks = workspace.chunks(item)
        content = snapshot_content(item, document, chunks)
        ref = SnapshotRef(kb_id=item.kb_id, document_id=item.document_id, version=item.version)
        location = services.snapshots.write(ref, content)
        return Produced(summary={"path": location, "chunks": len(chunks)}, artefact_key=location)

    for group in owned_groups(workspace, Stage.CHUNK_SNAPSHOT, items):
        yield from group.lost
        yield from for_each(workspace, Stage.CHUNK_SNAPSHOT, group.items, one)
