"""The contract of `SnapshotStore`."""

import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rag_pipeline.adapters.object_snapshots import ObjectSnapshotStore
from rag_pipeline.adapters.object_store import MinioObjectStore
from rag_pipeline.adapters.snapshots import FileSnapshotStore
from rag_pipeline.core.ports import SnapshotRef, SnapshotStore
from rag_pipeline.errors import InternalError, SnapshotWriteError
from rag_pipeline.settings import Settings

FIRST = SnapshotRef(kb_id="kb1", document_id="doc1", version=1)
SECOND = SnapshotRef(kb_id="kb1", document_id="doc1", version=2)
OTHER = SnapshotRef(kb_id="kb1", document_id="doc2", version=1)


@pytest.fixture(params=["files", "objects"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> SnapshotStore:
    if request.param == "files":
        return FileSnapshotStore(tmp_path / "chunk snapshots")
    settings: Settings = request.getfixturevalue("settings")
    objects = MinioObjectStore.from_settings(settings)
    objects.ensure_bucket()
    return ObjectSnapshotStore(objects, prefix=f"snapshots/{uuid.uuid4().hex}/")


def content(version: int, text: str = "text") -> dict[str, object]:
    return {"version": version, "chunks": [{"index": 0, "text": text}]}


def test_what_is_written_is_read(store: SnapshotStore) -> None:
    written = content(1, '中文 "quotes" \n 😀')
    store.write(FIRST, written)
    assert store.read(FIRST) == written


def test_the_version_is_in_the_snapshot_even_if_the_content_has_none(store: SnapshotStore) -> None:
    store.write(SECOND, {"chunks": []})
    store.publish(SECOND)
    assert store.read(SECOND) == {"version": 2, "chunks": []}


def test_a_snapshot_that_was_never_written(store: SnapshotStore) -> None:
    assert store.read(FIRST) is None
    store.write(OTHER, content(1))
    assert store.read(FIRST) is None


def test_writing_again_replaces(store: SnapshotStore) -> None:
    location = store.write(FIRST, content(1, "old"))
    assert store.write(FIRST, content(1, "new")) == location
    assert store.read(FIRST) == content(1, "new")


def test_a_published_snapshot_is_read_under_its_version(store: SnapshotStore) -> None:
    store.write(FIRST, content(1))
    location = store.publish(FIRST)
    assert store.publish(FIRST) == location
    assert store.read(FIRST) == content(1)
    assert store.read(SECOND) is None


def test_the_next_version_takes_the_place_of_the_live_one(store: SnapshotStore) -> None:
    store.write(FIRST, content(1))
    store.publish(FIRST)
    store.write(SECOND, content(2))
    assert store.read(FIRST) == content(1)
    assert store.read(SECOND) == content(2)
    store.publish(SECOND)
    assert store.read(FIRST) is None
    assert store.read(SECOND) == content(2)


def test_publishing_a_missing_snapshot_is_an_error(store: SnapshotStore) -> None:
    with pytest.raises(SnapshotWriteError):
        store.publish(FIRST)
    store.write(FIRST, content(1))
    store.publish(FIRST)
    with pytest.raises(SnapshotWriteError):
        store.publish(SECOND)
    assert store.read(FIRST) == content(1)


def test_one_version_is_deleted_and_the_live_one_stays(store: SnapshotStore) -> None:
    store.write(FIRST, content(1))
    store.publish(FIRST)
    store.write(SECOND, content(2))
    store.delete("kb1", "doc1", version=2)
    store.delete("kb1", "doc1", version=2)
    assert store.read(SECOND) is None
    assert store.read(FIRST) == content(1)


def test_a_document_is_deleted_with_everything(store: SnapshotStore) -> None:
    store.write(FIRST, content(1))
    store.publish(FIRST)
    store.write(SECOND, content(2))
    store.write(OTHER, content(1))
    store.delete("kb1", "doc1")
    store.delete("kb1", "doc1")
    assert store.read(FIRST) is None
    assert store.read(SECOND) is None
    assert store.read(OTHER) == content(1)


@pytest.mark.parametrize("bad", ["", ".", "..", "../up", "a/b", "a\\b", "/etc", "-x", "a\0b", "x" * 129], ids=repr)
def test_an_id_that_is_a_path_is_refused(store: SnapshotStore, bad: str) -> None:
    for ref in (
        SnapshotRef(kb_id=bad, document_id="doc1", version=1),
        SnapshotRef(kb_id="kb1", document_id=bad, version=1),
    ):
        with pytest.raises(InternalError):
            store.write(ref, content(1))
        with pytest.raises(InternalError):
            store.read(ref)
        with pytest.raises(InternalError):
            store.delete(ref.kb_id, ref.document_id)


def test_readers_see_whole_snapshots_while_they_are_replaced(store: SnapshotStore) -> None:
    texts = [letter * 200_000 for letter in "abcd"]
    store.write(FIRST, content(1, texts[0]))

    def write(text: str) -> None:
        for _ in range(5):
            store.write(FIRST, content(1, text))

    def read() -> list[object]:
        return [store.read(FIRST) for _ in range(40)]

    with ThreadPoolExecutor(5) as pool:
        reading = pool.submit(read)
        list(pool.map(write, texts))
        for found in reading.result():
            assert found in [content(1, text) for text in texts]


def test_listing_tells_published_and_unpublished_versions(store: SnapshotStore) -> None:
    assert list(store.list()) == []
    for ref in (FIRST, SECOND, OTHER):
        store.write(ref, content(ref.version))
    store.publish(FIRST)
    found = {(file.kb_id, file.document_id, file.version) for file in store.list()}
    assert found == {("kb1", "doc1", None), ("kb1", "doc1", 2), ("kb1", "doc2", 1)}
    assert all(abs(file.modified_at - datetime.now(UTC)) < timedelta(hours=1) for file in store.list())


def test_deleting_counts_the_snapshots(store: SnapshotStore) -> None:
    for ref in (FIRST, SECOND, OTHER):
        store.write(ref, content(ref.version))
    assert store.delete("kb1", "doc1", version=1) == 1
    assert store.delete("kb1", "doc1", version=1) == 0
    assert store.delete("kb1", "doc1") == 1
    assert store.delete_knowledge_base("kb1") == 1
    assert store.delete_knowledge_base("kb1") == 0
    assert list(store.list()) == []


def test_a_version_is_there_under_either_name(store: SnapshotStore) -> None:
    assert not store.has(FIRST)
    store.write(FIRST, content(1))
    assert store.has(FIRST)
    assert not store.has(SECOND)
    store.publish(FIRST)
    assert store.has(FIRST)
    assert not store.has(OTHER)
    assert not store.has(SECOND), "what is published is another version"
