"""The end of a cancellation: what an unfinished version has left in the stores goes, then the document is CANCELED.

Vectors, chunk rows and the snapshot go. The artefacts of earlier stages stay until the document is deleted or its next
version is live: a retry goes on from them and pays for nothing twice.
"""

import logging
from collections.abc import Collection

from rag_pipeline.adapters.postgres.cancellation import CanceledVersion
from rag_pipeline.core.ports import SnapshotRef
from rag_pipeline.stages.services import Services
from rag_pipeline.stages.snapshot import restore_snapshot

logger = logging.getLogger(__name__)


def settle_canceled(services: Services, *, document_ids: Collection[str] | None = None, limit: int = 1_000) -> int:
    """Bring CANCELING documents with which no batch works any more to CANCELED.

    Args:
        services: adapters and settings.
        document_ids: only these; None: all whose time has come.
        limit: documents at most.

    Returns:
        How many are CANCELED now. When a store cannot let go of one, it stays CANCELING until a later call.
    """
    if document_ids is not None and not document_ids:
        return 0
    for count in range(limit):
        settled = services.facts.cancellations.settle_next(
            lambda canceled: _remove_partial_data(services, canceled), document_ids=document_ids
        )
        if settled is None:
            return count
        if settled.error is not None:
            logger.warning("%s stays CANCELING for now: %s", settled.partition_key, settled.error)
            return count
    return limit


def _remove_partial_data(services: Services, canceled: CanceledVersion) -> None:
    chunk_ids = services.facts.chunk_rows.ids(canceled.document_id, canceled.version)
    for generation in services.stored_generations() if chunk_ids else ():
        services.vectors.delete(generation, chunk_ids)
    if canceled.live_version is None:
        services.snapshots.delete(canceled.kb_id, canceled.document_id)
        return
    services.snapshots.delete(canceled.kb_id, canceled.document_id, version=canceled.version)
    live = SnapshotRef(kb_id=canceled.kb_id, document_id=canceled.document_id, version=canceled.live_version)
    if services.snapshots.read(live) is None:
        # The canceled version had come as far as publishing its own in this place.
        restore_snapshot(services, live)
