"""What queries read: which documents may be used, the chunks of live versions, their sections and images.

Metadata and access are looked at here, in PostgreSQL, at the moment of the query: they may change without a new
embedding, and what has been taken from somebody is gone at once.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from rag_pipeline.adapters.postgres.engine import reading
from rag_pipeline.adapters.postgres.live_generation import generation_of
from rag_pipeline.adapters.postgres.schema import (
    chunks,
    collections,
    document_versions,
    documents,
    images,
    knowledge_bases,
    of_live_version,
    stage_artefacts,
)
from rag_pipeline.core.documents import Stage, Status
from rag_pipeline.core.filters import ACCESS_FIELD, FILE_FIELDS, Condition, DocumentScope, Scalar
from rag_pipeline.core.partitions import has_control_characters
from rag_pipeline.core.passages import StoredChunk, StoredImage
from rag_pipeline.core.ports import CollectionGeneration

SECTION_CHUNKS = 200
"""Chunks before and after a hit that are read of its section: with at most 2,000 tokens it has hardly ever more."""

_LIVE_VERSION = document_versions.alias("live_version_row")


class Passages:
    """The documents of one knowledge base that one query may use."""

    def __init__(self, engine: sa.Engine, *, kb_id: str, scope: DocumentScope) -> None:
        self._engine = engine
        self._visible = [
            documents.c.kb_id == kb_id,
            documents.c.status != Status.DELETING,
            knowledge_bases.c.status == "ACTIVE",
            *_scope_clauses(scope),
        ]

    def document_ids(self, *, limit: int | None) -> tuple[str, ...] | None:
        """Ids of the documents that may be used; None if they are more than `limit`."""
        statement = self.documents_query().order_by(documents.c.id)
        if limit is not None:
            statement = statement.limit(limit + 1)
        with reading(self._engine) as connection:
            found = tuple(connection.execute(statement).scalars())
        return None if limit is not None and len(found) > limit else found

    def documents_query(self) -> sa.Select[tuple[str]]:
        """Ids of the documents that may be used, as a query."""
        return self._seen(sa.select(documents.c.id))

    def parsed_artefact(self, document_id: str, version: int) -> str | None:
        """Key of the parsed blocks of a live version that may be used; None if there is none."""
        return self._key(
            stage_artefacts.c.artefact_key,
            stage_artefacts.c.document_id == document_id,
            stage_artefacts.c.version == version,
            stage_artefacts.c.stage == Stage.PARSED_BLOCKS,
        )

    def live(self, chunk_ids: Sequence[str]) -> dict[str, StoredChunk]:
        """Those of the chunks that may be used and whose version answers queries now; others are left out."""
        return {chunk.chunk_id: chunk for chunk in self._chunks(chunks.c.id == _any(chunk_ids))}

    def sections(self, found: Sequence[StoredChunk]) -> dict[str, list[StoredChunk]]:
        """All chunks of the sections that the given chunks belong to, in order, by section id."""
        sections: dict[str, list[StoredChunk]] = {}
        if not found:
            return sections
        # There is no index on the section; with document and position the one on those finds the rows.
        of_sections = sa.or_(
            *(
                sa.and_(
                    chunks.c.document_id == each.document_id,
                    chunks.c.version == each.version,
                    chunks.c.chunk_index.between(each.index - SECTION_CHUNKS, each.index + SECTION_CHUNKS),
                    chunks.c.parent_id == each.parent_id,
                )
                for each in {chunk.parent_id: chunk for chunk in found}.values()
            )
        )
        for chunk in self._chunks(of_sections):
            sections.setdefault(chunk.parent_id, []).append(chunk)
        return sections

    def images(self, document_ids: Sequence[str]) -> dict[str, list[StoredImage]]:
        """Images of the live versions of the documents, in order, by document id."""
        statement = (
            self._seen(sa.select(images).join(documents, of_live_version(images)))
            .where(images.c.document_id.in_(document_ids))
            .order_by(images.c.document_id, images.c.position)
        )
        found: dict[str, list[StoredImage]] = {}
        with reading(self._engine) as connection:
            for row in connection.execute(statement).mappings():
                found.setdefault(row["document_id"], []).append(
                    StoredImage(
                        id=row["id"],
                        document_id=row["document_id"],
                        position=row["position"],
                        page=row["page"],
                        description=row["description"],
                    )
                )
        return found

    def image_key(self, image_id: str) -> str | None:
        """Object key of an image of a live version; None if there is none that may be used."""
        return self._key(images.c.object_key, images.c.id == image_id)

    def original_key(self, document_id: str, version: int) -> str | None:
        """Object key of the original of a live version; None if there is none that may be used."""
        return self._key(
            document_versions.c.object_key,
            document_versions.c.document_id == document_id,
            document_versions.c.version == version,
        )

    def _key(self, column: sa.Column[Any], *wanted: sa.ColumnElement[bool]) -> str | None:
        """A column of a row of a live version that may be used; None if there is none."""
        statement = self._seen(sa.select(column).join(documents, of_live_version(column.table))).where(*wanted)
        with reading(self._engine) as connection:
            found: str | None = connection.execute(statement).scalar()
        return found

    def _chunks(self, wanted: sa.ColumnElement[bool]) -> list[StoredChunk]:
        of_live = sa.select(
            chunks,
            documents.c.kb_id,
            documents.c.file_name,
            documents.c.source_path,
            _LIVE_VERSION.c.metadata.label("document_metadata"),
        ).join(documents, of_live_version(chunks))
        statement = self._seen(of_live).where(wanted).order_by(chunks.c.document_id, chunks.c.chunk_index)
        with reading(self._engine) as connection:
            return [_stored_chunk(row) for row in connection.execute(statement).mappings().all()]

    def _seen(self, statement: sa.Select[Any]) -> sa.Select[Any]:
        """A query over `documents`, of those that may be used; access and filters are of the live version."""
        return (
            statement.join(knowledge_bases, knowledge_bases.c.id == documents.c.kb_id)
            .join(_LIVE_VERSION, of_live_version(_LIVE_VERSION))
            .where(*self._visible)
        )


def search_target(engine: sa.Engine, kb: str) -> tuple[str, CollectionGeneration, str] | None:
    """Everything a query has to know before it searches, in one round trip.

    Returns:
        Id of the active knowledge base of that name, the collection that answers queries, and the key of its embedder;
        None if there is no such knowledge base or no collection yet.
    """
    statement = (
        sa.select(knowledge_bases.c.id.label("kb_id"), collections)
        .join_from(knowledge_bases, collections, collections.c.state == "LIVE")
        .where(knowledge_bases.c.name == kb, knowledge_bases.c.status == "ACTIVE")
    )
    with reading(engine) as connection:
        row = None if has_control_characters(kb) else connection.execute(statement).mappings().first()
    if row is None:
        return None
    return row["kb_id"], generation_of(row), row["embedder"]


def knowledge_base_of(engine: sa.Engine, evidence_id: str) -> str | None:
    """Id of the knowledge base that an image or a chunk of this id is in."""
    if has_control_characters(evidence_id):
        return None
    of_image = sa.select(images.c.document_id).where(images.c.id == evidence_id)
    of_chunk = sa.select(chunks.c.document_id).where(chunks.c.id == evidence_id)
    statement = sa.select(documents.c.kb_id).where(documents.c.id.in_(of_image.union_all(of_chunk)))
    with reading(engine) as connection:
        return connection.execute(statement).scalar()


def _scope_clauses(scope: DocumentScope) -> list[sa.ColumnElement[bool]]:
    clauses = [_condition_clause(condition) for condition in scope.conditions]
    if scope.document_ids is not None:
        clauses.append(documents.c.id == _any(scope.document_ids))
    if scope.principals is not None:
        clauses.append(_access_clause(scope.principals))
    return clauses


def _any(values: Sequence[str]) -> sa.ColumnElement[str]:
    """All values as one parameter: the statement stays the same, and is compiled once, for any number of them."""
    return sa.func.any(sa.literal(list(values), type_=sa.ARRAY(sa.Text)))


def _access_clause(principals: Sequence[str]) -> sa.ColumnElement[bool]:
    """Documents without the field, or whose text or list of texts names one of the principals."""
    allowed = _LIVE_VERSION.c.metadata[ACCESS_FIELD]
    names = sa.bindparam("scope_principals", list(principals), type_=sa.ARRAY(sa.Text))
    return sa.or_(
        sa.not_(_LIVE_VERSION.c.metadata.has_key(ACCESS_FIELD)),
        sa.and_(sa.func.jsonb_typeof(allowed).in_(("array", "string")), allowed.op("?|")(names)),
    )


def _condition_clause(condition: Condition) -> sa.ColumnElement[bool]:
    """The condition on the JSON value of the field; SQL's NULL, which a missing field gives, never decides alone."""
    column = (
        sa.func.to_jsonb(documents.c[condition.field], type_=JSONB)
        if condition.field in FILE_FIELDS
        else _LIVE_VERSION.c.metadata[condition.field]
    )
    match condition.operator:
        case "exists":
            return column.is_not(None) if condition.values[0] else column.is_(None)
        case "eq" | "in":
            return sa.func.coalesce(column.in_(_json_values(condition)), sa.false())
        case "ne" | "not_in":
            return sa.not_(sa.func.coalesce(column.in_(_json_values(condition)), sa.false()))
        case "contains":
            listed = sa.cast(sa.literal(json.dumps([condition.values[0]])), JSONB)
            is_list = sa.func.jsonb_typeof(column) == "array"
            return sa.func.coalesce(sa.and_(is_list, column.op("@>")(listed)), sa.false())
        case "lt" | "lte" | "gt" | "gte":
            return _comparison(column, condition.operator, condition.values[0])


def _comparison(column: sa.ColumnElement[Any], operator: str, value: Scalar) -> sa.ColumnElement[bool]:
    """Only values of the same kind compare; CASE keeps PostgreSQL from casting the others first."""
    text = column.op("#>>")(sa.text("'{}'"))
    left: sa.ColumnElement[Any]
    right: sa.ColumnElement[Any]
    if isinstance(value, str):
        kind, left, right = "string", sa.collate(sa.cast(text, sa.Text), "C"), sa.literal(value)
    else:
        kind, left, right = "number", sa.cast(text, sa.Numeric), sa.cast(sa.literal(str(value)), sa.Numeric)
    compared = {"lt": left < right, "lte": left <= right, "gt": left > right, "gte": left >= right}[operator]
    return sa.case((sa.func.jsonb_typeof(column) == kind, compared), else_=sa.false())


def _json_values(condition: Condition) -> list[sa.ColumnElement[Any]]:
    return [sa.cast(sa.literal(json.dumps(value)), JSONB) for value in condition.values]


def _stored_chunk(row: Mapping[Any, Any]) -> StoredChunk:
    return StoredChunk(
        chunk_id=row["id"],
        document_id=row["document_id"],
        kb_id=row["kb_id"],
        version=row["version"],
        file_name=row["file_name"],
        source_path=row["source_path"],
        text=row["content"],
        start=row["start_offset"],
        end=row["end_offset"],
        parent_id=row["parent_id"],
        index=row["chunk_index"],
        heading_path=tuple(row["heading_path"]),
        page=row["page"],
        page_end=row["page_end"],
        metadata={**row["document_metadata"], **row["locator"]},
    )
