"""Rows of a document's next version of the same bytes: what would come out the same is taken over, not done again."""

from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from rag_pipeline.adapters.postgres.schema import document_versions, images, paid_embeddings, stage_artefacts
from rag_pipeline.core.documents import Stage
from rag_pipeline.core.partitions import image_id
from rag_pipeline.core.work import WorkItem

_KEPT_ACROSS_VERSIONS = frozenset({Stage.SOURCE_DOCUMENT, Stage.PARSED_BLOCKS, Stage.CHUNKS, Stage.EMBEDDINGS})
"""Snapshots and index rows carry the version and are written anew."""

_OF_BYTES = ("sha256", "size_bytes", "object_key", "metadata", "created_by")


def copy_version(connection: sa.Connection, item: WorkItem, wanted: Mapping[Stage, str]) -> None:
    """Write the rows of the version after the item's.

    Args:
        connection: an open transaction that has set the document to the next version.
        item: the document with its present version.
        wanted: fingerprints under the present configuration; stages that have another one are not taken over.
    """
    kept = _copy_artefacts(connection, item, wanted)
    described = []
    if Stage.PARSED_BLOCKS in kept:
        described += ["pages", "warnings"]
        _copy_images(connection, item)
    if Stage.CHUNKS in kept:
        described += ["chunk_count", "token_count"]
    if Stage.EMBEDDINGS in kept:
        _copy_rows(connection, paid_embeddings, item)
    _copy_rows(connection, document_versions, item, [*_OF_BYTES, *described])


def _copy_artefacts(connection: sa.Connection, item: WorkItem, wanted: Mapping[Stage, str]) -> frozenset[Stage]:
    """Take over the artefacts that would come out the same; returns their stages."""
    columns = ["document_id", "version", "stage", "fingerprint", "artefact_key", "attempt", "summary"]
    same = sa.tuple_(stage_artefacts.c.stage, stage_artefacts.c.fingerprint).in_(
        [(stage.value, value) for stage, value in wanted.items() if stage in _KEPT_ACROSS_VERSIONS]
    )
    copied = connection.execute(
        sa.insert(stage_artefacts)
        .from_select(
            columns,
            sa.select(
                stage_artefacts.c.document_id,
                sa.literal(item.version + 1),
                *(stage_artefacts.c[name] for name in columns[2:]),
            ).where(
                stage_artefacts.c.document_id == item.document_id,
                stage_artefacts.c.version == item.version,
                same,
            ),
        )
        .returning(stage_artefacts.c.stage)
    )
    return frozenset(map(Stage, copied.scalars()))


def _copy_images(connection: sa.Connection, item: WorkItem) -> None:
    """The next version's images are the same objects under ids of its own."""
    of_version = sa.and_(images.c.document_id == item.document_id, images.c.version == item.version)
    rows = [dict(row) for row in connection.execute(sa.select(images).where(of_version)).mappings()]
    for row in rows:
        row["version"] = item.version + 1
        row["id"] = image_id(item.document_id, row["version"], row["page"], row["position"])
    if rows:
        connection.execute(sa.insert(images), rows)


def _copy_rows(connection: sa.Connection, table: sa.Table, item: WorkItem, names: Sequence[str] | None = None) -> None:
    """Copy rows of the present version to the next, all columns or those named."""
    copied = [column.name for column in table.c if column.name != "version"]
    if names is not None:
        copied = ["document_id", *names]
    connection.execute(
        sa.insert(table).from_select(
            ["version", *copied],
            sa.select(sa.literal(item.version + 1), *(table.c[name] for name in copied)).where(
                table.c.document_id == item.document_id, table.c.version == item.version
            ),
        )
    )
