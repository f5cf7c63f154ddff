import os
import tracemalloc
from pathlib import Path

import pytest
import sqlalchemy as sa

from rag_pipeline.adapters.object_store import MinioObjectStore
from rag_pipeline.adapters.postgres.facts import Facts
from rag_pipeline.adapters.postgres.schema import document_versions, documents, knowledge_bases
from rag_pipeline.core.documents import KnowledgeBase, Status
from rag_pipeline.core.ports import ObjectStore
from rag_pipeline.errors import ConfigurationError, ObjectStoreUnavailableError
from rag_pipeline.intake.inbox import Inbox, InboxBite
from rag_pipeline.intake.submission import Submission
from rag_pipeline.settings import Settings
from rag_pipeline_tests.intake.stores import (
    EXECUTABLE,
    LIMIT,
    InterruptedStore,
    assert_originals_are_those_of_the_rows,
    keys,
    set_all,
)


def inbox_of(facts: Facts, objects: ObjectStore) -> Inbox:
    submission = Submission(facts=facts, objects=objects, max_upload_bytes=LIMIT)
    return Inbox(submission=submission, objects=objects, max_upload_bytes=LIMIT)


@pytest.fixture
def inbox(facts: Facts, objects: MinioObjectStore) -> Inbox:
    return inbox_of(facts, objects)


def take(inbox: Inbox, *, max_files: int = 100, max_bytes: int = 10_000_000, cursor: str = "") -> InboxBite:
    return inbox.take(max_files=max_files, max_bytes=max_bytes, cursor=cursor)


def paths(facts: Facts) -> dict[str, str | None]:
    """Source path and submitter of every document."""
    with facts.engine.connect() as connection:
        rows = connection.execute(
            sa.select(documents.c.source_path, document_versions.c.created_by).join(document_versions)
        )
        return {row.source_path: row.created_by for row in rows}


def outside(objects: ObjectStore, *prefixes: str) -> list[str]:
    """Keys under these prefixes."""
    return [key for key in keys(objects) if key.startswith(prefixes)]


def test_files_are_registered_and_removed(
    facts: Facts, objects: MinioObjectStore, inbox: Inbox, kb: KnowledgeBase
) -> None:
    objects.put("inbox/handbook/a.txt", b"one")
    objects.put("inbox/handbook/年度 报告/b+c.txt", b"two")
    objects.put("other/handbook/a.txt", b"three")
    assert take(inbox) == InboxBite(registered=2, rejected=0, waiting=0, cursor="")
    assert paths(facts) == {"a.txt": "inbox", "年度 报告/b+c.txt": "inbox"}
    assert outside(objects, "inbox/", "rejected/") == []
    assert_originals_are_those_of_the_rows(facts, objects)
    assert take(inbox) == InboxBite(registered=0, rejected=0, waiting=0, cursor="")


def test_a_file_that_changes_while_it_is_read_is_taken_again_as_a_new_version(
    facts: Facts, bucket: Settings, kb: KnowledgeBase
) -> None:
    store = InterruptedStore.of(bucket)
    store.put("inbox/handbook/a.txt", b"one")

    def change(key: str) -> None:
        store.after_download = None
        store.put(key, b"two")

    store.after_download = change
    inbox = inbox_of(facts, store)
    assert take(inbox) == InboxBite(registered=0, rejected=0, waiting=1, cursor="")
    assert outside(store, "inbox/") == ["inbox/handbook/a.txt"]
    (document,) = facts.documents.list(kb.id)
    assert (document.version, document.size_bytes) == (1, 3)
    set_all(facts, Status.READY)
    assert take(inbox) == InboxBite(registered=1, rejected=0, waiting=0, cursor="")
    assert facts.documents.get(document.id).version == 2
    assert outside(store, "inbox/") == []
    assert_originals_are_those_of_the_rows(facts, store)


@pytest.mark.parametrize(
    ("key", "content", "reason"),
    [
        pytest.param("handbook/a.txt", b"", "no bytes", id="empty"),
        pytest.param("handbook/docs/a.exe", EXECUTABLE, "not supported", id="unsupported"),
        pytest.param("unknown/a.txt", b"text", "no knowledge base 'unknown'", id="unknown knowledge base"),
        pytest.param("a.txt", b"text", "inbox/<knowledge base>/a.txt", id="no knowledge base"),
        pytest.param("handbook/~/a.txt", b"text", "relative path", id="bad path"),
    ],
)
def test_a_refused_file_is_moved_with_the_reason_beside_it(
    facts: Facts, objects: MinioObjectStore, inbox: Inbox, kb: KnowledgeBase, key: str, content: bytes, reason: str
) -> None:
    objects.put(f"inbox/{key}", content)
    assert take(inbox) == InboxBite(registered=0, rejected=1, waiting=0, cursor="")
    assert keys(objects) == [f"rejected/{key}", f"rejected/{key}.reason.txt"]
    assert objects.get(f"rejected/{key}") == content
    assert reason in objects.get(f"rejected/{key}.reason.txt").decode()
    assert paths(facts) == {}


def test_a_long_name_leaves_room_for_the_reason(
    facts: Facts, objects: MinioObjectStore, inbox: Inbox, kb: KnowledgeBase
) -> None:
    name = "字" * 80 + ".exe"  # 244 bytes; the embedded store takes 246
    objects.put(f"inbox/handbook/{name}", EXECUTABLE)
    assert take(inbox).rejected == 1
    moved, reason = sorted(keys(objects), key=lambda key: key.endswith(".reason.txt"))
    assert moved == f"rejected/handbook/{name}"
    assert b"not supported" in objects.get(reason)
    assert moved.startswith(reason.removesuffix(".reason.txt"))


def test_a_refused_file_that_changes_meanwhile_is_looked_at_again(
    facts: Facts, bucket: Settings, kb: KnowledgeBase
) -> None:
    store = InterruptedStore.of(bucket)
    store.put("inbox/handbook/a.txt", b"")

    def change(key: str) -> None:
        store.after_download = None
        store.put(key, b"now with text")

    store.after_download = change
    inbox = inbox_of(facts, store)
    assert take(inbox).rejected == 1
    assert take(inbox).registered == 1
    assert paths(facts) == {"a.txt": "inbox"}


def test_files_of_an_inactive_knowledge_base_are_refused(
    facts: Facts, objects: MinioObjectStore, inbox: Inbox, kb: KnowledgeBase
) -> None:
    objects.put("inbox/handbook/a.txt", b"text")
    with facts.engine.begin() as connection:
        connection.execute(sa.update(knowledge_bases).values(status="DELETING"))
    assert take(inbox).rejected == 1
    assert b"DELETING" in objects.get("rejected/handbook/a.txt.reason.txt")


def test_bites_are_bounded_by_files_and_the_cursor_goes_round(
    facts: Facts, objects: MinioObjectStore, inbox: Inbox, kb: KnowledgeBase
) -> None:
    objects.put("inbox/handbook/0.txt", b"busy")
    take(inbox)
    objects.put("inbox/handbook/0.txt", b"new bytes of a busy document")
    for number in range(1, 5):
        objects.put(f"inbox/handbook/{number}.txt", b"text")
    bites = []
    cursor = ""
    for _ in range(3):
        bite = take(inbox, max_files=2, cursor=cursor)
        bites.append((bite.registered, bite.waiting))
        cursor = bite.cursor
    assert bites == [(1, 1), (2, 0), (1, 0)]
    assert cursor == ""
    assert outside(objects, "inbox/") == ["inbox/handbook/0.txt"]
    set_all(facts, Status.READY)
    assert take(inbox, max_files=2, cursor=cursor).registered == 1
    assert outside(objects, "inbox/") == []


def test_bites_are_bounded_by_bytes_but_take_at_least_one_file(
    facts: Facts, objects: MinioObjectStore, inbox: Inbox, kb: KnowledgeBase
) -> None:
    for number, size in enumerate([500, 400, 101, 9000, 10]):
        objects.put(f"inbox/handbook/{number}.txt", b"x" * size)
    taken = []
    cursor = ""
    for _ in range(4):
        bite = take(inbox, max_bytes=1000, cursor=cursor)
        taken.append((bite.registered, bite.cursor))
        cursor = bite.cursor
    assert taken == [
        (2, "inbox/handbook/1.txt"),
        (1, "inbox/handbook/2.txt"),
        (1, "inbox/handbook/3.txt"),
        (1, ""),
    ]


def test_a_file_of_a_busy_document_stays(
    facts: Facts, objects: MinioObjectStore, inbox: Inbox, kb: KnowledgeBase
) -> None:
    objects.put("inbox/handbook/a.txt", b"one")
    take(inbox)
    objects.put("inbox/handbook/a.txt", b"two")
    for status in (Status.PARSING, Status.CANCELING, Status.DELETING):
        set_all(facts, status)
        assert take(inbox) == InboxBite(registered=0, rejected=0, waiting=1, cursor="")
    assert objects.get("inbox/handbook/a.txt") == b"two"


def test_the_same_bytes_again_are_a_duplicate_and_removed(
    facts: Facts, objects: MinioObjectStore, inbox: Inbox, kb: KnowledgeBase
) -> None:
    for _ in range(2):
        objects.put("inbox/handbook/a.txt", b"one")
        assert take(inbox).registered == 1
    assert [document.version for document in facts.documents.list(kb.id)] == [1]
    assert outside(objects, "inbox/") == []


def test_an_oversized_file_is_refused_without_holding_it_in_memory(
    facts: Facts, objects: MinioObjectStore, inbox: Inbox, kb: KnowledgeBase, tmp_path: Path
) -> None:
    size = 120_000_000  # the upload to rejected/ holds three parts of 16 MiB
    sparse = tmp_path / "huge.txt"
    sparse.touch()
    os.truncate(sparse, size)
    objects.put("inbox/handbook/huge.txt", sparse)
    tracemalloc.start()
    try:
        assert take(inbox).rejected == 1
        assert tracemalloc.get_traced_memory()[1] < size * 0.75
    finally:
        tracemalloc.stop()
    found = objects.stat("rejected/handbook/huge.txt")
    assert found is not None
    assert found.size == size
    assert b"100,000" in objects.get("rejected/handbook/huge.txt.reason.txt")
    assert outside(objects, "inbox/") == []
    assert paths(facts) == {}


def test_a_file_that_its_owner_takes_away_is_no_error(facts: Facts, bucket: Settings, kb: KnowledgeBase) -> None:
    store = InterruptedStore.of(bucket)
    store.put("inbox/handbook/a.txt", b"one")
    store.put("inbox/handbook/b.txt", b"two")

    def take_away(key: str) -> None:
        store.delete(["inbox/handbook/b.txt"])

    store.after_download = take_away
    assert take(inbox_of(facts, store)) == InboxBite(registered=1, rejected=0, waiting=1, cursor="")
    assert paths(facts) == {"a.txt": "inbox"}
    assert outside(store, "rejected/") == []


def test_a_store_that_refuses_us_rejects_no_file(facts: Facts, bucket: Settings, kb: KnowledgeBase) -> None:
    """Wrong credentials are a fault of the deployment, not of the file."""
    store = InterruptedStore.of(bucket)
    store.put("inbox/handbook/a.txt", b"one")

    def refuse(key: str) -> None:
        raise ConfigurationError(f"{key}: AccessDenied")

    store.before_put = refuse
    with pytest.raises(ConfigurationError):
        take(inbox_of(facts, store))
    assert keys(store) == ["inbox/handbook/a.txt"]


def test_a_store_that_is_down_keeps_what_was_taken_before(facts: Facts, bucket: Settings, kb: KnowledgeBase) -> None:
    store = InterruptedStore.of(bucket)
    store.put("inbox/handbook/a.txt", b"one")
    store.put("inbox/handbook/b.txt", b"two")
    uploads = []

    def fail_the_second(key: str) -> None:
        uploads.append(key)
        if len(uploads) > 1:
            raise ObjectStoreUnavailableError("down")

    store.before_put = fail_the_second
    with pytest.raises(ObjectStoreUnavailableError):
        take(inbox_of(facts, store))
    assert paths(facts) == {"a.txt": "inbox"}
    assert outside(store, "inbox/", "rejected/") == ["inbox/handbook/b.txt"]
