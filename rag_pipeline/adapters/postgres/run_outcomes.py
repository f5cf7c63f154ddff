"""What a run has written down, for whoever has to finish its report."""

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from rag_pipeline.adapters.postgres.claims import ITEMS, work_item
from rag_pipeline.adapters.postgres.engine import transaction
from rag_pipeline.adapters.postgres.schema import documents, of_newest_version, stage_artefacts, stage_attempts
from rag_pipeline.core.documents import FINISHED, Stage
from rag_pipeline.core.work import OutcomeKind, StageOutcome


def finished_outcomes(engine: sa.Engine, run_id: str) -> list[StageOutcome]:
    """Stages that a run finished, of documents that are READY or without content since.

    Documents that the run left unfinished are not among them: the next run logs their finished stages again.
    """
    statement = (
        ITEMS.add_columns(
            stage_attempts.c.stage,
            stage_attempts.c.duration_ms,
            stage_artefacts.c.summary,
            stage_artefacts.c.artefact_key,
        )
        .join(
            stage_attempts,
            sa.and_(
                of_newest_version(stage_attempts),
                stage_attempts.c.run_id == run_id,
                stage_attempts.c.status == "SUCCESS",
            ),
        )
        .join(
            stage_artefacts,
            sa.and_(of_newest_version(stage_artefacts), stage_artefacts.c.stage == stage_attempts.c.stage),
        )
        .where(documents.c.status.in_(FINISHED), documents.c.batch_id.is_(None))
        .order_by(stage_attempts.c.id)
    )
    with transaction(engine) as connection:
        return [_outcome(row) for row in connection.execute(statement).mappings()]


def _outcome(row: Mapping[Any, Any]) -> StageOutcome:
    return StageOutcome(
        item=work_item(row),
        stage=Stage(row["stage"]),
        kind=OutcomeKind.DONE,
        summary=row["summary"],
        artefact_key=row["artefact_key"],
        milliseconds=row["duration_ms"] or 0,
    )
