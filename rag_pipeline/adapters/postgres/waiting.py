"""Documents that wait for a run: the sensor's batches of them, and failures whose time has come again."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from rag_pipeline.adapters.postgres.documents import TRIED_AGAIN
from rag_pipeline.adapters.postgres.engine import transaction
from rag_pipeline.adapters.postgres.schema import batches, document_versions, documents, of_newest_version
from rag_pipeline.core.documents import Status
from rag_pipeline.core.work import RUN_DIED, BatchPlan, Candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedBatch:
    """A batch for which a run has to be launched."""

    batch_id: str
    first_partition: str
    last_partition: str
    document_count: int
    is_large: bool = False
    """One document that takes long: its run shares a lane with its like, not with the others."""


class WaitingDocuments:
    """The queue of PENDING documents that no batch owns."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def claim(
        self,
        *,
        limit: int,
        plan: Callable[[list[Candidate]], list[BatchPlan]],
        new_batch_id: Callable[[], str],
        most_queued: int | None = None,
    ) -> list[RequestedBatch]:
        """Give waiting documents a batch, at most `limit` of them: the oldest of each knowledge base in turn.

        `plan` is called with the candidates while their rows are locked; a crash in it leaves them waiting. Rows that
        another sensor holds are passed over. Nothing is claimed while `most_queued` batches wait for a run: what is
        claimed keeps its place in Dagster's queue, and a document submitted later would stand behind all of it.
        """
        with transaction(self._engine) as connection:
            if most_queued is not None and connection.execute(_QUEUED).scalar_one() >= most_queued:
                return []
            rows = connection.execute(_WAITING.limit(limit)).mappings().all()
            requested = []
            for each in plan([_candidate(row) for row in rows]) if rows else []:
                batch = RequestedBatch(
                    batch_id=new_batch_id(),
                    first_partition=each.first_partition,
                    last_partition=each.last_partition,
                    document_count=len(each.candidates),
                    is_large=each.is_large,
                )
                _insert(connection, batch, [candidate.document_id for candidate in each.candidates])
                requested.append(batch)
        return requested

    def unlaunched(self, *, older_than_seconds: float) -> list[RequestedBatch]:
        """Queued batches that no run has begun; requesting a run again is harmless (same run key)."""
        statement = sa.select(batches).where(
            batches.c.state == "QUEUED",
            batches.c.created_at < sa.func.now() - sa.func.make_interval(0, 0, 0, 0, 0, 0, older_than_seconds),
        )
        with transaction(self._engine) as connection:
            return [
                RequestedBatch(
                    batch_id=row["id"],
                    first_partition=row["first_partition"],
                    last_partition=row["last_partition"],
                    document_count=row["document_count"],
                    is_large=row["is_large"],
                )
                for row in connection.execute(statement).mappings()
            ]

    def requeue_due(self, *, limit: int) -> int:
        """Put temporary failures whose time has come back into the queue, longest due first; returns how many."""
        due = (
            sa.select(documents.c.id)
            .where(
                TRIED_AGAIN,
                documents.c.available_at <= sa.func.now(),
                documents.c.batch_id.is_(None),
            )
            .order_by(documents.c.available_at)
            .limit(limit)
            .with_for_update(skip_locked=True)
            # As a plain subquery it may be run again for every row, and then `limit` bounds nothing.
            .cte("due")
            .prefix_with("MATERIALIZED")
        )
        with transaction(self._engine) as connection:
            return connection.execute(
                sa.update(documents)
                .where(documents.c.id.in_(sa.select(due.c.id)))
                .values(status=Status.PENDING, updated_at=sa.func.now())
            ).rowcount


def _insert(connection: sa.Connection, batch: RequestedBatch, document_ids: Sequence[str]) -> None:
    connection.execute(
        sa.insert(batches).values(
            id=batch.batch_id,
            state="QUEUED",
            first_partition=batch.first_partition,
            last_partition=batch.last_partition,
            document_count=batch.document_count,
            is_large=batch.is_large,
        )
    )
    connection.execute(
        sa.update(documents)
        .where(
            documents.c.id.in_(document_ids),
            documents.c.status == Status.PENDING,
            documents.c.batch_id.is_(None),
        )
        .values(batch_id=batch.batch_id, updated_at=sa.func.now())
    )


_QUEUED = sa.select(sa.func.count()).where(batches.c.state == "QUEUED")

_IS_WAITING = sa.and_(
    documents.c.status == Status.PENDING,
    documents.c.batch_id.is_(None),
    documents.c.available_at <= sa.func.now(),
)

# Rows cannot be locked under a window function, so the turns are counted apart.
_TURNS = (
    sa.select(
        documents.c.id,
        sa.func.row_number()
        .over(
            partition_by=documents.c.kb_id,
            order_by=(documents.c.available_at, documents.c.created_at, documents.c.id),
        )
        .label("turn"),
    )
    .where(_IS_WAITING)
    .subquery("turns")
)

_WAITING = (
    sa.select(
        documents.c.id,
        documents.c.kb_id,
        documents.c.partition_key,
        documents.c.file_name,
        document_versions.c.size_bytes,
        sa.case(
            (documents.c.error_code == RUN_DIED, documents.c.attempt - documents.c.uncounted_attempts), else_=0
        ).label("died_runs"),
    )
    .join(_TURNS, _TURNS.c.id == documents.c.id)
    .join(document_versions, of_newest_version(document_versions))
    .where(_IS_WAITING)
    .order_by(_TURNS.c.turn, documents.c.available_at, documents.c.created_at, documents.c.id)
    .with_for_update(of=documents, skip_locked=True)
)


def _candidate(row: Mapping[Any, Any]) -> Candidate:
    return Candidate(
        document_id=row["id"],
        kb_id=row["kb_id"],
        partition_key=row["partition_key"],
        file_name=row["file_name"],
        size_bytes=row["size_bytes"],
        died_runs=row["died_runs"],
    )
