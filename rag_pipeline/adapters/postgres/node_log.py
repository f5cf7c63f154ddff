"""The node log: what every stage did for a document, read from the rows that Dagster's events mirror."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from rag_pipeline.adapters.postgres.engine import transaction
from rag_pipeline.adapters.postgres.schema import stage_attempts


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLogEntry:
    """One attempt of one stage."""

    node: str
    status: str
    """RUNNING, SUCCESS, SKIPPED, FAILED or CANCELED."""
    version: int
    attempt: int
    run_id: str
    output_summary: Mapping[str, object]
    error: str | None
    error_code: str | None
    started_at: datetime
    finished_at: datetime | None
    duration_ms: int | None


def node_log(engine: sa.Engine, document_id: str) -> list[NodeLogEntry]:
    """Every attempt for a document, oldest first."""
    statement = (
        sa.select(stage_attempts).where(stage_attempts.c.document_id == document_id).order_by(stage_attempts.c.id)
    )
    with transaction(engine) as connection:
        return [
            NodeLogEntry(
                node=row["stage"],
                status=row["status"],
                version=row["version"],
                attempt=row["attempt"],
                run_id=row["run_id"],
                output_summary=row["output_summary"],
                error=row["error_message"],
                error_code=row["error_code"],
                started_at=row["started_at"],
                finished_at=row["finished_at"],
                duration_ms=row["duration_ms"],
            )
            for row in connection.execute(statement).mappings()
        ]
