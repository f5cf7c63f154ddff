"""Removing what the stores hold of superseded versions: vectors, snapshot, objects, and the rows last.

Every step may be repeated, so a failure in between is made good by the next call.
"""

from rag_pipeline.adapters.postgres.versions import SupersededVersion
from rag_pipeline.stages.services import Services

GRACE_SECONDS = 60.0
"""A query that searched Milvus before the flip may still ask PostgreSQL for rows of the old version."""


def remove_superseded(services: Services, *, limit: int, grace_seconds: float = GRACE_SECONDS) -> int:
    """Remove at most `limit` superseded versions; returns how many.

    Raises:
        TemporaryError: a store is down; the versions not finished are tried again by the next call.
    """
    versions = services.facts.versions.superseded(grace_seconds=grace_seconds, limit=limit)
    for version in versions:
        _remove(services, version)
    return len(versions)


def _remove(services: Services, old: SupersededVersion) -> None:
    live = services.facts.live_generation()
    chunk_ids = services.facts.chunk_rows.ids(old.document_id, old.version)
    if live is not None and chunk_ids:
        services.vectors.delete(live[0], chunk_ids)
    services.snapshots.delete(old.kb_id, old.document_id, version=old.version)
    own, others = services.facts.versions.object_keys(old.document_id, old.version)
    prefix = f"kb/{old.kb_id}/{old.document_id}/v{old.version}/"
    stored = {info.key for info in services.objects.list(prefix)}
    services.objects.delete(sorted((own | stored) - others))
    services.facts.chunk_rows.delete_version(old.document_id, old.version)
    services.facts.versions.forget(old.document_id, old.version)
