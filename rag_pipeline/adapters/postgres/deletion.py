"""Deleting as a state: DELETING hides a document at once, its row goes when every store shows zero, a record stays."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from rag_pipeline.adapters.postgres.cancellation import (
    AbandonedBatch,
    close_abandoned,
    locked_groups,
    stop_work,
)
from rag_pipeline.adapters.postgres.conversations import remove_answers_from
from rag_pipeline.adapters.postgres.engine import transaction
from rag_pipeline.adapters.postgres.paging import page_of
from rag_pipeline.adapters.postgres.schema import (
    batches,
    chunks,
    conversations,
    deletions,
    documents,
    golden_sets,
    knowledge_bases,
)
from rag_pipeline.core.documents import SHORTEST_ID, Deletion, KnowledgeBase, Status, allowed_from
from rag_pipeline.core.partitions import has_control_characters
from rag_pipeline.errors import ResourceNotFoundError

POSTPONED_SECONDS = 10.0
"""Until a document that a store could not let go is tried again."""

Counts = dict[str, int]
"""What was removed, by kind: chunk_rows, vectors, snapshots, objects, partitions, documents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedDocument:
    """A document to be removed, with which no batch works any more."""

    document_id: str
    kb_id: str
    partition_key: str


class Deletions:
    """Mark documents and knowledge bases as deleted, and forget them when the stores are empty."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def delete_document(self, document_id: str, *, reason: str | None) -> tuple[Deletion, list[AbandonedBatch]]:
        """Hide a document and have it removed; doing it again changes nothing.

        Raises:
            ResourceNotFoundError: there is no such document and never was.
        """
        with transaction(self._engine) as connection:
            row = connection.execute(
                sa.select(documents.c.kb_id, documents.c.source_path, knowledge_bases.c.name)
                .join(knowledge_bases, knowledge_bases.c.id == documents.c.kb_id)
                .where(documents.c.id == document_id)
                .with_for_update(of=documents)
            ).first()
            touched: set[str] = set()
            if row is not None:
                _insert_record(
                    connection,
                    target_id=document_id,
                    kind="document",
                    kb_id=row.kb_id,
                    kb_name=row.name,
                    name=row.source_path,
                    reason=reason,
                )
                touched = _mark(connection, [document_id], reason=reason)
        return self.get(document_id), close_abandoned(self._engine, touched)

    def delete_knowledge_base(self, kb_id: str, *, reason: str | None) -> tuple[Deletion, list[AbandonedBatch]]:
        """Hide a knowledge base with everything in it, and stop the work on its documents; it takes nothing any more.

        Raises:
            ResourceNotFoundError: there is no such knowledge base.
        """
        with transaction(self._engine) as connection:
            # Submits hold a share lock on the row: they are done when this goes on, or are refused after it.
            name = connection.execute(
                sa.update(knowledge_bases)
                .where(knowledge_bases.c.id == kb_id, knowledge_bases.c.status == "ACTIVE")
                .values(status="DELETING")
                .returning(knowledge_bases.c.name)
            ).scalar()
            if name is not None:
                _insert_record(
                    connection,
                    target_id=kb_id,
                    kind="knowledge_base",
                    kb_id=kb_id,
                    kb_name=name,
                    name=name,
                    reason=reason,
                )
        return self.get(kb_id), self.mark_documents(kb_id, reason=reason)

    def mark_documents(self, kb_id: str, *, reason: str | None) -> list[AbandonedBatch]:
        """Make every document of a knowledge base that is being deleted DELETING; returns the batches left idle."""
        touched: set[str] = set()
        for connection, ids in locked_groups(
            self._engine, documents.c.kb_id == kb_id, documents.c.status != Status.DELETING
        ):
            touched |= _mark(connection, ids, reason=reason)
        return close_abandoned(self._engine, touched)

    def knowledge_bases(self) -> list[KnowledgeBase]:
        """Knowledge bases that are being deleted."""
        statement = sa.select(knowledge_bases).where(knowledge_bases.c.status == "DELETING")
        with transaction(self._engine) as connection:
            return [KnowledgeBase(**row) for row in connection.execute(statement).mappings()]

    def due(self, *, limit: int) -> list[DeletedDocument]:
        """Documents to be removed now: nobody works on them, and their last try was long enough ago."""
        statement = (
            sa.select(documents.c.id.label("document_id"), documents.c.kb_id, documents.c.partition_key)
            .where(
                documents.c.status == Status.DELETING,
                documents.c.batch_id.is_(None),
                documents.c.available_at <= sa.func.now(),
            )
            .order_by(documents.c.available_at, documents.c.id)
            .limit(limit)
        )
        with transaction(self._engine) as connection:
            return [DeletedDocument(**row) for row in connection.execute(statement).mappings()]

    def chunk_ids(self, document_ids: Sequence[str]) -> dict[str, str]:
        """Chunk id -> document id, for the rows of all versions of the documents."""
        statement = sa.select(chunks.c.id, chunks.c.document_id).where(chunks.c.document_id.in_(document_ids))
        with transaction(self._engine) as connection:
            return {row.id: row.document_id for row in connection.execute(statement)}

    def partitions_in_use(self) -> frozenset[str]:
        """First and last partitions of batches that are not finished: without them Dagster refuses the run."""
        statement = sa.select(batches.c.first_partition, batches.c.last_partition).where(batches.c.state != "FINISHED")
        with transaction(self._engine) as connection:
            return frozenset(key for row in connection.execute(statement) for key in row if key)

    def postpone(self, removed: Mapping[str, Counts], error: str | None) -> None:
        """Try documents again after a while; `removed` (by document id) is added to their records."""
        later = sa.func.now() + sa.func.make_interval(0, 0, 0, 0, 0, 0, POSTPONED_SECONDS)
        with transaction(self._engine) as connection:
            connection.execute(sa.update(documents).where(documents.c.id.in_(removed)).values(available_at=later))
            _add_counts(connection, removed, error=error)

    def forget(self, removed: Mapping[str, Counts]) -> None:
        """Remove the rows of documents of which no store holds anything any more, and finish their records.

        Answers that were made from them go as well.
        """
        ids = list(removed)
        deleted = sa.select(documents.c.id).where(documents.c.id.in_(ids), documents.c.status == Status.DELETING)
        with transaction(self._engine) as connection:
            gone = connection.execute(deleted.with_for_update()).scalars().all()
            rows = connection.execute(
                sa.select(chunks.c.document_id, sa.func.count().label("rows"))
                .where(chunks.c.document_id.in_(ids))
                .group_by(chunks.c.document_id)
            )
            chunk_rows = {row.document_id: row.rows for row in rows}
            complete = {
                each: {**counts, "chunk_rows": chunk_rows.get(each, 0), "documents": 1}
                for each, counts in removed.items()
            }
            _add_counts(connection, complete, error=None)
            remove_answers_from(connection, gone)
            connection.execute(sa.delete(documents).where(documents.c.id.in_(gone)))
            connection.execute(
                sa.update(deletions).where(deletions.c.target_id.in_(ids)).values(finished_at=sa.func.now())
            )

    def is_empty(self, kb_id: str) -> bool:
        """Whether no document of the knowledge base is left."""
        statement = sa.select(documents.c.id).where(documents.c.kb_id == kb_id).limit(1)
        with transaction(self._engine) as connection:
            return connection.execute(statement).first() is None

    def finish_knowledge_base(self, kb_id: str, counts: Counts) -> None:
        """The end of a knowledge base that no store knows any more: DELETED, its name is free."""
        with transaction(self._engine) as connection:
            _add_counts_to(connection, kb_id, counts, error=None)
            connection.execute(sa.delete(conversations).where(conversations.c.kb_id == kb_id))
            connection.execute(sa.delete(golden_sets).where(golden_sets.c.kb_id == kb_id))
            connection.execute(
                sa.update(knowledge_bases)
                .where(knowledge_bases.c.id == kb_id, knowledge_bases.c.status == "DELETING")
                .values(status="DELETED")
            )
            connection.execute(
                sa.update(deletions).where(deletions.c.target_id == kb_id).values(finished_at=sa.func.now())
            )

    def note(self, target_id: str, error: str) -> None:
        """Write down why a deletion does not come to its end."""
        with transaction(self._engine) as connection:
            _add_counts_to(connection, target_id, {}, error=error)

    def get(self, target_id: str) -> Deletion:
        """The record of a document (its own, or its knowledge base's) or of a knowledge base.

        Raises:
            ResourceNotFoundError: nothing of that id was ever deleted.
        """
        of_knowledge_base = sa.select(documents.c.kb_id).where(documents.c.id == target_id).scalar_subquery()
        statement = (
            sa.select(deletions)
            .where(deletions.c.target_id.in_([target_id, of_knowledge_base]))
            .order_by(deletions.c.kind)
            .limit(1)
        )
        with transaction(self._engine) as connection:
            row = connection.execute(statement).mappings().first()
        if row is None:
            raise ResourceNotFoundError(f"there is no document or knowledge base {target_id!r}")
        return _deletion(row)

    def find(self, text: str, *, kind: str) -> Deletion | None:
        """The newest record of that kind with this id (or its first digits, at least `SHORTEST_ID`) or name."""
        if has_control_characters(text):
            return None
        is_id = deletions.c.target_id.startswith(text, autoescape=True) if len(text) >= SHORTEST_ID else sa.false()
        statement = (
            sa.select(deletions)
            .where(deletions.c.kind == kind, sa.or_(deletions.c.name == text, is_id))
            .order_by(deletions.c.requested_at.desc())
            .limit(1)
        )
        with transaction(self._engine) as connection:
            row = connection.execute(statement).mappings().first()
        return None if row is None else _deletion(row)

    def list(self, *, only_unfinished: bool, limit: int) -> list[Deletion]:
        """Records, newest first. Raises `ConfigurationError` for a limit below 1."""
        statement = page_of(sa.select(deletions).order_by(deletions.c.requested_at.desc()), page_size=limit)
        if only_unfinished:
            statement = statement.where(deletions.c.finished_at.is_(None))
        with transaction(self._engine) as connection:
            return [_deletion(row) for row in connection.execute(statement).mappings()]


def _mark(connection: sa.Connection, document_ids: Sequence[str], *, reason: str | None) -> set[str]:
    """Stop the work on locked documents and make them DELETING; those in a stage stay with their batch until it sees.

    Returns:
        The batches that held some of them.
    """
    touched = stop_work(connection, document_ids, reason=reason)
    connection.execute(
        sa.update(documents)
        .where(documents.c.id.in_(document_ids), documents.c.status.in_(allowed_from(Status.DELETING)))
        .values(status=Status.DELETING, available_at=sa.func.now(), updated_at=sa.func.now())
    )
    return touched


def _insert_record(connection: sa.Connection, **values: Any) -> None:
    connection.execute(postgresql.insert(deletions).values(**values).on_conflict_do_nothing())


def _add_counts(connection: sa.Connection, removed: Mapping[str, Counts], *, error: str | None) -> None:
    """Add what was removed of documents to their own records, or to that of their knowledge base."""
    own = set(
        connection.execute(
            sa.select(deletions.c.target_id).where(
                deletions.c.target_id.in_(removed), deletions.c.finished_at.is_(None)
            )
        ).scalars()
    )
    of_knowledge_base: dict[str, list[Counts]] = {}
    for row in connection.execute(sa.select(documents.c.id, documents.c.kb_id).where(documents.c.id.in_(removed))):
        if row.id in own:
            _add_counts_to(connection, row.id, removed[row.id], error=error)
        else:
            of_knowledge_base.setdefault(row.kb_id, []).append(removed[row.id])
    for kb_id, counts in of_knowledge_base.items():
        _add_counts_to(connection, kb_id, total(counts), error=error)


def _add_counts_to(connection: sa.Connection, target_id: str, counts: Counts, *, error: str | None) -> None:
    found = connection.execute(
        sa.select(deletions.c.counts).where(deletions.c.target_id == target_id).with_for_update()
    ).scalar()
    if found is not None:
        connection.execute(
            sa.update(deletions)
            .where(deletions.c.target_id == target_id)
            .values(counts=total([found, counts]), last_error=error)
        )


def total(counts: Iterable[Mapping[str, int]]) -> Counts:
    """The sum of counts, kind by kind."""
    result: Counts = {}
    for each in counts:
        for kind, number in each.items():
            result[kind] = result.get(kind, 0) + number
    return result


def _deletion(row: Mapping[Any, Any]) -> Deletion:
    return Deletion(
        target_id=row["target_id"],
        kind=row["kind"],
        kb_name=row["kb_name"],
        name=row["name"],
        reason=row["reason"],
        requested_at=row["requested_at"],
        finished_at=row["finished_at"],
        counts=row["counts"],
        last_error=row["last_error"],
    )
