"""Settled documents, page by page, with what a look at their staleness needs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import sqlalchemy as sa

from rag_pipeline.adapters.postgres.claims import ITEMS, work_item
from rag_pipeline.adapters.postgres.engine import transaction
from rag_pipeline.adapters.postgres.schema import document_versions, documents, stage_artefacts, stage_attempts
from rag_pipeline.core.documents import Stage, Status
from rag_pipeline.core.work import WorkItem

ROWS_PER_PAGE = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SettledDocument:
    """A READY or NO_CONTENT document whose newest version is the one that counts."""

    item: WorkItem
    fingerprints: Mapping[Stage, str]
    """Of the stages that have run for the version."""
    milliseconds: Mapping[Stage, int]
    """How long each stage took when it last succeeded."""
    tokens: int


class Staleness:
    """Reads for the re-index plan."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def settled(self, *, kb_id: str | None = None) -> Iterator[list[SettledDocument]]:
        """Pages of documents, of one knowledge base or of all; documents that were rolled back are left out."""
        statement = (
            ITEMS.add_columns(document_versions.c.token_count)
            .where(
                documents.c.batch_id.is_(None),
                sa.or_(
                    sa.and_(documents.c.status == Status.READY, documents.c.live_version == documents.c.version),
                    documents.c.status == Status.NO_CONTENT,
                ),
            )
            .order_by(documents.c.id)
            .limit(ROWS_PER_PAGE)
        )
        if kb_id is not None:
            statement = statement.where(documents.c.kb_id == kb_id)
        after = ""
        while True:
            with transaction(self._engine) as connection:
                rows = connection.execute(statement.where(documents.c.id > after)).mappings().all()
                if not rows:
                    return
                after = rows[-1]["id"]
                fingerprints, milliseconds = _by_stage(connection, [row["id"] for row in rows])
            yield [
                SettledDocument(
                    item=work_item(row),
                    fingerprints=fingerprints.get((row["id"], row["version"]), {}),
                    milliseconds=milliseconds.get(row["id"], {}),
                    tokens=row["token_count"] or 0,
                )
                for row in rows
            ]


def _by_stage(
    connection: sa.Connection, ids: list[str]
) -> tuple[dict[tuple[str, int], dict[Stage, str]], dict[str, dict[Stage, int]]]:
    fingerprints: dict[tuple[str, int], dict[Stage, str]] = {}
    for row in connection.execute(
        sa.select(
            stage_artefacts.c.document_id,
            stage_artefacts.c.version,
            stage_artefacts.c.stage,
            stage_artefacts.c.fingerprint,
        ).where(stage_artefacts.c.document_id.in_(ids))
    ):
        fingerprints.setdefault((row.document_id, row.version), {})[Stage(row.stage)] = row.fingerprint
    milliseconds: dict[str, dict[Stage, int]] = {}
    succeeded = sa.and_(stage_attempts.c.document_id.in_(ids), stage_attempts.c.status == "SUCCESS")
    columns = (stage_attempts.c.document_id, stage_attempts.c.stage)
    for row in connection.execute(
        sa.select(*columns, stage_attempts.c.duration_ms)
        .where(succeeded)
        .distinct(*columns)
        .order_by(*columns, stage_attempts.c.id.desc())
    ):
        milliseconds.setdefault(row.document_id, {})[Stage(row.stage)] = row.duration_ms or 0
    return fingerprints, milliseconds
