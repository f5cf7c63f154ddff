from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Event

import pytest
import sqlalchemy as sa

from rag_pipeline.adapters.postgres.documents import Slot
from rag_pipeline.adapters.postgres.facts import Facts
from rag_pipeline.adapters.postgres.schema import document_versions, documents, knowledge_bases
from rag_pipeline.core.documents import SETTLED, KnowledgeBase, Status
from rag_pipeline.errors import (
    AmbiguousNameError,
    ConfigurationError,
    CorruptDocumentError,
    DocumentBusyError,
    EmbeddingUnavailableError,
    IllegalTransitionError,
    KnowledgeBaseInactiveError,
    ResourceNotFoundError,
)
from rag_pipeline_tests.adapters.postgres.rows import fail, items, make_ready, register, set_attempt, set_status, start

NEVER_STORED = "nothing is to store"


def refuse_to_store(slot: Slot) -> str:
    raise AssertionError(NEVER_STORED)


def test_a_new_path_is_a_pending_document(facts: Facts, kb: KnowledgeBase) -> None:
    document = register(facts, kb, "docs/a.txt", "one")
    assert (document.status, document.version, document.live_version, document.attempt) == (Status.PENDING, 1, None, 0)
    assert (document.source_path, document.file_name, document.sha256) == ("docs/a.txt", "a.txt", "one")
    assert not document.duplicate
    assert facts.documents.get(document.id) == document


def test_same_path_and_bytes_are_a_duplicate(facts: Facts, kb: KnowledgeBase) -> None:
    document = register(facts, kb, "a.txt")
    again = register(facts, kb, "a.txt", store=refuse_to_store)
    assert (again.id, again.version, again.duplicate) == (document.id, 1, True)
    assert facts.documents.count_by_status(kb.id) == {Status.PENDING: 1}


def test_metadata_that_come_with_a_duplicate_replace_those_of_the_same_bytes(facts: Facts, kb: KnowledgeBase) -> None:
    document = make_ready(facts, register(facts, kb, "a.txt", metadata={"lang": "en", "year": 1}))
    again = register(facts, kb, "a.txt", store=refuse_to_store, metadata={"allowed_to": ["alice"]})
    assert (again.duplicate, again.status, again.metadata) == (True, Status.READY, {"allowed_to": ["alice"]})
    assert items(facts, document)[0].metadata == {"allowed_to": ["alice"]}
    assert register(facts, kb, "a.txt", store=refuse_to_store).metadata == {"allowed_to": ["alice"]}


def test_metadata_of_a_duplicate_do_not_touch_a_version_of_other_bytes(facts: Facts, kb: KnowledgeBase) -> None:
    make_ready(facts, register(facts, kb, "a.txt", "one", metadata={"year": 1}))
    for version, year in ((2, 2), (2, 3)):
        document = register(facts, kb, "a.txt", "two", metadata={"year": year})
        assert (document.version, document.metadata) == (version, {"year": year})
        assert metadata_by_version(facts) == {1: {"year": 1}, 2: {"year": year}}


def test_versions_take_metadata_over(facts: Facts, kb: KnowledgeBase) -> None:
    document = make_ready(facts, register(facts, kb, "a.txt", "one", metadata={"year": 1}))
    facts.claims.open_versions(items(facts, document), {document.id: {}})
    make_ready(facts, document)
    assert register(facts, kb, "a.txt", "two").metadata == {"year": 1}
    assert metadata_by_version(facts) == {version: {"year": 1} for version in (1, 2, 3)}
    make_ready(facts, document)
    register(facts, kb, "a.txt", "one", metadata={"year": 4})
    assert metadata_by_version(facts) == {1: {"year": 1}, 2: {"year": 1}, 3: {"year": 1}, 4: {"year": 4}}


def metadata_by_version(facts: Facts) -> dict[int, object]:
    with facts.engine.connect() as connection:
        rows = connection.execute(sa.select(document_versions.c.version, document_versions.c.metadata))
        return {row.version: row.metadata for row in rows}


@pytest.mark.parametrize("status", [Status.FAILED, Status.CANCELED], ids=str)
def test_a_duplicate_of_what_failed_is_tried_again(facts: Facts, kb: KnowledgeBase, status: Status) -> None:
    document = register(facts, kb, "a.txt")
    set_attempt(facts, document, 3)
    set_status(facts, document, status)
    again = register(facts, kb, "a.txt", store=refuse_to_store)
    assert (again.status, again.duplicate, again.version) == (Status.PENDING, True, 1)
    start(facts)
    assert items(facts, document)[0].counted_attempts == 1


@pytest.mark.parametrize("status", [Status.CANCELING, Status.DELETING], ids=str)
def test_a_duplicate_of_what_is_on_its_way_out_has_to_wait(facts: Facts, kb: KnowledgeBase, status: Status) -> None:
    document = register(facts, kb, "a.txt")
    set_status(facts, document, status)
    with pytest.raises(DocumentBusyError, match=status):
        register(facts, kb, "a.txt", store=refuse_to_store)


@pytest.mark.parametrize("status", sorted(SETTLED), ids=str)
def test_new_bytes_of_a_settled_document_are_the_next_version(facts: Facts, kb: KnowledgeBase, status: Status) -> None:
    document = make_ready(facts, register(facts, kb, "a.txt", "one"))
    set_status(facts, document, status)
    again = register(facts, kb, "a.txt", "two")
    assert (again.id, again.version, again.live_version, again.status) == (document.id, 2, 1, Status.PENDING)
    assert (again.sha256, again.attempt, again.duplicate, again.error) == ("two", 0, False, None)


@pytest.mark.parametrize("status", [status for status in Status if status not in SETTLED], ids=str)
def test_new_bytes_of_a_busy_document_are_refused(facts: Facts, kb: KnowledgeBase, status: Status) -> None:
    document = register(facts, kb, "a.txt", "one")
    set_status(facts, document, status)
    with pytest.raises(DocumentBusyError):
        register(facts, kb, "a.txt", "two", store=refuse_to_store)
    (found,) = items(facts, document)
    assert (found.version, found.sha256, found.status) == (1, "one", status)


def test_a_run_that_takes_the_document_during_the_upload_wins(facts: Facts, kb: KnowledgeBase) -> None:
    document = make_ready(facts, register(facts, kb, "a.txt", "one"))

    def store(slot: Slot) -> str:
        (item,) = items(facts, document)
        facts.claims.open_versions([item], {item.document_id: {}})
        return "key"

    with pytest.raises(DocumentBusyError, match="just been taken"):
        register(facts, kb, "a.txt", "two", store=store)
    found = facts.documents.get(document.id)
    assert (found.version, found.sha256) == (2, "one")


def test_same_bytes_under_another_path_or_elsewhere_are_other_documents(facts: Facts, kb: KnowledgeBase) -> None:
    other = facts.knowledge_bases.create("other")
    found = [register(facts, kb, "a.txt"), register(facts, kb, "b/a.txt"), register(facts, other, "a.txt")]
    assert len({document.id for document in found}) == 3
    assert not any(document.duplicate for document in found)


def test_eight_threads_make_one_document(facts: Facts, kb: KnowledgeBase) -> None:
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: register(facts, kb, "a.txt"), range(8)))
    assert len({document.id for document in found}) == 1
    assert sorted(document.duplicate for document in found) == [False] + [True] * 7


def test_an_upload_that_fails_leaves_no_row(facts: Facts, kb: KnowledgeBase) -> None:
    def store(slot: Slot) -> str:
        raise RuntimeError("no bucket")

    with pytest.raises(RuntimeError):
        register(facts, kb, "a.txt", store=store)
    assert facts.documents.list(kb.id) == []


@pytest.mark.parametrize("path", ["new.txt", "ready.txt"])
def test_a_knowledge_base_that_is_deleted_during_the_upload_takes_nothing(
    facts: Facts, kb: KnowledgeBase, path: str
) -> None:
    ready = make_ready(facts, register(facts, kb, "ready.txt", "one"))

    def store(slot: Slot) -> str:
        with facts.engine.begin() as connection:
            connection.execute(sa.update(knowledge_bases).values(status="DELETING"))
        return "key"

    with pytest.raises(KnowledgeBaseInactiveError):
        register(facts, kb, path, "two", store=store)
    with facts.engine.connect() as connection:
        rows = connection.execute(sa.select(documents.c.id, documents.c.version)).all()
    assert [tuple(row) for row in rows] == [(ready.id, 1)]


def test_a_deletion_of_the_knowledge_base_waits_for_a_submit_that_is_about_to_commit(
    facts: Facts, kb: KnowledgeBase
) -> None:
    registered, deleted = Event(), Event()
    seen: list[int] = []

    @sa.event.listens_for(facts.engine, "commit")
    def before_commit(connection: sa.Connection) -> None:
        if not registered.is_set():
            registered.set()
            # The deletion has begun by now and must not get through before this commit.
            assert not deleted.wait(0.5)

    def delete() -> None:
        registered.wait()
        with facts.engine.begin() as connection:
            connection.execute(sa.update(knowledge_bases).values(status="DELETING"))
            deleted.set()
            seen.append(connection.execute(sa.select(sa.func.count()).select_from(documents)).scalar_one())

    with ThreadPoolExecutor(1) as threads:
        future = threads.submit(delete)
        register(facts, kb, "a.txt")
        future.result()
    assert seen == [1]


def test_retry_only_takes_what_failed_or_was_canceled(facts: Facts, kb: KnowledgeBase) -> None:
    for status in Status:
        document = register(facts, kb, f"{status}.txt")
        set_status(facts, document, status)
        if status in (Status.FAILED, Status.CANCELED):
            assert facts.documents.retry(document.id).status is Status.PENDING
        else:
            refusal = ResourceNotFoundError if status is Status.DELETING else IllegalTransitionError
            with pytest.raises(refusal, match=document.id if status is Status.DELETING else status):
                facts.documents.retry(document.id)
            assert items(facts, document)[0].status is status


def test_a_retry_takes_the_document_away_from_a_batch_that_was_about_to_begin(facts: Facts, kb: KnowledgeBase) -> None:
    document = register(facts, kb, "a.txt")
    set_status(facts, document, Status.FAILED)
    manual = facts.claims.begin_manual("run", [document.id])
    facts.documents.retry(document.id)
    assert facts.ledger(batch_id=manual, run_id="run").still_owned(items(facts, document)) == frozenset()


def test_only_a_passing_failure_is_tried_again_by_itself(facts: Facts, kb: KnowledgeBase) -> None:
    errors = {"passing.txt": EmbeddingUnavailableError("HTTP 429"), "for good.txt": CorruptDocumentError("damaged")}
    found = {path: register(facts, kb, path) for path in errors}
    assert facts.documents.next_retry(kb.id) is None
    fail(facts, {found[path].id: error for path, error in errors.items()})
    passing, for_good = (facts.documents.get(document.id) for document in found.values())
    assert passing.retry_at is not None
    assert passing.updated_at + timedelta(seconds=5) <= passing.retry_at <= passing.updated_at + timedelta(seconds=7)
    assert for_good.retry_at is None
    assert facts.documents.next_retry(kb.id) == passing.retry_at
    facts.documents.retry(passing.id)
    assert facts.documents.get(passing.id).retry_at is None
    assert facts.documents.next_retry(kb.id) is None


def test_listing_by_page_and_status(facts: Facts, kb: KnowledgeBase) -> None:
    found = [register(facts, kb, f"{number}.txt") for number in range(5)]
    set_status(facts, found[1], Status.FAILED)
    assert [each.id for each in facts.documents.list(kb.id, page=2, page_size=2)] == [each.id for each in found[2:4]]
    assert [each.id for each in facts.documents.list(kb.id, status=Status.FAILED)] == [found[1].id]
    assert facts.documents.count_by_status(kb.id) == {Status.PENDING: 4, Status.FAILED: 1}
    ids = [found[3].id, "unknown", found[0].id]
    assert [each.id for each in facts.documents.many(ids)] == [found[3].id, found[0].id]


@pytest.mark.parametrize(("page", "page_size"), [(0, 1), (-1, 1), (1, 0), (1, -1), (10**30, 1)])
def test_there_is_no_such_page(facts: Facts, kb: KnowledgeBase, page: int, page_size: int) -> None:
    with pytest.raises(ConfigurationError, match=f"page={page}, page_size={page_size}"):
        facts.documents.list(kb.id, page=page, page_size=page_size)


def test_find_by_id_partition_key_or_path(facts: Facts, kb: KnowledgeBase) -> None:
    document = register(facts, kb, "docs/a_b.txt")
    register(facts, kb, "docs/axb.txt")
    for text in (document.id, document.id[:12], document.partition_key, "docs/a_b.txt"):
        assert facts.documents.find(text).id == document.id
    for text in ("unknown", document.id[:11], "", "%" * 12, "a\0b"):
        with pytest.raises(ResourceNotFoundError):
            facts.documents.find(text)
    with pytest.raises(ResourceNotFoundError):
        facts.documents.get("unknown")


def test_a_path_in_two_knowledge_bases_is_no_name_of_one_document(facts: Facts, kb: KnowledgeBase) -> None:
    other = facts.knowledge_bases.create("other")
    first, second = register(facts, kb, "a.txt"), register(facts, other, "a.txt")
    with pytest.raises(AmbiguousNameError) as raised:
        facts.documents.find("a.txt")
    for listed in (first.id, "'handbook'", second.id, "'other'"):
        assert listed in str(raised.value)
    assert facts.documents.find("a.txt", kb_id=kb.id).id == first.id
    assert facts.documents.find(second.partition_key).id == second.id
    with pytest.raises(ResourceNotFoundError):
        facts.documents.find(second.id, kb_id=kb.id)
    set_status(facts, first, Status.DELETING)
    assert facts.documents.find("a.txt").id == second.id


def test_an_id_is_not_taken_for_the_path_of_another_document(facts: Facts, kb: KnowledgeBase) -> None:
    document = register(facts, kb, "a.txt")
    for name in (document.id, document.partition_key):
        register(facts, kb, name)
        assert facts.documents.find(name).id == document.id


def test_originals_in_use(facts: Facts, kb: KnowledgeBase) -> None:
    register(facts, kb, "a.txt", store=lambda _: "used")
    assert facts.documents.originals_in_use(["used", "unused"]) == {"used"}


def test_version_rows_hold_the_hash_of_each_version(facts: Facts, kb: KnowledgeBase) -> None:
    document = make_ready(facts, register(facts, kb, "a.txt", "one"))
    register(facts, kb, "a.txt", "two!")
    with facts.engine.connect() as connection:
        rows = connection.execute(sa.select(document_versions).order_by(document_versions.c.version)).all()
    assert [(row.version, row.sha256, row.size_bytes) for row in rows] == [(1, "one", 3), (2, "two!", 4)]
    assert {row.document_id for row in rows} == {document.id}


def test_a_knowledge_base_is_made_once(facts: Facts) -> None:
    with ThreadPoolExecutor(4) as threads:
        made = list(threads.map(lambda _: facts.knowledge_bases.create("手册　二"), range(4)))
    assert len({each.id for each in made}) == 1
    assert facts.knowledge_bases.active("手册　二") == made[0]
    assert facts.knowledge_bases.all() == [made[0]]


@pytest.mark.parametrize("name", ["", "  ", "a/b", "x" * 101, "a\0b", "a\nb", "a\ud800b"], ids=repr)
def test_names_that_no_knowledge_base_has(facts: Facts, name: str) -> None:
    with pytest.raises(ConfigurationError):
        facts.knowledge_bases.create(name)
    with pytest.raises(ResourceNotFoundError):
        facts.knowledge_bases.active(name)


def test_a_knowledge_base_that_is_being_deleted_takes_nothing_and_its_name_is_free_afterwards(facts: Facts) -> None:
    old = facts.knowledge_bases.create("a")
    with facts.engine.begin() as connection:
        connection.execute(sa.update(knowledge_bases).values(status="DELETING"))
    for call in (facts.knowledge_bases.active, facts.knowledge_bases.create):
        with pytest.raises(KnowledgeBaseInactiveError):
            call("a")
    with facts.engine.begin() as connection:
        connection.execute(sa.update(knowledge_bases).values(status="DELETED"))
    with pytest.raises(ResourceNotFoundError):
        facts.knowledge_bases.active("a")
    assert facts.knowledge_bases.create("a").id != old.id
