"""What the intake tests look at: the real bucket and the real tables."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import sqlalchemy as sa

from rag_pipeline.adapters.object_store import MinioObjectStore
from rag_pipeline.adapters.postgres.facts import Facts
from rag_pipeline.adapters.postgres.schema import document_versions, documents
from rag_pipeline.core.documents import Status
from rag_pipeline.core.ports import ObjectStore
from rag_pipeline.settings import Settings

EXECUTABLE = b"MZ\x90\x00\x03\x00\x00\x00\x04\x00\x00\x00\xff\xff\x00\x00\xb8\x00\x00\x00"
"""How Windows programs begin."""
LIMIT = 100_000
"""Upload limit of the tests, in bytes."""


class InterruptedStore(MinioObjectStore):
    """The real store, with something that happens before or after an upload, or a download, of certain keys."""

    before_put: Callable[[str], None] | None = None
    after_put: Callable[[str], None] | None = None
    after_download: Callable[[str], None] | None = None

    @classmethod
    def of(cls, settings: Settings) -> "InterruptedStore":
        endpoint, access_key, secret_key = settings.require_s3()
        return cls(
            endpoint=endpoint,
            access_key=access_key,
            secret_key=secret_key,
            region=settings.s3_region,
            bucket=settings.s3_bucket,
        )

    def put(self, key: str, content: bytes | Path, *, content_type: str = "application/octet-stream") -> str:
        if self.before_put:
            self.before_put(key)
        etag = super().put(key, content, content_type=content_type)
        if self.after_put:
            self.after_put(key)
        return etag

    def download(self, key: str, path: Path) -> None:
        super().download(key, path)
        if self.after_download:
            self.after_download(key)


def keys(objects: ObjectStore) -> list[str]:
    """Every key of the bucket."""
    return [info.key for info in objects.list("")]


def assert_nothing_stored(facts: Facts, objects: ObjectStore) -> None:
    """Neither a row nor an object."""
    with facts.engine.connect() as connection:
        assert connection.execute(sa.select(documents.c.source_path)).scalars().all() == []
    assert keys(objects) == []


def assert_originals_are_those_of_the_rows(facts: Facts, objects: ObjectStore) -> None:
    """Every version's original has the hash and size of its row, and the bucket holds no other original."""
    with facts.engine.connect() as connection:
        rows = connection.execute(sa.select(document_versions)).all()
    for row in rows:
        content = objects.get(row.object_key)
        assert (hashlib.sha256(content).hexdigest(), len(content)) == (row.sha256, row.size_bytes)
    assert sorted(key for key in keys(objects) if "/source" in key) == sorted(row.object_key for row in rows)


def set_all(facts: Facts, status: Status) -> None:
    """Set the status of every document, as the pipeline would."""
    with facts.engine.begin() as connection:
        connection.execute(sa.update(documents).values(status=status))
