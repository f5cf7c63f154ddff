"""The collection that is filled beside the one that answers queries: what it lacks, the switch to it, and its end.

A generation is FILLING, then LIVE, then RETIRED, then DROPPED. Whoever lets another version of a document answer holds
a share lock on the LIVE row; the switch locks it alone, so what it has counted is still true when it is committed.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc

from rag_pipeline.adapters.postgres.claims import LIVE_ITEMS, work_item
from rag_pipeline.adapters.postgres.engine import transaction, translate_errors
from rag_pipeline.adapters.postgres.json_rows import to_json
from rag_pipeline.adapters.postgres.live_generation import add_generation, generation_of
from rag_pipeline.adapters.postgres.schema import (
    collections,
    document_versions,
    documents,
    generation_documents,
    knowledge_bases,
    of_live_version,
    stage_artefacts,
)
from rag_pipeline.core.documents import Stage, Status
from rag_pipeline.core.ports import CollectionGeneration, EmbedderIdentity
from rag_pipeline.core.work import WorkItem
from rag_pipeline.errors import GenerationSwitchedError

_LOCK = (0x726167, 1)
"""Two numbers of an advisory lock: nobody else in this database uses the first ("rag")."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NextGeneration:
    """The generation that is being filled."""

    generation: CollectionGeneration
    embedder: str
    """Key of the embedder that fills it."""
    refusal: str | None
    """Why the switch to it was refused; nothing is done for it until somebody starts it again."""
    is_due: bool
    """Whether a run may begin now: not while it rests after errors, and not after a refusal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilledVersion:
    """A version whose rows are complete in the next collection."""

    item: WorkItem
    artefact_key: str
    """Its vectors."""
    embeddings_fingerprint: str
    index_fingerprint: str


class NextGenerations:
    """Rows of the collections that do not answer queries, and of what is in them."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def filling(self) -> NextGeneration | None:
        """The one being filled."""
        statement = sa.select(
            collections,
            sa.and_(collections.c.refusal.is_(None), collections.c.due_at <= sa.func.now()).label("is_due"),
        ).where(collections.c.state == "FILLING")
        with transaction(self._engine) as connection:
            row = connection.execute(statement).mappings().first()
        if row is None:
            return None
        return NextGeneration(
            generation=generation_of(row), embedder=row["embedder"], refusal=row["refusal"], is_due=row["is_due"]
        )

    def start(self, *, prefix: str, embedder: EmbedderIdentity, analyzer: str) -> None:
        """Insert the FILLING row under a name that was never used; does nothing if there is one already."""
        with transaction(self._engine) as connection:
            names = connection.execute(sa.select(collections.c.name)).scalars()
            numbers = [int(name.rpartition("_")[2]) for name in names if name.startswith(f"{prefix}_")]
            try:
                with connection.begin_nested():
                    add_generation(
                        connection,
                        name=f"{prefix}_{max(numbers, default=0) + 1}",
                        embedder=embedder,
                        analyzer=analyzer,
                        state="FILLING",
                    )
            except exc.IntegrityError:
                pass  # another process was first

    def resume(self) -> None:
        """Forget why the switch was refused, and let the next run begin at once."""
        self._set(refusal=None, due_at=sa.func.now())

    def refuse(self, reason: str) -> None:
        """Write down why the switch was refused."""
        self._set(refusal=reason)

    def rest(self, seconds: float) -> None:
        """Let the next run begin that much later."""
        self._set(due_at=sa.func.now() + sa.func.make_interval(0, 0, 0, 0, 0, 0, seconds))

    def abandon(self) -> str | None:
        """Retire the FILLING one and forget what is in it; returns its name, None if there is none."""
        with transaction(self._engine) as connection:
            name: str | None = connection.execute(
                sa.update(collections)
                .where(collections.c.state == "FILLING")
                .values(state="RETIRED", retired_at=sa.func.now())
                .returning(collections.c.name)
            ).scalar()
            connection.execute(sa.delete(generation_documents).where(generation_documents.c.collection == name))
        return name

    def waiting(
        self, collection: str, *, after: tuple[datetime, str] | None, limit: int
    ) -> tuple[list[WorkItem], tuple[datetime, str] | None]:
        """Live versions that are not complete in the collection, oldest document first.

        Args:
            collection: its name.
            after: where the page before ended.
            limit: documents of a page.

        Returns:
            The items, and where the page ends; None after the last.
        """
        order = sa.tuple_(documents.c.created_at, documents.c.id)
        statement = LIVE_ITEMS.where(*_lacking(collection)).order_by(documents.c.created_at, documents.c.id)
        if after is not None:
            statement = statement.where(order > sa.tuple_(*map(sa.literal, after)))
        with transaction(self._engine) as connection:
            rows = connection.execute(statement.limit(limit)).mappings().all()
        end = (rows[-1]["created_at"], rows[-1]["id"]) if rows else None
        return [work_item(row) for row in rows], end

    def size(self, collection: str | None) -> tuple[int, int]:
        """Live versions that are not complete in the collection (None: all), and the tokens of their chunks."""
        statement = (
            sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(document_versions.c.token_count), 0))
            .select_from(documents)
            .join(knowledge_bases, knowledge_bases.c.id == documents.c.kb_id)
            .join(document_versions, of_live_version(document_versions))
            .where(*_lacking(collection or ""))
        )
        with transaction(self._engine) as connection:
            count, tokens = connection.execute(statement).one()
        return int(count), int(tokens)

    def still_live(self, items: Sequence[WorkItem]) -> frozenset[str]:
        """Ids of the documents of which these versions still answer."""
        versions = [(item.document_id, item.version) for item in items]
        statement = sa.select(documents.c.id).where(
            sa.tuple_(documents.c.id, documents.c.live_version).in_(versions), documents.c.status != Status.DELETING
        )
        with transaction(self._engine) as connection:
            return frozenset(connection.execute(statement).scalars())

    def add(self, collection: str, filled: Sequence[FilledVersion]) -> frozenset[str]:
        """Note versions whose rows are complete in the collection.

        Returns:
            Ids of the documents it was done for; versions that do not answer any more are left out, and so is all when
            the collection is not the FILLING one any more.
        """
        rows = [
            {
                "document_id": each.item.document_id,
                "version": each.item.version,
                "artefact_key": each.artefact_key,
                "embeddings_fingerprint": each.embeddings_fingerprint,
                "index_fingerprint": each.index_fingerprint,
            }
            for each in filled
        ]
        with transaction(self._engine) as connection:
            return frozenset(
                connection.execute(_ADD, {"collection": collection, "rows": to_json(rows)}).scalars().all()
            )

    def switch(self, collection: str) -> int:
        """Let the FILLING collection answer, in one transaction, if no live version is missing in it.

        What the documents' newest finished stages are is taken over with it, so nothing is stale afterwards.

        Returns:
            How many live versions are missing; with any, nothing has changed.

        Raises:
            GenerationSwitchedError: it is not the FILLING one any more.
        """
        with transaction(self._engine) as connection:
            states = connection.execute(
                sa.select(collections.c.name, collections.c.state)
                .where(collections.c.state.in_(("LIVE", "FILLING")))
                .order_by(collections.c.name)
                .with_for_update()
            )
            if {row.name: row.state for row in states}.get(collection) != "FILLING":
                raise GenerationSwitchedError(f"{collection} is not being filled any more")
            missing = connection.execute(
                sa.select(sa.func.count())
                .select_from(documents)
                .join(knowledge_bases, knowledge_bases.c.id == documents.c.kb_id)
                .where(*_lacking(collection))
            ).scalar_one()
            if missing:
                return int(missing)
            for statement in _SWITCH:
                connection.execute(statement, {_SWITCHED_TO.key: collection})
        return 0

    def take_retired(self, *, kept_seconds: float) -> list[CollectionGeneration]:
        """Collections that no query uses any more: retired longer ago than they are kept."""
        statement = sa.select(collections).where(
            collections.c.state == "RETIRED",
            collections.c.retired_at < sa.func.now() - sa.func.make_interval(0, 0, 0, 0, 0, 0, kept_seconds),
        )
        with transaction(self._engine) as connection:
            return [generation_of(row) for row in connection.execute(statement).mappings()]

    def forget(self, collection: str) -> None:
        """The end of a collection that the vector store does not hold any more."""
        with transaction(self._engine) as connection:
            connection.execute(sa.delete(generation_documents).where(generation_documents.c.collection == collection))
            connection.execute(
                sa.update(collections)
                .where(collections.c.name == collection, collections.c.state == "RETIRED")
                .values(state="DROPPED")
            )

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Be the only process that fills; yields False if another one does. The lock ends with the process."""
        with (
            translate_errors(),
            self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
        ):
            mine = bool(connection.execute(sa.select(sa.func.pg_try_advisory_lock(*_LOCK))).scalar())
            try:
                yield mine
            finally:
                if mine:
                    connection.execute(sa.select(sa.func.pg_advisory_unlock(*_LOCK)))

    def is_being_filled(self) -> bool:
        """Whether a process is filling now."""
        with transaction(self._engine) as connection:
            return bool(connection.execute(_IS_LOCKED, {"first": _LOCK[0], "second": _LOCK[1]}).scalar())

    def _set(self, **values: Any) -> None:
        with transaction(self._engine) as connection:
            connection.execute(sa.update(collections).where(collections.c.state == "FILLING").values(**values))


def _lacking(collection: str) -> tuple[sa.ColumnElement[bool], ...]:
    """Documents with a version that answers, or will when its knowledge base is whole, and is not in the collection."""
    is_there = sa.exists().where(generation_documents.c.collection == collection, of_live_version(generation_documents))
    return (
        documents.c.live_version.is_not(None),
        documents.c.status != Status.DELETING,
        knowledge_bases.c.status == "ACTIVE",
        ~is_there,
    )


_ADD = sa.text(
    """
    WITH filling AS (SELECT name FROM collections WHERE name = :collection AND state = 'FILLING' FOR SHARE),
    live AS (
        SELECT r.* FROM jsonb_populate_recordset(NULL::generation_documents, CAST(:rows AS jsonb)) AS r
        JOIN documents AS d ON d.id = r.document_id
        WHERE d.live_version = r.version AND d.status <> 'DELETING'
        FOR KEY SHARE OF d
    )
    INSERT INTO generation_documents
        (collection, document_id, version, artefact_key, embeddings_fingerprint, index_fingerprint)
    SELECT f.name, l.document_id, l.version, l.artefact_key, l.embeddings_fingerprint, l.index_fingerprint
    FROM filling AS f CROSS JOIN live AS l
    ON CONFLICT (collection, document_id, version) DO UPDATE
    SET artefact_key = excluded.artefact_key, embeddings_fingerprint = excluded.embeddings_fingerprint,
        index_fingerprint = excluded.index_fingerprint
    RETURNING document_id
    """
)

_SWITCHED_TO = sa.bindparam("switched_to", type_=sa.Text)

_OF_COLLECTION = (
    generation_documents.c.collection == _SWITCHED_TO,
    generation_documents.c.document_id == stage_artefacts.c.document_id,
    generation_documents.c.version == stage_artefacts.c.version,
)


def _summary(**values: str) -> sa.ColumnElement[Any]:
    """The summary of a stage with facts of the collection in the place of the former ones."""
    own = sa.select(
        sa.func.jsonb_build_object(*(part for name, column in values.items() for part in (name, collections.c[column])))
    ).where(collections.c.name == _SWITCHED_TO)
    return stage_artefacts.c.summary.op("||")(own.scalar_subquery())


_SWITCH: tuple[sa.Update, ...] = (
    sa.update(collections).where(collections.c.state == "LIVE").values(state="RETIRED", retired_at=sa.func.now()),
    sa.update(collections).where(collections.c.name == _SWITCHED_TO).values(state="LIVE", refusal=None),
    sa.update(document_versions)
    .where(
        generation_documents.c.collection == _SWITCHED_TO,
        generation_documents.c.document_id == document_versions.c.document_id,
        generation_documents.c.version == document_versions.c.version,
    )
    .values(collection=generation_documents.c.collection),
    sa.update(stage_artefacts)
    .where(*_OF_COLLECTION, stage_artefacts.c.stage == Stage.EMBEDDINGS)
    .values(
        fingerprint=generation_documents.c.embeddings_fingerprint,
        artefact_key=generation_documents.c.artefact_key,
        summary=_summary(embedder="embedder", dimensions="dimensions"),
    ),
    sa.update(stage_artefacts)
    .where(*_OF_COLLECTION, stage_artefacts.c.stage == Stage.INDEX_WRITES)
    .values(
        fingerprint=generation_documents.c.index_fingerprint,
        summary=_summary(collection="name"),
    ),
)

_IS_LOCKED = sa.text(
    """
    SELECT EXISTS (
        SELECT 1 FROM pg_locks
        WHERE locktype = 'advisory' AND granted AND objsubid = 2
          AND classid = CAST(:first AS bigint)::oid AND objid = CAST(:second AS bigint)::oid
          AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    )
    """
)
