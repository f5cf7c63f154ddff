"""Rows of chunks, images and paid embeddings, as the stages write them; queries read them in `passages`.

Rows of a version are upserted by id and the tail is trimmed by id.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from rag_pipeline.adapters.postgres.engine import transaction
from rag_pipeline.adapters.postgres.json_rows import to_json
from rag_pipeline.adapters.postgres.schema import chunks, images, paid_embeddings
from rag_pipeline.core.chunk import Chunk, chunk_id, parent_id
from rag_pipeline.core.work import WorkItem


@dataclass(frozen=True, slots=True, kw_only=True)
class PaidVector:
    """Where the vector of an embedding input lies."""

    artefact_key: str
    position: int
    """Row of the Parquet file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRow:
    """One extracted image, stored as an object."""

    id: str
    position: int
    object_key: str
    media_type: str
    width: int
    height: int
    page: int | None
    bbox: Mapping[str, float] | None
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredVectors:
    """Vectors of one document version that an artefact holds."""

    item: WorkItem
    artefact_key: str
    input_hashes: tuple[str, ...]
    """In the order of the artefact's rows."""


class ChunkRows:
    """What is known of chunks and images in PostgreSQL."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def upsert(self, documents_chunks: Sequence[tuple[WorkItem, Sequence[Chunk]]]) -> None:
        """Make the rows of these versions exactly these chunks."""
        rows = [_chunk_row(item, chunk) for item, found in documents_chunks for chunk in found]
        tails = [
            {"document_id": item.document_id, "version": item.version, "chunk_index": len(found)}
            for item, found in documents_chunks
        ]
        with transaction(self._engine) as connection:
            connection.execute(_UPSERT_CHUNKS, {"rows": to_json(rows)})
            connection.execute(_TRIM_CHUNKS, {"rows": to_json(tails)})

    def counts(self, items: Sequence[WorkItem]) -> dict[str, int]:
        """Rows per document for the versions of the items."""
        statement = (
            sa.select(chunks.c.document_id, sa.func.count().label("rows"))
            .where(
                sa.tuple_(chunks.c.document_id, chunks.c.version).in_(
                    [(item.document_id, item.version) for item in items]
                )
            )
            .group_by(chunks.c.document_id)
        )
        with transaction(self._engine) as connection:
            return {row.document_id: row.rows for row in connection.execute(statement)}

    def ids(self, document_id: str, version: int) -> list[str]:
        """Ids of a version's rows, in order."""
        statement = (
            sa.select(chunks.c.id)
            .where(chunks.c.document_id == document_id, chunks.c.version == version)
            .order_by(chunks.c.chunk_index)
        )
        with transaction(self._engine) as connection:
            return list(connection.execute(statement).scalars())

    def delete_version(self, document_id: str, version: int) -> None:
        """Remove a version's chunk, image and paid embedding rows."""
        with transaction(self._engine) as connection:
            for table in (chunks, images, paid_embeddings):
                connection.execute(
                    sa.delete(table).where(table.c.document_id == document_id, table.c.version == version)
                )

    def upsert_images(self, item: WorkItem, rows: Sequence[ImageRow]) -> None:
        """Make the image rows of a version exactly these."""
        payload = [
            {
                "id": row.id,
                "document_id": item.document_id,
                "version": item.version,
                "position": row.position,
                "object_key": row.object_key,
                "media_type": row.media_type,
                "width": row.width,
                "height": row.height,
                "page": row.page,
                "bbox": dict(row.bbox) if row.bbox else None,
                "description": row.description,
            }
            for row in rows
        ]
        with transaction(self._engine) as connection:
            connection.execute(
                sa.delete(images).where(
                    images.c.document_id == item.document_id,
                    images.c.version == item.version,
                    images.c.position.not_in([row.position for row in rows]),
                )
            )
            connection.execute(_UPSERT_IMAGES, {"rows": to_json(payload)})

    def find_paid(self, embedder: str, input_hashes: Sequence[str]) -> dict[str, PaidVector]:
        """Where vectors for these inputs have been paid for already."""
        statement = (
            sa.select(paid_embeddings.c.input_hash, paid_embeddings.c.artefact_key, paid_embeddings.c.position)
            .where(
                paid_embeddings.c.embedder == embedder,
                paid_embeddings.c.input_hash == sa.func.any(sa.bindparam("hashes", type_=sa.ARRAY(sa.Text))),
            )
            .distinct(paid_embeddings.c.input_hash)
        )
        with transaction(self._engine) as connection:
            return {
                input_hash: PaidVector(artefact_key=artefact_key, position=position)
                for input_hash, artefact_key, position in connection.execute(statement, {"hashes": list(input_hashes)})
            }

    def add_paid(self, embedder: str, stored: Sequence[StoredVectors]) -> None:
        """Note that the vectors of inputs lie in artefacts, at their position; repeated inputs count once.

        Nothing is noted of documents that have just been deleted.
        """
        rows = [
            {
                "embedder": embedder,
                "input_hash": input_hash,
                "document_id": each.item.document_id,
                "version": each.item.version,
                "artefact_key": each.artefact_key,
                "position": position,
            }
            for each in stored
            for input_hash, position in _first_positions(each.input_hashes).items()
        ]
        with transaction(self._engine) as connection:
            connection.execute(_ADD_PAID, {"rows": to_json(rows)})


def _first_positions(input_hashes: Sequence[str]) -> dict[str, int]:
    return {input_hash: position for position, input_hash in reversed(list(enumerate(input_hashes)))}


def content_hash(text: str) -> str:
    """SHA-256 of a text, 64 hex digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def _chunk_row(item: WorkItem, chunk: Chunk) -> dict[str, object]:
    return {
        "id": chunk_id(item.document_id, item.version, chunk.index),
        "document_id": item.document_id,
        "version": item.version,
        "chunk_index": chunk.index,
        "parent_id": parent_id(item.document_id, item.version, chunk.section),
        "content": chunk.text,
        "heading_path": list(chunk.heading_path),
        "page": chunk.page,
        "page_end": chunk.page_end,
        "start_offset": chunk.start,
        "end_offset": chunk.end,
        "tokens": chunk.tokens,
        "content_hash": content_hash(chunk.text),
        "locator": {
            **chunk.metadata,
            "regions": [
                {"page": region.page, "bbox": region.bbox and region.bbox.as_list()} for region in chunk.regions
            ],
            "block_types": list(chunk.block_types),
        },
    }


_UPSERT_CHUNKS = sa.text(
    """
    INSERT INTO chunks
    SELECT * FROM jsonb_populate_recordset(NULL::chunks, CAST(:rows AS jsonb))
    ON CONFLICT (id) DO UPDATE
    SET parent_id = excluded.parent_id, content = excluded.content, heading_path = excluded.heading_path,
        page = excluded.page, page_end = excluded.page_end, start_offset = excluded.start_offset,
        end_offset = excluded.end_offset, tokens = excluded.tokens, content_hash = excluded.content_hash,
        locator = excluded.locator
    """
)

_TRIM_CHUNKS = sa.text(
    """
    DELETE FROM chunks AS c
    USING jsonb_to_recordset(CAST(:rows AS jsonb)) AS r(document_id text, version int, chunk_index int)
    WHERE c.document_id = r.document_id AND c.version = r.version AND c.chunk_index >= r.chunk_index
    """
)

_UPSERT_IMAGES = sa.text(
    """
    INSERT INTO images
    SELECT * FROM jsonb_populate_recordset(NULL::images, CAST(:rows AS jsonb))
    ON CONFLICT (document_id, version, position) DO UPDATE
    SET id = excluded.id, object_key = excluded.object_key, media_type = excluded.media_type, width = excluded.width,
        height = excluded.height, page = excluded.page, bbox = excluded.bbox, description = excluded.description
    """
)

_ADD_PAID = sa.text(
    """
    INSERT INTO paid_embeddings
    SELECT r.* FROM jsonb_populate_recordset(NULL::paid_embeddings, CAST(:rows AS jsonb)) AS r
    JOIN documents AS d ON d.id = r.document_id
    FOR KEY SHARE OF d
    ON CONFLICT (embedder, input_hash, document_id, version) DO UPDATE
    SET artefact_key = excluded.artefact_key, position = excluded.position
    """
)
