"""Removing what nothing uses any more: superseded versions (vectors, snapshot, objects, rows last) and collections.

Every step may be repeated, so a failure in between is made good by the next call.
"""

from rag_pipeline.adapters.postgres.versions import SupersededVersion
from rag_pipeline.stages.services import Services

GRACE_SECONDS = 60.0
"""A query that searched Milvus before the flip may still ask PostgreSQL for rows of the old version."""


def remove_superseded(services: Services, *, limit: int, kept_seconds: float | None = None) -> int:
    """Remove at most `limit` superseded versions; returns how many.

    Args:
        services: adapters and settings.
        limit: most versions of one call.
        kept_seconds: how long they stay after they were replaced; None: as the settings say.

    Raises:
        TemporaryError: a store is down; the versions not finished are tried again by the next call.
    """
    kept = max(services.settings.version_retention_seconds, GRACE_SECONDS) if kept_seconds is None else kept_seconds
    versions = services.facts.versions.take_superseded(kept_seconds=kept, limit=limit)
    for version in versions:
        _remove(services, version)
    return len(versions)


def drop_retired(services: Services, *, kept_seconds: float = GRACE_SECONDS) -> int:
    """Drop the collections that answered before, or were abandoned, when no query uses them any more.

    Args:
        services: adapters and settings.
        kept_seconds: how long they stay after they were retired.

    Returns:
        How many were dropped.

    Raises:
        TemporaryError: a store is down; the next call goes on.
    """
    retired = services.facts.next_generations.take_retired(kept_seconds=kept_seconds)
    for generation in retired:
        services.vectors.drop(generation)
        services.facts.next_generations.forget(generation.collection)
    return len(retired)


def _remove(services: Services, old: SupersededVersion) -> None:
    chunk_ids = services.facts.chunk_rows.ids(old.document_id, old.version)
    if chunk_ids:
        for generation in services.stored_generations():
            services.vectors.delete(generation, chunk_ids)
    services.snapshots.delete(old.kb_id, old.document_id, version=old.version)
    own, others = services.facts.versions.object_keys(old.document_id, old.version)
    prefix = f"kb/{old.kb_id}/{old.document_id}/v{old.version}/"
    stored = {info.key for info in services.objects.list(prefix)}
    services.objects.delete(sorted((own | stored) - others))
    services.facts.chunk_rows.delete_version(old.document_id, old.version)
    services.facts.versions.forget(old.document_id, old.version)
