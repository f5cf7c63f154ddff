"""What a running batch writes down: stage begun, stage done, failed, READY; one transaction for many documents.

Every statement names the owner (`documents.batch_id`) and the allowed previous states, so a batch that lost a document
(canceled, deleted, taken back after a silent lease) cannot change it any more.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from rag_pipeline.adapters.postgres.documents import NO_ERROR
from rag_pipeline.adapters.postgres.engine import transaction
from rag_pipeline.adapters.postgres.json_rows import to_json
from rag_pipeline.adapters.postgres.live_generation import hold_live
from rag_pipeline.adapters.postgres.schema import document_versions, documents
from rag_pipeline.core.documents import STATUS_DURING, WORKING, Stage, Status, allowed_from
from rag_pipeline.core.work import OutcomeKind, StageOutcome, WorkItem
from rag_pipeline.errors import GenerationSwitchedError, InternalError, RagPipelineError, TemporaryError


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """When a temporary failure is tried again: `min(base * 2^(attempt - 1), maximum)` seconds and jitter, then dead."""

    max_attempts: int
    base_seconds: float
    maximum_seconds: float = 300.0
    longest_asked_seconds: float = 3_600.0
    """A service that asks for more has a wrong clock or sends a date as a number."""
    jitter: float = 0.25
    """Share of the delay by which documents that failed together come back apart."""

    def delay_seconds(self, attempt: int, *, asked: float | None, chance: float) -> float:
        """Seconds to wait after that attempt failed; the other side's Retry-After wins when it is longer.

        `chance` in [0, 1) is the share of the jitter.
        """
        delay = min(self.base_seconds * 2.0 ** max(attempt - 1, 0), self.maximum_seconds)
        return max(delay, min(asked or 0.0, self.longest_asked_seconds)) * (1 + self.jitter * chance)


class StageLedger:
    """The documents' status, stage attempts and winning artefacts, on behalf of one batch."""

    def __init__(self, engine: sa.Engine, *, batch_id: str, run_id: str, retry: RetryPolicy) -> None:
        self._engine = engine
        self._batch_id = batch_id
        self._run_id = run_id
        self._retry = retry

    def begin(self, stage: Stage, items: Sequence[WorkItem]) -> frozenset[str]:
        """Set the status of a stage before it begins; returns the ids of the documents that are still owned."""
        status = STATUS_DURING[stage]
        with transaction(self._engine) as connection:
            owned = connection.execute(
                sa.update(documents)
                .where(*self._owned(items), documents.c.status.in_(allowed_from(status)))
                .values(status=status, cancel_reason=None, updated_at=sa.func.now(), **NO_ERROR)
                .returning(documents.c.id)
            ).scalars()
            ids = frozenset(owned)
            self._insert_attempts(connection, stage, [item for item in items if item.document_id in ids])
        return ids

    def still_owned(self, items: Sequence[WorkItem]) -> frozenset[str]:
        """The documents that this batch may still write for: asked before every external write."""
        statement = sa.select(documents.c.id).where(*self._owned(items), documents.c.status.in_(WORKING))
        with transaction(self._engine) as connection:
            return frozenset(connection.execute(statement).scalars())

    def record(self, stage: Stage, outcomes: Sequence[StageOutcome], fingerprints: Mapping[str, str]) -> frozenset[str]:
        """Write down what a stage did.

        Args:
            stage: the stage.
            outcomes: one per document; DONE makes the artefact the winner, FAILED and EMPTY settle the document.
            fingerprints: document id -> fingerprint of the stage.

        Returns:
            The documents that go on; the others failed, are empty, or are not owned any more.
        """
        with transaction(self._engine) as connection:
            owned = frozenset(
                connection.execute(
                    sa.select(documents.c.id)
                    .where(*self._owned([outcome.item for outcome in outcomes]), documents.c.status.in_(WORKING))
                    .with_for_update()
                ).scalars()
            )
            mine = [outcome for outcome in outcomes if outcome.item.document_id in owned]
            self._finish_attempts(connection, stage, outcomes, owned)
            produced = [outcome for outcome in mine if outcome.kind in (OutcomeKind.DONE, OutcomeKind.EMPTY)]
            self._upsert_artefacts(connection, stage, produced, fingerprints)
            self._describe_versions(connection, produced)
            failed = [outcome for outcome in mine if outcome.kind is OutcomeKind.FAILED]
            self._settle_failed(connection, stage, failed)
            self._settle_empty(connection, [outcome for outcome in mine if outcome.kind is OutcomeKind.EMPTY])
        settled = {outcome.item.document_id for outcome in mine if outcome.kind is not OutcomeKind.DONE}
        return owned - settled

    def publish(self, items: Sequence[WorkItem], *, collection: str) -> frozenset[str]:
        """Make the versions live: READY is the last step, in one transaction with the flip of `live_version`.

        Raises:
            GenerationSwitchedError: the collection that they were written to does not answer queries any more.
        """
        if not items:
            return frozenset()
        with transaction(self._engine) as connection:
            live = hold_live(connection)
            if live != collection:
                raise GenerationSwitchedError(
                    f"written to {collection}, but {live} answers queries since a moment ago: it is done again for that"
                )
            ready = list(
                connection.execute(
                    sa.update(documents)
                    .where(*self._owned(items), documents.c.status.in_(allowed_from(Status.READY)))
                    .values(
                        status=Status.READY,
                        live_version=documents.c.version,
                        batch_id=None,
                        updated_at=sa.func.now(),
                        **NO_ERROR,
                    )
                    .returning(documents.c.id)
                ).scalars()
            )
            connection.execute(
                sa.update(document_versions)
                .where(
                    document_versions.c.document_id == documents.c.id,
                    document_versions.c.version == documents.c.version,
                    documents.c.id.in_(ready),
                )
                .values(ready_at=sa.func.now(), collection=collection, superseded_at=None)
            )
            _supersede_older(connection, ready)
        return frozenset(ready)

    def hand_back(self, items: Sequence[WorkItem]) -> None:
        """Return documents that a partial materialization leaves unfinished to the queue; it counts as no attempt."""
        if not items:
            return
        with transaction(self._engine) as connection:
            connection.execute(
                sa.update(documents)
                .where(*self._owned(items), documents.c.status.in_(WORKING | {Status.PENDING}))
                .values(
                    status=Status.PENDING,
                    batch_id=None,
                    uncounted_attempts=documents.c.attempt,
                    updated_at=sa.func.now(),
                )
            )

    def let_go(self, items: Sequence[WorkItem]) -> frozenset[str]:
        """Give up those of the documents that were canceled or deleted meanwhile; this batch must be done with them.

        Returns:
            Their ids. From here on others may remove what the batch has written for them.
        """
        if not items:
            return frozenset()
        with transaction(self._engine) as connection:
            return frozenset(
                connection.execute(
                    sa.update(documents)
                    .where(*self._owned(items), documents.c.status.in_((Status.CANCELING, Status.DELETING)))
                    .values(batch_id=None)
                    .returning(documents.c.id)
                ).scalars()
            )

    def _owned(self, items: Sequence[WorkItem]) -> tuple[sa.ColumnElement[bool], ...]:
        return (documents.c.id.in_([item.document_id for item in items]), documents.c.batch_id == self._batch_id)

    def _insert_attempts(self, connection: sa.Connection, stage: Stage, items: Sequence[WorkItem]) -> None:
        rows = [
            {
                "document_id": item.document_id,
                "version": item.version,
                "stage": stage,
                "attempt": item.attempt,
                "run_id": self._run_id,
                "status": "RUNNING",
            }
            for item in items
        ]
        connection.execute(_INSERT_ATTEMPTS, {"rows": to_json(rows)})

    def _finish_attempts(
        self, connection: sa.Connection, stage: Stage, outcomes: Sequence[StageOutcome], owned: frozenset[str]
    ) -> None:
        rows = [
            {
                "document_id": outcome.item.document_id,
                "version": outcome.item.version,
                "attempt": outcome.item.attempt,
                "status": _ATTEMPT_STATUS[outcome.kind] if outcome.item.document_id in owned else "CANCELED",
                "output_summary": dict(outcome.summary),
                "error_code": outcome.error.code if outcome.error else None,
                "error_class": outcome.error.error_class if outcome.error else None,
                "error_message": str(outcome.error) if outcome.error else None,
                "duration_ms": outcome.milliseconds,
            }
            for outcome in outcomes
        ]
        connection.execute(_FINISH_ATTEMPTS, {"rows": to_json(rows), "stage": stage.value, "run_id": self._run_id})

    def _upsert_artefacts(
        self,
        connection: sa.Connection,
        stage: Stage,
        outcomes: Sequence[StageOutcome],
        fingerprints: Mapping[str, str],
    ) -> None:
        rows = [
            {
                "document_id": outcome.item.document_id,
                "version": outcome.item.version,
                "stage": stage,
                "fingerprint": fingerprints[outcome.item.document_id],
                "artefact_key": outcome.artefact_key,
                "attempt": outcome.item.attempt,
                "summary": dict(outcome.summary),
            }
            for outcome in outcomes
        ]
        connection.execute(_UPSERT_ARTEFACTS, {"rows": to_json(rows)})

    def _describe_versions(self, connection: sa.Connection, outcomes: Sequence[StageOutcome]) -> None:
        rows = [
            {
                "document_id": outcome.item.document_id,
                "version": outcome.item.version,
                "pages": outcome.summary.get("pages"),
                "chunk_count": outcome.summary.get("chunks"),
                "token_count": outcome.summary.get("tokens"),
                "warnings": outcome.summary.get("warnings"),
            }
            for outcome in outcomes
        ]
        connection.execute(_DESCRIBE_VERSIONS, {"rows": to_json(rows)})

    def _settle_failed(self, connection: sa.Connection, stage: Stage, outcomes: Sequence[StageOutcome]) -> None:
        rows = []
        for outcome in outcomes:
            error = outcome.error or InternalError("the stage gave no reason")
            error_class, delay = self._verdict(error, outcome.item.counted_attempts)
            rows.append(
                {
                    "id": outcome.item.document_id,
                    "code": error.code,
                    "class": error_class,
                    "message": str(error),
                    "delay": delay,
                }
            )
        connection.execute(
            _SETTLE_FAILED,
            {
                "rows": to_json(rows),
                "stage": stage.value,
                "batch_id": self._batch_id,
                "allowed": [status.value for status in allowed_from(Status.FAILED)],
            },
        )

    def _settle_empty(self, connection: sa.Connection, outcomes: Sequence[StageOutcome]) -> None:
        """NO_CONTENT is not searchable: an older version, whose text the file no longer holds, answers no more."""
        if not outcomes:
            return
        empty = connection.execute(
            sa.update(documents)
            .where(
                *self._owned([outcome.item for outcome in outcomes]),
                documents.c.status.in_(allowed_from(Status.NO_CONTENT)),
            )
            .values(status=Status.NO_CONTENT, batch_id=None, live_version=None, updated_at=sa.func.now())
            .returning(documents.c.id)
        ).scalars()
        _supersede_older(connection, list(empty))

    def _verdict(self, error: RagPipelineError, attempt: int) -> tuple[str, float]:
        if not isinstance(error, TemporaryError):
            return "permanent", 0.0
        # A switch is nobody's fault: it does not cost the last attempt.
        if attempt >= self._retry.max_attempts and not isinstance(error, GenerationSwitchedError):
            return "dead", 0.0
        chance = random.random()  # noqa: S311 - spreads load, guards nothing
        return "temporary", self._retry.delay_seconds(attempt, asked=error.retry_after_seconds, chance=chance)


def _supersede_older(connection: sa.Connection, document_ids: Sequence[str]) -> None:
    connection.execute(
        sa.update(document_versions)
        .where(
            document_versions.c.document_id == documents.c.id,
            document_versions.c.version < documents.c.version,
            document_versions.c.superseded_at.is_(None),
            documents.c.id.in_(document_ids),
        )
        .values(superseded_at=sa.func.now())
    )


_ATTEMPT_STATUS = {
    OutcomeKind.DONE: "SUCCESS",
    OutcomeKind.UNCHANGED: "SKIPPED",
    OutcomeKind.EMPTY: "SUCCESS",
    OutcomeKind.FAILED: "FAILED",
    OutcomeKind.DROPPED: "CANCELED",
}

_INSERT_ATTEMPTS = sa.text(
    """
    INSERT INTO stage_attempts (document_id, version, stage, attempt, run_id, status)
    SELECT document_id, version, stage, attempt, run_id, status
    FROM jsonb_populate_recordset(NULL::stage_attempts, CAST(:rows AS jsonb))
    ON CONFLICT (document_id, version, stage, attempt, run_id) DO UPDATE SET status = 'RUNNING', started_at = now()
    """
)

_FINISH_ATTEMPTS = sa.text(
    """
    UPDATE stage_attempts AS a
    SET status = r.status, output_summary = r.output_summary, error_code = r.error_code, error_class = r.error_class,
        error_message = r.error_message, duration_ms = r.duration_ms, finished_at = now()
    FROM jsonb_populate_recordset(NULL::stage_attempts, CAST(:rows AS jsonb)) AS r
    WHERE a.document_id = r.document_id AND a.version = r.version AND a.attempt = r.attempt
      AND a.stage = :stage AND a.run_id = :run_id
    """
)

_UPSERT_ARTEFACTS = sa.text(
    """
    INSERT INTO stage_artefacts (document_id, version, stage, fingerprint, artefact_key, attempt, summary)
    SELECT document_id, version, stage, fingerprint, artefact_key, attempt, summary
    FROM jsonb_populate_recordset(NULL::stage_artefacts, CAST(:rows AS jsonb))
    ON CONFLICT (document_id, version, stage) DO UPDATE
    SET fingerprint = excluded.fingerprint, artefact_key = excluded.artefact_key, attempt = excluded.attempt,
        summary = excluded.summary, completed_at = now()
    """
)

_DESCRIBE_VERSIONS = sa.text(
    """
    UPDATE document_versions AS v
    SET pages = coalesce(r.pages, v.pages), chunk_count = coalesce(r.chunk_count, v.chunk_count),
        token_count = coalesce(r.token_count, v.token_count),
        warnings = CASE WHEN jsonb_typeof(r.warnings) = 'array' THEN r.warnings ELSE v.warnings END
    FROM jsonb_populate_recordset(NULL::document_versions, CAST(:rows AS jsonb)) AS r
    WHERE v.document_id = r.document_id AND v.version = r.version
    """
)

_SETTLE_FAILED = sa.text(
    """
    UPDATE documents AS d
    SET status = 'FAILED', batch_id = NULL, error_stage = :stage, error_code = r.code, error_class = r.class,
        error_message = r.message, available_at = now() + make_interval(secs => r.delay), updated_at = now()
    FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r(id text, code text, class text, message text, delay float)
    WHERE d.id = r.id AND d.batch_id = :batch_id AND d.status = ANY(:allowed)
    """
)
