"""Superseded versions: which may be removed, what other versions still refer to, and the end of their rows."""

from dataclasses import dataclass

import sqlalchemy as sa

from rag_pipeline.adapters.postgres.engine import transaction
from rag_pipeline.adapters.postgres.schema import document_versions, documents, images, stage_artefacts
from rag_pipeline.core.documents import Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class SupersededVersion:
    """A version that no query uses any more."""

    kb_id: str
    document_id: str
    version: int


class Versions:
    """Rows of versions, for the cleanup."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def superseded(self, *, grace_seconds: float, limit: int) -> list[SupersededVersion]:
        """Versions replaced longer ago than the grace period, oldest first."""
        statement = (
            sa.select(documents.c.kb_id, document_versions.c.document_id, document_versions.c.version)
            .join(documents, documents.c.id == document_versions.c.document_id)
            .where(
                document_versions.c.superseded_at
                < sa.func.now() - sa.func.make_interval(0, 0, 0, 0, 0, 0, grace_seconds),
                document_versions.c.version != documents.c.version,
                document_versions.c.version.is_distinct_from(documents.c.live_version),
            )
            .order_by(document_versions.c.superseded_at)
            .limit(limit)
        )
        with transaction(self._engine) as connection:
            return [SupersededVersion(**row) for row in connection.execute(statement).mappings()]

    def object_keys(self, document_id: str, version: int) -> tuple[frozenset[str], frozenset[str]]:
        """Keys that the version's rows name, and keys that other versions of the document name."""
        statements = (
            sa.select(stage_artefacts.c.version, stage_artefacts.c.artefact_key.label("key")).where(
                stage_artefacts.c.document_id == document_id,
                stage_artefacts.c.artefact_key.is_not(None),
                stage_artefacts.c.stage != Stage.CHUNK_SNAPSHOT,  # its key is a path outside the object store
            ),
            sa.select(document_versions.c.version, document_versions.c.object_key.label("key")).where(
                document_versions.c.document_id == document_id
            ),
            sa.select(images.c.version, images.c.object_key.label("key")).where(images.c.document_id == document_id),
        )
        own: set[str] = set()
        others: set[str] = set()
        with transaction(self._engine) as connection:
            for statement in statements:
                for row in connection.execute(statement):
                    (own if row.version == version else others).add(row.key)
        return frozenset(own), frozenset(others)

    def forget(self, document_id: str, version: int) -> None:
        """Remove the version's rows; its stage attempts stay as the node log."""
        with transaction(self._engine) as connection:
            for table in (stage_artefacts, document_versions):
                connection.execute(
                    sa.delete(table).where(table.c.document_id == document_id, table.c.version == version)
                )
