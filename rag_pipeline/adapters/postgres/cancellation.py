"""Canceling documents: conditional UPDATEs that stop the work on them, and the end of it when nothing partial is left.

A document that nobody works on is let go at once. One in a running batch becomes CANCELING and stays with its batch,
which drops it when it next looks; only then is its partial data removed.
"""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from rag_pipeline.adapters.postgres.documents import NO_ERROR
from rag_pipeline.adapters.postgres.engine import transaction
from rag_pipeline.adapters.postgres.schema import batches, chunks, documents, stage_artefacts, stage_attempts
from rag_pipeline.core.documents import WORKING, Stage, Status, allowed_from
from rag_pipeline.errors import TemporaryError

DOCUMENTS_PER_TRANSACTION = 500
LOCKED_ROWS_SECONDS = 0.02
"""Pause before rows that a running batch has locked for its next record are looked at again."""
POSTPONED_SECONDS = 10.0
REBUILT_ON_RETRY = (Stage.CHUNK_SNAPSHOT, Stage.INDEX_WRITES)
"""What a canceled version loses. The artefacts of the other stages stay, so that a retry pays for nothing twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AbandonedBatch:
    """A batch that is not finished and holds nothing but canceled or deleted documents."""

    batch_id: str
    run_id: str | None
    """None while no run has begun it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CanceledVersion:
    """The unfinished version of a canceled document that nobody works on any more."""

    document_id: str
    kb_id: str
    version: int
    live_version: int | None
    partition_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """What became of one CANCELING document."""

    partition_key: str
    error: TemporaryError | None = None
    """Why it is still CANCELING."""


class Cancellations:
    """Stop the work on documents."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def cancel(self, document_id: str, *, reason: str | None) -> list[AbandonedBatch]:
        """Stop the work on one document; without effect where the transition table does not allow it."""
        with transaction(self._engine) as connection:
            connection.execute(sa.select(documents.c.id).where(documents.c.id == document_id).with_for_update())
            touched = stop_work(connection, [document_id], reason=reason)
        return close_abandoned(self._engine, touched)

    def cancel_knowledge_base(self, kb_id: str, *, reason: str | None) -> tuple[int, list[AbandonedBatch]]:
        """Stop the work on every document submitted so far that waits, is worked on, or would be retried by itself.

        Returns:
            The number of documents stopped, and the batches that have nothing left to do.
        """
        to_stop = (
            documents.c.kb_id == kb_id,
            sa.or_(
                documents.c.status.in_(WORKING | {Status.PENDING}),
                sa.and_(documents.c.status == Status.FAILED, documents.c.error_class == "temporary"),
                sa.and_(documents.c.status.in_((Status.FAILED, Status.CANCELED)), documents.c.batch_id.is_not(None)),
            ),
        )
        with transaction(self._engine) as connection:
            began = connection.execute(sa.select(sa.func.now())).scalar_one()
        touched: set[str] = set()
        count = 0
        for connection, ids in locked_groups(self._engine, *to_stop, documents.c.created_at <= began):
            touched |= stop_work(connection, ids, reason=reason)
            count += len(ids)
        return count, close_abandoned(self._engine, touched)

    def settle_next(
        self, clean: Callable[[CanceledVersion], None], *, document_ids: Collection[str] | None = None
    ) -> Settled | None:
        """Remove what one CANCELING document has left behind and make it CANCELED.

        Its row is locked meanwhile: neither a second cleaner nor a retry can come between.

        Args:
            clean: removes the version's vectors and snapshot; the rows are removed here.
            document_ids: only these; None: any whose time has come.

        Returns:
            What became of it; None if there is no such document. After an error it stays CANCELING for a while.
        """
        statement = (
            sa.select(
                documents.c.id.label("document_id"),
                documents.c.kb_id,
                documents.c.version,
                documents.c.live_version,
                documents.c.partition_key,
            )
            .where(documents.c.status == Status.CANCELING, documents.c.batch_id.is_(None))
            .order_by(documents.c.available_at)
            .limit(1)
            .with_for_update(skip_locked=True, key_share=True)
        )
        if document_ids is None:
            statement = statement.where(documents.c.available_at <= sa.func.now())
        else:
            statement = statement.where(documents.c.id.in_(document_ids))
        with transaction(self._engine) as connection:
            row = connection.execute(statement).mappings().first()
            if row is None:
                return None
            canceled = CanceledVersion(**row)
            try:
                clean(canceled)
            except TemporaryError as error:
                _postpone(connection, canceled)
                return Settled(partition_key=canceled.partition_key, error=error)
            _finish(connection, canceled)
        return Settled(partition_key=canceled.partition_key)


def stop_work(connection: sa.Connection, document_ids: Sequence[str], *, reason: str | None) -> set[str]:
    """Cancel documents whose rows the caller has locked; returns the batches that held some of them.

    A document in a stage of a running batch keeps its batch until that lets go. The others are nobody's at once, and
    CANCELED at once when their version has not come as far as a snapshot or index rows.
    """
    chosen = documents.c.id.in_(document_ids)
    touched = connection.execute(
        sa.select(documents.c.batch_id).where(chosen, documents.c.batch_id.is_not(None))
    ).scalars()
    found = set(touched)
    connection.execute(
        sa.update(documents)
        .where(chosen, documents.c.status.in_(allowed_from(Status.CANCELING)))
        .values(
            status=Status.CANCELING,
            batch_id=sa.case((documents.c.status.in_(WORKING), documents.c.batch_id), else_=None),
            cancel_reason=reason,
            available_at=sa.func.now(),
            updated_at=sa.func.now(),
            **NO_ERROR,
        )
    )
    connection.execute(
        sa.update(documents)
        .where(chosen, documents.c.status == Status.CANCELING, documents.c.batch_id.is_(None), ~_HAS_PARTIAL_DATA)
        .values(status=Status.CANCELED)
    )
    # Claimed by a run that a person has started, which has not begun with it.
    connection.execute(sa.update(documents).where(chosen, documents.c.status == Status.CANCELED).values(batch_id=None))
    return found


def locked_groups(engine: sa.Engine, *conditions: sa.ColumnElement[bool]) -> Iterator[tuple[sa.Connection, list[str]]]:
    """Groups of the matching documents, each in a transaction that has locked their rows, until none matches any more.

    The caller's change must take them out of the conditions. Locked rows are never waited for: the ledgers of running
    batches lock many rows at once, in an order of their own, and waiting for them with rows in hand could deadlock.
    """
    ids = sa.select(documents.c.id).where(*conditions).limit(DOCUMENTS_PER_TRANSACTION)
    while True:
        with transaction(engine) as connection:
            found = list(connection.execute(ids.with_for_update(skip_locked=True)).scalars())
            if found:
                yield connection, found
                continue
            if connection.execute(ids.limit(1)).first() is None:
                return
        time.sleep(LOCKED_ROWS_SECONDS)


def close_abandoned(engine: sa.Engine, batch_ids: Collection[str]) -> list[AbandonedBatch]:
    """Those of the batches that hold nothing but canceled and deleted documents; queued ones are closed.

    In a transaction of its own: runs lock their batch first and their documents then.
    """
    if not batch_ids:
        return []
    has_work = sa.exists().where(
        documents.c.batch_id == batches.c.id,
        documents.c.status.not_in((Status.CANCELING, Status.DELETING)),
    )
    statement = sa.select(batches.c.id, batches.c.run_id, batches.c.state).where(
        batches.c.id.in_(batch_ids), batches.c.state != "FINISHED", ~has_work
    )
    with transaction(engine) as connection:
        rows = connection.execute(statement).all()
        connection.execute(
            sa.update(batches)
            .where(batches.c.id.in_([row.id for row in rows]), batches.c.state == "QUEUED")
            .values(state="FINISHED", finished_at=sa.func.now())
        )
    return [AbandonedBatch(batch_id=row.id, run_id=row.run_id) for row in rows]


def _postpone(connection: sa.Connection, canceled: CanceledVersion) -> None:
    later = sa.func.now() + sa.func.make_interval(0, 0, 0, 0, 0, 0, POSTPONED_SECONDS)
    connection.execute(sa.update(documents).where(documents.c.id == canceled.document_id).values(available_at=later))


def _finish(connection: sa.Connection, canceled: CanceledVersion) -> None:
    connection.execute(
        sa.delete(chunks).where(chunks.c.document_id == canceled.document_id, chunks.c.version == canceled.version)
    )
    connection.execute(
        sa.delete(stage_artefacts).where(
            stage_artefacts.c.document_id == canceled.document_id,
            stage_artefacts.c.version == canceled.version,
            stage_artefacts.c.stage.in_(REBUILT_ON_RETRY),
        )
    )
    connection.execute(
        sa.update(documents)
        .where(documents.c.id == canceled.document_id, documents.c.status.in_(allowed_from(Status.CANCELED)))
        .values(status=Status.CANCELED, updated_at=sa.func.now())
    )


_HAS_PARTIAL_DATA = sa.exists().where(
    stage_attempts.c.document_id == documents.c.id,
    stage_attempts.c.version == documents.c.version,
    stage_attempts.c.stage.in_(REBUILT_ON_RETRY),
)
