"""What PostgreSQL says should be in the other stores, read in pages, and the rows that are mended with them."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import sqlalchemy as sa

from rag_pipeline.adapters.postgres.claims import LIVE_ITEMS, work_item
from rag_pipeline.adapters.postgres.engine import transaction, translate_errors
from rag_pipeline.adapters.postgres.schema import (
    chunks,
    document_versions,
    documents,
    images,
    knowledge_bases,
    of_live_version,
    paid_embeddings,
    stage_artefacts,
)
from rag_pipeline.core.documents import SETTLED, Stage, Status
from rag_pipeline.core.work import WorkItem

PAGE = 1_000
"""Rows of one page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentState:
    """Whether the stores of a document may be compared now."""

    document_id: str
    kb_id: str
    status: Status
    version: int
    live_version: int | None
    batch_id: str | None

    @property
    def is_still(self) -> bool:
        """Whether nobody writes for it or removes it: settled and in no batch."""
        return self.batch_id is None and self.status in SETTLED


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedObject:
    """An object that some row names."""

    key: str
    document_id: str
    version: int
    stage: Stage | None
    """What would have to be done again to have it back; None for vectors kept of a failed attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRows:
    """Chunk rows of one version."""

    document_id: str
    kb_id: str
    version: int
    rows: int


class Reconciliation:
    """Pages of what should be, and small repairs."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def knowledge_base_ids(self) -> frozenset[str]:
        """Every knowledge base that this database has ever had; what bears another id is not ours."""
        with transaction(self._engine) as connection:
            return frozenset(connection.execute(sa.select(knowledge_bases.c.id)).scalars())

    def states(self, document_ids: Collection[str]) -> dict[str, DocumentState]:
        """Those of the documents that exist."""
        statement = sa.select(
            documents.c.id.label("document_id"),
            documents.c.kb_id,
            documents.c.status,
            documents.c.version,
            documents.c.live_version,
            documents.c.batch_id,
        ).where(documents.c.id.in_(document_ids))
        with transaction(self._engine) as connection:
            rows = connection.execute(statement).mappings()
            return {row["document_id"]: DocumentState(**{**row, "status": Status(row["status"])}) for row in rows}

    def live_item(self, document_id: str) -> WorkItem | None:
        """The live version of a document as a work item; None if it has none."""
        with transaction(self._engine) as connection:
            row = connection.execute(LIVE_ITEMS.where(documents.c.id == document_id)).mappings().first()
        return None if row is None else work_item(row)

    def named_objects(self) -> Iterator[NamedObject]:
        """Every object that a row names, in the order of the keys' bytes, by a cursor on the server."""
        named = _NAMED.subquery()
        statement = sa.select(named).order_by(sa.collate(named.c.key, "C"), named.c.version.desc())
        with translate_errors(), self._engine.connect() as connection:
            rows = connection.execution_options(stream_results=True, yield_per=PAGE).execute(statement)
            previous = None
            for row in rows:
                if row.key != previous:  # versions of the same bytes share objects: the newest stands for them
                    yield _named(row)
                previous = row.key

    def named_among(self, keys: Collection[str]) -> dict[str, NamedObject]:
        """Those of the keys that a row names now."""
        named = _NAMED.subquery()
        with transaction(self._engine) as connection:
            rows = connection.execute(sa.select(named).where(named.c.key.in_(keys)).order_by(named.c.version))
            return {row.key: _named(row) for row in rows}

    def chunks_existing(self, chunk_ids: Collection[str]) -> frozenset[str]:
        """Those of the chunk ids that have a row."""
        statement = sa.select(chunks.c.id).where(chunks.c.id.in_(chunk_ids))
        with transaction(self._engine) as connection:
            return frozenset(connection.execute(statement).scalars())

    def live_chunks(self) -> Iterator[list[tuple[str, str]]]:
        """Pages of (chunk id, document id) of the versions that answer queries."""
        statement = (
            sa.select(chunks.c.id, chunks.c.document_id)
            .join(documents, documents.c.id == chunks.c.document_id)
            .where(chunks.c.version == documents.c.live_version, documents.c.status != Status.DELETING)
            .order_by(chunks.c.id)
            .limit(PAGE)
        )
        after = ""
        while True:
            with transaction(self._engine) as connection:
                page = [(row.id, row.document_id) for row in connection.execute(statement.where(chunks.c.id > after))]
            if not page:
                return
            yield page
            after = page[-1][0]

    def incomplete_versions(self) -> list[str]:
        """Documents whose live version has more or fewer chunk rows than chunks were made."""
        counted = sa.select(sa.func.count()).where(of_live_version(chunks)).scalar_subquery()
        statement = (
            sa.select(documents.c.id)
            .join(document_versions, of_live_version(document_versions))
            .where(document_versions.c.chunk_count != counted, documents.c.status != Status.DELETING)
        )
        with transaction(self._engine) as connection:
            return list(connection.execute(statement).scalars())

    def abandoned_rows(self) -> list[VersionRows]:
        """Chunk rows of versions that will never answer: removed ones, and canceled ones a late writer came back to."""
        has_version = sa.exists().where(
            document_versions.c.document_id == chunks.c.document_id, document_versions.c.version == chunks.c.version
        )
        statement = (
            sa.select(chunks.c.document_id, documents.c.kb_id, chunks.c.version, sa.func.count().label("rows"))
            .join(documents, documents.c.id == chunks.c.document_id)
            .where(
                documents.c.batch_id.is_(None),
                documents.c.status.in_(SETTLED),
                chunks.c.version.is_distinct_from(documents.c.live_version),
                sa.or_(
                    ~has_version,
                    sa.and_(chunks.c.version == documents.c.version, documents.c.status == Status.CANCELED),
                ),
            )
            .group_by(chunks.c.document_id, documents.c.kb_id, chunks.c.version)
        )
        with transaction(self._engine) as connection:
            return [VersionRows(**row) for row in connection.execute(statement).mappings()]

    def live_versions(self) -> Iterator[list[tuple[str, str, int]]]:
        """Pages of (document id, knowledge base id, live version)."""
        statement = (
            sa.select(documents.c.id, documents.c.kb_id, documents.c.live_version)
            .where(documents.c.live_version.is_not(None), documents.c.status != Status.DELETING)
            .order_by(documents.c.id)
            .limit(PAGE)
        )
        after = ""
        while True:
            with transaction(self._engine) as connection:
                rows = connection.execute(statement.where(documents.c.id > after)).all()
            if not rows:
                return
            yield [(row.id, row.kb_id, row.live_version) for row in rows]
            after = rows[-1].id

    def partition_keys(self) -> dict[str, bool]:
        """Partition key of every document -> whether a run has ever been asked for it."""
        statement = sa.select(
            documents.c.partition_key,
            sa.or_(documents.c.attempt > 0, documents.c.version > 1, documents.c.live_version.is_not(None)),
        )
        with transaction(self._engine) as connection:
            return {row[0]: row[1] for row in connection.execute(statement)}

    def forget_artefacts(self, document_id: str, version: int, stage: Stage) -> None:
        """Have a stage and those after it done again by the next attempt on an unfinished version."""
        later = list(Stage)[list(Stage).index(stage) :]
        with transaction(self._engine) as connection:
            connection.execute(
                sa.delete(stage_artefacts).where(
                    stage_artefacts.c.document_id == document_id,
                    stage_artefacts.c.version == version,
                    stage_artefacts.c.stage.in_(later),
                )
            )

    def forget_paid(self, artefact_key: str) -> None:
        """Forget vectors whose artefact is gone; they are paid for again when they are needed."""
        with transaction(self._engine) as connection:
            connection.execute(sa.delete(paid_embeddings).where(paid_embeddings.c.artefact_key == artefact_key))

    def delete_chunk_rows(self, document_id: str, version: int) -> None:
        """Remove a version's chunk rows."""
        with transaction(self._engine) as connection:
            connection.execute(
                sa.delete(chunks).where(chunks.c.document_id == document_id, chunks.c.version == version)
            )


def _select_named(
    key: sa.Column[str], table: sa.Table, stage: "sa.ColumnElement[str] | None"
) -> "sa.Select[tuple[str, str, int, str | None]]":
    return sa.select(
        key.label("key"),
        table.c.document_id.label("document_id"),
        table.c.version.label("version"),
        (sa.null() if stage is None else stage).label("stage"),
    )


def _named(row: sa.Row[tuple[str, str, int, str | None]]) -> NamedObject:
    return NamedObject(
        key=row.key, document_id=row.document_id, version=row.version, stage=Stage(row.stage) if row.stage else None
    )


_NAMED: sa.CompoundSelect[tuple[str, str, int, str | None]] = sa.union(
    _select_named(document_versions.c.object_key, document_versions, sa.literal(Stage.SOURCE_DOCUMENT.value)),
    # The key of a snapshot is a path outside the object store, that of an original is the version's own.
    _select_named(stage_artefacts.c.artefact_key, stage_artefacts, stage_artefacts.c.stage).where(
        stage_artefacts.c.artefact_key.is_not(None),
        stage_artefacts.c.stage.not_in((Stage.SOURCE_DOCUMENT, Stage.CHUNK_SNAPSHOT)),
    ),
    _select_named(images.c.object_key, images, sa.literal(Stage.PARSED_BLOCKS.value)),
    _select_named(paid_embeddings.c.artefact_key, paid_embeddings, None).where(
        ~sa.exists().where(stage_artefacts.c.artefact_key == paid_embeddings.c.artefact_key)
    ),
)
