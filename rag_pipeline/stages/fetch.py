"""Stage `source_document`: the original is in the object store and holds the bytes that were submitted."""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from rag_pipeline.core.documents import Stage
from rag_pipeline.core.work import StageOutcome, WorkItem
from rag_pipeline.errors import CorruptDocumentError
from rag_pipeline.stages.outcomes import Produced, for_each
from rag_pipeline.stages.workspace import Workspace


def fetch(workspace: Workspace, items: Sequence[WorkItem]) -> Iterator[StageOutcome]:
    """Download the originals and check their hash; they stay in the scratch folder for the parser."""

    def one(item: WorkItem) -> Produced:
        path = local_original(workspace, item)
        digest = _sha256(path)
        if digest != item.sha256:
            raise CorruptDocumentError(
                f"the stored original of {item.file_name} has the hash {digest[:12]}..., not the {item.sha256[:12]}... "
                "that was submitted: submit the file again"
            )
        return Produced(
            summary={
                "file_name": item.file_name,
                "source_path": item.source_path,
                "knowledge_base": item.kb_name,
                "bytes": item.size_bytes,
                "sha256": item.sha256,
                "object": item.object_key,
            },
            artefact_key=item.object_key,
        )

    yield from for_each(workspace, Stage.SOURCE_DOCUMENT, items, one)


def local_original(workspace: Workspace, item: WorkItem) -> Path:
    """The original as a local file, downloaded once per batch."""
    path = workspace.originals.get(item.document_id)
    if path is None:
        path = workspace.scratch / f"{item.document_id}.original"
        workspace.services.objects.download(item.object_key, path)
        workspace.originals[item.document_id] = path
    return path


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
