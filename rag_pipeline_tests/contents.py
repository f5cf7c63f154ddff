"""What the stores hold, read as directly as a test can."""

from dataclasses import dataclass

import sqlalchemy as sa

from rag_pipeline.adapters.postgres.schema import chunks, documents
from rag_pipeline.core.documents import Status
from rag_pipeline.stages.services import Services


@dataclass(frozen=True, kw_only=True)
class Contents:
    """Everything below the facts' rows of documents, by store."""

    objects: frozenset[str]
    vectors: frozenset[str]
    """Chunk ids in all collections."""
    chunk_rows: frozenset[str]
    snapshots: frozenset[str]
    """Paths below the snapshot folder."""

    def of(self, document_id: str) -> "Contents":
        """Only what bears the document's id."""
        return Contents(
            objects=frozenset(key for key in self.objects if document_id in key),
            vectors=frozenset(each for each in self.vectors if each.startswith(document_id)),
            chunk_rows=frozenset(each for each in self.chunk_rows if each.startswith(document_id)),
            snapshots=frozenset(path for path in self.snapshots if document_id in path),
        )


NOTHING = Contents(objects=frozenset(), vectors=frozenset(), chunk_rows=frozenset(), snapshots=frozenset())


def contents(services: Services) -> Contents:
    """What the stores hold now."""
    root = services.settings.snapshots
    vectors: set[str] = set()
    for generation in services.facts.generations():
        if services.vectors.exists(generation):
            vectors.update(row.chunk_id for page in services.vectors.scan(generation) for row in page)
    with services.facts.engine.connect() as connection:
        rows = frozenset(connection.execute(sa.select(chunks.c.id)).scalars())
    return Contents(
        objects=frozenset(info.key for info in services.objects.list("")),
        vectors=frozenset(vectors),
        chunk_rows=rows,
        snapshots=frozenset(str(path.relative_to(root)) for path in root.rglob("*.json")),
    )


def assert_consistent(services: Services, *, where: str = "") -> None:
    """No orphan in any store, nothing missing of what is READY, nothing partial of what is not.

    For documents that are all settled: nobody writes or removes. `where` goes into the messages.
    """
    now = contents(services)
    with services.facts.engine.connect() as connection:
        rows = connection.execute(sa.select(documents)).all()
        live_chunks = frozenset(
            connection.execute(
                sa.select(chunks.c.id)
                .join(documents, documents.c.id == chunks.c.document_id)
                .where(chunks.c.version == documents.c.live_version)
            ).scalars()
        )
    known = {row.id for row in rows}
    assert {row.status for row in rows} <= {Status.READY, Status.NO_CONTENT, Status.FAILED, Status.CANCELED}
    assert {row.batch_id for row in rows} <= {None}
    assert {key.split("/")[2 if key.startswith("kb/") else 1] for key in now.objects} <= known
    assert {path.split("/")[1] for path in now.snapshots} <= known
    assert live_chunks <= now.vectors
    assert now.vectors <= now.chunk_rows
    for row in rows:
        own = now.of(row.id)
        assert any("/source" in key for key in own.objects), f"{where}: the original of {row.source_path} is lost"
        if row.status == Status.READY:
            assert own.chunk_rows, f"{where}: {row.source_path} is READY without chunks"
            assert own.chunk_rows == own.vectors
            assert f"{row.kb_id}/{row.id}/chunks.json" in own.snapshots
        if row.status == Status.CANCELED:
            assert own.chunk_rows == own.vectors == own.chunk_rows & live_chunks
