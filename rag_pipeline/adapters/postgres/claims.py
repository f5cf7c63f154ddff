"""Who works on what: batches, claims, heartbeats. Every change is one conditional UPDATE.

A document belongs to the batch named in `documents.batch_id` and to no other. The sensor's claim sets it, the batch's
run clears it with the final status, and the recovery takes it back when the run has lost its lease.
"""

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from rag_pipeline.adapters.postgres.documents import NO_ERROR
from rag_pipeline.adapters.postgres.engine import transaction
from rag_pipeline.adapters.postgres.next_version import copy_version
from rag_pipeline.adapters.postgres.schema import (
    batches,
    document_versions,
    documents,
    knowledge_bases,
    of_live_version,
    of_newest_version,
    stage_artefacts,
    stage_attempts,
)
from rag_pipeline.core.documents import FINISHED, SETTLED, WORKING, Stage, Status, allowed_from
from rag_pipeline.core.work import RUN_DIED, StageArtefact, WorkItem

_STARTABLE = tuple(Status(status) for status in allowed_from(Status.PARSING) if status not in WORKING)


class Claims:
    """Batches and the documents they own."""

    def __init__(self, engine: sa.Engine, *, max_attempts: int) -> None:
        """`max_attempts`: runs over a version after which a document whose runs die or break off is dead."""
        self._engine = engine
        self._max_attempts = max_attempts

    def begin_queued(self, batch_id: str, run_id: str) -> bool:
        """Start the batch that the sensor made for this run; False if it was started before or taken back."""
        statement = (
            sa.update(batches)
            .where(batches.c.id == batch_id, batches.c.state == "QUEUED")
            .values(state="RUNNING", run_id=run_id, heartbeat_at=sa.func.now())
        )
        with transaction(self._engine) as connection:
            started = connection.execute(statement).rowcount == 1
            if started:
                connection.execute(
                    sa.update(documents)
                    .where(documents.c.batch_id == batch_id, documents.c.status == Status.PENDING)
                    .values(attempt=documents.c.attempt + 1)
                )
        return started

    def begin_manual(self, run_id: str, document_ids: Sequence[str]) -> str:
        """A batch for a run that a person started, owning those of the documents that nobody else works on.

        Automatic attempts of documents that had given up are counted anew.
        """
        # A run that Dagster resumes has the same id as before.
        batch_id = f"{run_id}-{uuid.uuid4().hex[:8]}"
        with transaction(self._engine) as connection:
            connection.execute(
                sa.insert(batches).values(id=batch_id, state="RUNNING", run_id=run_id, document_count=len(document_ids))
            )
            connection.execute(
                sa.update(documents)
                .where(
                    documents.c.id.in_(document_ids),
                    documents.c.batch_id.is_(None),
                    documents.c.status.in_(_STARTABLE),
                )
                .values(
                    batch_id=batch_id,
                    attempt=documents.c.attempt + 1,
                    uncounted_attempts=sa.case(
                        (documents.c.status == Status.PENDING, documents.c.uncounted_attempts),
                        else_=documents.c.attempt,
                    ),
                    updated_at=sa.func.now(),
                )
            )
        return batch_id

    def open_versions(
        self, items: Sequence[WorkItem], fingerprints: Mapping[str, Mapping[Stage, str]]
    ) -> frozenset[str]:
        """Begin the next version, of the same bytes, of settled documents; the live version goes on answering.

        Finished stages whose fingerprint is the one given are taken over from the present version, so a rebuild
        begins at the first stage that is stale or left out of `fingerprints`.

        Returns:
            Ids of the documents it was done for; the others have changed meanwhile or are busy.
        """
        opened = set()
        with transaction(self._engine) as connection:
            for item in items:
                changed = connection.execute(
                    sa.update(documents)
                    .where(
                        documents.c.id == item.document_id,
                        documents.c.version == item.version,
                        documents.c.batch_id.is_(None),
                        documents.c.status.in_(SETTLED),
                    )
                    .values(
                        version=item.version + 1,
                        status=Status.PENDING,
                        attempt=0,
                        uncounted_attempts=0,
                        cancel_reason=None,
                        available_at=sa.func.now(),
                        updated_at=sa.func.now(),
                        **NO_ERROR,
                    )
                )
                if changed.rowcount == 1:
                    copy_version(connection, item, fingerprints[item.document_id])
                    opened.add(item.document_id)
        return frozenset(opened)

    def items(self, *, partition_keys: Sequence[str]) -> list[WorkItem]:
        """The documents of the partitions, in the order given; deleted ones are left out."""
        with transaction(self._engine) as connection:
            rows = connection.execute(ITEMS.where(documents.c.partition_key.in_(partition_keys))).mappings()
            found = {row["partition_key"]: work_item(row) for row in rows}
        return [found[key] for key in partition_keys if key in found]

    def settled_keys(self, partition_keys: Sequence[str]) -> frozenset[str]:
        """Those of the partitions whose document a run would pass over: READY or NO_CONTENT, in no batch."""
        if not partition_keys:
            return frozenset()
        statement = sa.select(documents.c.partition_key).where(
            documents.c.partition_key.in_(partition_keys),
            documents.c.status.in_(FINISHED),
            documents.c.batch_id.is_(None),
        )
        with transaction(self._engine) as connection:
            return frozenset(connection.execute(statement).scalars())

    def artefacts(self, document_ids: Sequence[str]) -> dict[tuple[str, int], dict[Stage, StageArtefact]]:
        """Winning artefacts by (document, version) and stage."""
        found: dict[tuple[str, int], dict[Stage, StageArtefact]] = {}
        with transaction(self._engine) as connection:
            for row in connection.execute(
                sa.select(stage_artefacts).where(stage_artefacts.c.document_id.in_(document_ids))
            ).mappings():
                stage = Stage(row["stage"])
                found.setdefault((row["document_id"], row["version"]), {})[stage] = StageArtefact(
                    stage=stage,
                    fingerprint=row["fingerprint"],
                    artefact_key=row["artefact_key"],
                    summary=row["summary"],
                )
        return found

    def heartbeat(self, batch_id: str) -> bool:
        """Renew the lease; False if the batch is not running any more."""
        statement = (
            sa.update(batches)
            .where(batches.c.id == batch_id, batches.c.state == "RUNNING")
            .values(heartbeat_at=sa.func.now())
        )
        with transaction(self._engine) as connection:
            return connection.execute(statement).rowcount == 1

    def finish(self, batch_id: str) -> None:
        """Close a batch that ends by itself; documents that it still owns go back to the queue.

        A run that was terminated or broke off leaves such documents; those out of attempts become FAILED (dead).
        """
        closing = sa.update(batches).where(batches.c.id == batch_id, batches.c.state != "FINISHED")
        with transaction(self._engine) as connection:
            self._close(connection, closing, reason="the run ended before it was done")

    def open_batches(self) -> list[dict[str, Any]]:
        """Batches not finished: id, state, run_id, seconds since the last heartbeat."""
        statement = sa.select(
            batches.c.id,
            batches.c.state,
            batches.c.run_id,
            sa.extract("epoch", sa.func.now() - batches.c.heartbeat_at).label("silent_seconds"),
        ).where(batches.c.state != "FINISHED")
        with transaction(self._engine) as connection:
            return [dict(row) for row in connection.execute(statement).mappings()]

    def seconds_since_end(self, run_id: str) -> float | None:
        """Seconds since the batch of a run was finished; None if the run never had one or it is still open."""
        statement = sa.select(sa.extract("epoch", sa.func.now() - batches.c.finished_at)).where(
            batches.c.run_id == run_id, batches.c.state == "FINISHED"
        )
        with transaction(self._engine) as connection:
            found = connection.execute(statement.order_by(batches.c.finished_at.desc()).limit(1)).scalar()
        return None if found is None else float(found)

    def take_back(self, batch_id: str, *, reason: str, lease_seconds: float) -> int:
        """Close a batch whose run is dead and requeue its documents; those out of attempts become FAILED (dead).

        Does nothing if the batch sent a heartbeat within the lease after all. Returns the number of documents.
        """
        closing = sa.update(batches).where(
            batches.c.id == batch_id,
            batches.c.state != "FINISHED",
            batches.c.heartbeat_at < sa.func.now() - sa.func.make_interval(0, 0, 0, 0, 0, 0, lease_seconds),
        )
        with transaction(self._engine) as connection:
            return self._close(connection, closing, reason=reason)

    def forget_finished(self, *, older_than_seconds: float) -> int:
        """Delete the rows of batches that ended long ago; they hold names of documents that may be deleted since."""
        statement = sa.delete(batches).where(
            batches.c.state == "FINISHED",
            batches.c.finished_at < sa.func.now() - sa.func.make_interval(0, 0, 0, 0, 0, 0, older_than_seconds),
        )
        with transaction(self._engine) as connection:
            return connection.execute(statement).rowcount

    def _close(self, connection: sa.Connection, closing: sa.Update, *, reason: str) -> int:
        """Close the batch that the UPDATE matches, if it does, and let its documents go; returns how many had work."""
        closed = connection.execute(
            closing.values(state="FINISHED", finished_at=sa.func.now()).returning(batches.c.id, batches.c.run_id)
        ).first()
        if closed is None:
            return 0
        unfinished = (documents.c.batch_id == closed.id, documents.c.status.in_(WORKING | {Status.PENDING}))
        # A run that never began has counted nothing yet, and might die in its start for ever.
        attempt = documents.c.attempt + (1 if closed.run_id is None else 0)
        died = {
            "batch_id": None,
            "attempt": attempt,
            "error_stage": _LAST_STAGE_BEGUN,
            "error_code": RUN_DIED,
            "updated_at": sa.func.now(),
        }
        dead = connection.execute(
            sa.update(documents)
            .where(*unfinished, attempt - documents.c.uncounted_attempts >= self._max_attempts)
            .values(
                **died,
                status=Status.FAILED,
                error_class="dead",
                error_message=f"{reason}; gave up after {self._max_attempts} attempts, retry by hand when it is mended",
            )
        )
        requeued = connection.execute(
            sa.update(documents)
            .where(*unfinished)
            .values(
                **died,
                status=Status.PENDING,
                error_class="temporary",
                error_message=f"{reason}; it is tried again",
            )
        )
        connection.execute(sa.update(documents).where(documents.c.batch_id == closed.id).values(batch_id=None))
        connection.execute(
            sa.update(stage_attempts)
            .where(stage_attempts.c.run_id == closed.run_id, stage_attempts.c.status == "RUNNING")
            .values(status="CANCELED", error_code=RUN_DIED, error_message=reason, finished_at=sa.func.now())
        )
        return dead.rowcount + requeued.rowcount


_LAST_STAGE_BEGUN = sa.func.coalesce(
    sa.select(stage_attempts.c.stage)
    .where(of_newest_version(stage_attempts))
    .order_by(stage_attempts.c.id.desc())
    .limit(1)
    .correlate(documents)
    .scalar_subquery(),
    Stage.SOURCE_DOCUMENT.value,
)


_OF_VERSION = (
    document_versions.c.sha256,
    document_versions.c.size_bytes,
    document_versions.c.object_key,
    document_versions.c.metadata,
)

ITEMS = (
    sa.select(documents, knowledge_bases.c.name.label("kb_name"), *_OF_VERSION)
    .join(knowledge_bases, knowledge_bases.c.id == documents.c.kb_id)
    .join(document_versions, of_newest_version(document_versions))
)

LIVE_ITEMS = (
    sa.select(
        *(column for column in documents.c if column.name != "version"),
        document_versions.c.version,
        knowledge_bases.c.name.label("kb_name"),
        *_OF_VERSION,
    )
    .join(knowledge_bases, knowledge_bases.c.id == documents.c.kb_id)
    .join(document_versions, of_live_version(document_versions))
)
"""As `ITEMS`, but of the versions that answer queries."""


def work_item(row: Mapping[Any, Any]) -> WorkItem:
    """The item of a row that has the columns of `documents`, the version's file facts, and `kb_name`."""
    return WorkItem(
        document_id=row["id"],
        kb_id=row["kb_id"],
        kb_name=row["kb_name"],
        partition_key=row["partition_key"],
        source_path=row["source_path"],
        file_name=row["file_name"],
        status=Status(row["status"]),
        version=row["version"],
        live_version=row["live_version"],
        attempt=row["attempt"],
        uncounted_attempts=row["uncounted_attempts"],
        batch_id=row["batch_id"],
        sha256=row["sha256"],
        size_bytes=row["size_bytes"],
        object_key=row["object_key"],
        metadata=row["metadata"],
    )
