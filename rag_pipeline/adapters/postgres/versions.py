"""Versions beside the newest: going back to one, which may be removed, and the end of their rows."""

from dataclasses import dataclass

import sqlalchemy as sa

from rag_pipeline.adapters.postgres.engine import transaction
from rag_pipeline.adapters.postgres.live_generation import hold_live
from rag_pipeline.adapters.postgres.schema import (
    document_versions,
    documents,
    generation_documents,
    images,
    stage_artefacts,
)
from rag_pipeline.core.documents import SETTLED, Stage
from rag_pipeline.errors import DocumentBusyError, IllegalTransitionError, ResourceNotFoundError


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

    def take_superseded(self, *, kept_seconds: float, limit: int) -> list[SupersededVersion]:
        """Versions replaced longer ago than they are kept, oldest first; `roll_back` cannot go to them any more."""
        due = (
            sa.select(documents.c.kb_id, document_versions.c.document_id, document_versions.c.version)
            .join(documents, documents.c.id == document_versions.c.document_id)
            .where(
                document_versions.c.superseded_at
                < sa.func.now() - sa.func.make_interval(0, 0, 0, 0, 0, 0, kept_seconds),
                document_versions.c.version != documents.c.version,
                document_versions.c.version.is_distinct_from(documents.c.live_version),
            )
            .order_by(document_versions.c.superseded_at)
            .limit(limit)
            # The document's row is what a rollback locks: of the two, one sees what the other did.
            .with_for_update(of=documents, skip_locked=True)
        )
        with transaction(self._engine) as connection:
            found = [SupersededVersion(**row) for row in connection.execute(due).mappings()]
            for each in found:
                connection.execute(
                    sa.update(document_versions)
                    .where(
                        document_versions.c.document_id == each.document_id,
                        document_versions.c.version == each.version,
                    )
                    .values(ready_at=None)
                )
        return found

    def roll_back(self, document_id: str) -> int:
        """Let the newest older version that is kept answer again; returns its number.

        Versions that are not in the collection that answers queries cannot answer.

        Raises:
            DocumentBusyError: a version is being built.
            IllegalTransitionError: no version of it answers, or no older one is kept.
        """
        with transaction(self._engine) as connection:
            live = hold_live(connection)
            document = _locked(connection, document_id)
            older = connection.execute(
                sa.select(sa.func.max(document_versions.c.version)).where(
                    document_versions.c.document_id == document_id,
                    document_versions.c.version < document.live_version,
                    document_versions.c.ready_at.is_not(None),
                    document_versions.c.collection == live,
                )
            ).scalar()
            if older is None:
                raise IllegalTransitionError(
                    f"no version of {document.source_path} older than {document.live_version} is kept: superseded "
                    "versions stay for RAG_VERSION_RETENTION_SECONDS; submit the former file again"
                )
            make_live(connection, document_id, document.live_version, int(older))
        return int(older)

    def roll_forward(self, document_id: str) -> int | None:
        """Let the newest version of a document that was rolled back answer again, and return its number.

        Nothing changes, and None is returned, when it was not rolled back or when its newest version is not in the
        collection that answers queries.

        Raises:
            DocumentBusyError: a version is being built.
            IllegalTransitionError: no version of it answers.
        """
        with transaction(self._engine) as connection:
            live = hold_live(connection)
            document = _locked(connection, document_id)
            if document.version != document.live_version and is_in(connection, live, document_id, document.version):
                make_live(connection, document_id, document.live_version, document.version)
                return int(document.version)
        return None

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
            for table in (stage_artefacts, generation_documents, document_versions):
                connection.execute(
                    sa.delete(table).where(table.c.document_id == document_id, table.c.version == version)
                )


def _locked(connection: sa.Connection, document_id: str) -> sa.Row[tuple[str, str, int, int]]:
    """The settled document of which a version answers, locked."""
    columns = (documents.c.source_path, documents.c.status, documents.c.version, documents.c.live_version)
    row = connection.execute(sa.select(*columns).where(documents.c.id == document_id).with_for_update()).first()
    if row is None:
        raise ResourceNotFoundError(f"there is no document {document_id!r}")
    if row.status not in SETTLED:
        raise DocumentBusyError(f"{row.source_path} is {row.status}: wait for version {row.version}, or cancel it")
    if row.live_version is None:
        raise IllegalTransitionError(
            f"{row.source_path} is {row.status} and no version of it answers: submit the former file again"
        )
    return row


def is_in(connection: sa.Connection, collection: str | None, document_id: str, version: int) -> bool:
    """Whether the version's vectors are in the collection."""
    statement = sa.select(document_versions.c.collection).where(
        document_versions.c.document_id == document_id, document_versions.c.version == version
    )
    return collection is not None and connection.execute(statement).scalar() == collection


def make_live(connection: sa.Connection, document_id: str, before: int, after: int) -> None:
    """Let another finished version answer, in an open transaction that has locked the document."""
    connection.execute(
        sa.update(documents).where(documents.c.id == document_id).values(live_version=after, updated_at=sa.func.now())
    )
    for version, superseded_at in ((before, sa.func.now()), (after, sa.null())):
        connection.execute(
            sa.update(document_versions)
            .where(document_versions.c.document_id == document_id, document_versions.c.version == version)
            .values(superseded_at=superseded_at)
        )
