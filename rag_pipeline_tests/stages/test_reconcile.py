"""Drift that was made by hand in every store, both ways: found, reported, put right, and nothing else touched."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import sqlalchemy as sa

from rag_pipeline.adapters.postgres.schema import chunks, document_versions, documents, knowledge_bases
from rag_pipeline.core.chunk import chunk_id
from rag_pipeline.core.documents import SETTLED, Document, Stage, Status
from rag_pipeline.core.ports import CollectionGeneration, SnapshotRef, VectorRow
from rag_pipeline.core.reconciliation import Reconciled
from rag_pipeline.settings import Settings
from rag_pipeline.stages.cleanup import remove_superseded
from rag_pipeline.stages.reconcile import reconcile
from rag_pipeline_tests.conftest import own_settings
from rag_pipeline_tests.contents import Contents, assert_consistent, contents
from rag_pipeline_tests.defs.system import DIMENSIONS
from rag_pipeline_tests.embedding_server import POISON
from rag_pipeline_tests.stages.runner import KB, Runner, running


@pytest.fixture(scope="module")
def runner(servers: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    """Three READY documents, one FAILED and one CANCELED; every test leaves the stores in agreement."""
    with own_settings(servers, tmp_path_factory.mktemp("reconcile")) as own, running(own) as runner:
        for number in range(3):
            runner.submit(f"{number}.md", f"# Heading\n\nText {number} names the valve V{number}.\n")
        runner.submit("failed.txt", f"refused: {POISON}")
        canceled = runner.submit("canceled.txt", "canceled text")
        runner.system.client.cancel(canceled.id)
        runner.run_queued()
        yield runner
        assert_consistent(runner.services)


@pytest.fixture
def document(runner: Runner) -> Document:
    """A READY document."""
    return runner.now(runner.system.client.document("0.md"))


def compare(runner: Runner, *, repair: bool, minimum_age_seconds: float = -60.0) -> Reconciled:
    """A negative age limit: what the test has just made is old enough, however the clocks differ."""
    return reconcile(runner.services, repair=repair, minimum_age_seconds=minimum_age_seconds)


def generation_of(runner: Runner) -> CollectionGeneration:
    live = runner.services.facts.live_generation()
    assert live is not None
    return live[0]


def vector(kb_id: str, document_id: str, index: int) -> VectorRow:
    return VectorRow(
        chunk_id=chunk_id(document_id, 1, index),
        kb_id=kb_id,
        document_id=document_id,
        version=1,
        chunk_index=index,
        content="left over",
        dense=np.full(DIMENSIONS, 0.25, dtype=np.float32),
    )


def drift(found: Reconciled) -> set[tuple[str, str, int, int]]:
    return {(each.store, each.problem, each.count, each.repaired) for each in found.drift}


def assert_found_and_repaired(runner: Runner, store: str, problem: str, *, count: int = 1) -> Reconciled:
    """First the comparison alone, which changes nothing, then with repair, then they agree."""
    before = contents(runner.services)
    assert drift(compare(runner, repair=False)) == {(store, problem, count, 0)}
    assert contents(runner.services) == before
    repaired = compare(runner, repair=True)
    assert drift(repaired) == {(store, problem, count, count)}
    assert repaired.agrees
    runner.run_queued()
    remove_superseded(runner.services, limit=10, kept_seconds=0)
    assert drift(compare(runner, repair=False)) == set()
    assert_consistent(runner.services)
    return repaired


def test_stores_that_agree(runner: Runner) -> None:
    before = contents(runner.services)
    found = compare(runner, repair=True)
    assert (found.drift, found.rebuilt, found.agrees) == ((), 0, True)
    assert found.checked == {
        "objects": len(before.objects),
        "vectors": len(before.vectors),
        "chunk_rows": len(before.chunk_rows),
        "snapshots": len(before.snapshots),
    }
    assert contents(runner.services) == before


def test_object_of_a_crash_between_upload_and_transaction_is_swept(runner: Runner, document: Document) -> None:
    key = f"{document.kb_id}/{'a' * 32}/v1/source.txt"
    runner.services.objects.put(key, b"uploaded, never registered")
    assert_found_and_repaired(runner, "objects", "orphaned")
    assert runner.services.objects.stat(key) is None


def test_artefact_of_an_attempt_that_did_not_win_is_swept(runner: Runner, document: Document) -> None:
    key = f"kb/{document.kb_id}/{document.id}/v1/chunks.a9.parquet"
    runner.services.objects.put(key, b"of a zombie")
    assert_found_and_repaired(runner, "objects", "orphaned")


def test_fresh_upload_is_not_touched(runner: Runner, document: Document) -> None:
    key = f"{document.kb_id}/{'b' * 32}/v1/source.txt"
    runner.services.objects.put(key, b"its transaction is about to be committed")
    assert compare(runner, repair=True, minimum_age_seconds=3600).drift == ()
    assert runner.services.objects.stat(key) is not None
    runner.services.objects.delete([key])


def test_files_in_the_inbox_are_not_ours_to_sweep(runner: Runner) -> None:
    keys = [f"inbox/{KB}/dropped.txt", f"rejected/{KB}/refused.exe"]
    for key in keys:
        runner.services.objects.put(key, b"content")
    assert compare(runner, repair=True).drift == ()
    assert all(runner.services.objects.stat(key) for key in keys)
    runner.services.objects.delete(keys)


def test_what_belongs_to_an_unknown_knowledge_base_is_reported_and_never_removed(runner: Runner) -> None:
    foreign = "f" * 32
    key = f"{foreign}/{'a' * 32}/v1/source.txt"
    runner.services.objects.put(key, b"of another deployment")
    runner.services.vectors.upsert(generation_of(runner), [vector(foreign, "c" * 32, 0)])
    found = compare(runner, repair=True)
    assert drift(found) == {("objects", "foreign", 1, 0), ("vectors", "foreign", 1, 0)}
    assert found.agrees
    assert runner.services.objects.stat(key) is not None
    runner.services.objects.delete([key])
    runner.services.vectors.delete(generation_of(runner), [chunk_id("c" * 32, 1, 0)])


def test_vectors_of_a_document_that_is_gone_are_removed(runner: Runner, document: Document) -> None:
    rows = [vector(document.kb_id, "d" * 32, index) for index in range(3)]
    runner.services.vectors.upsert(generation_of(runner), rows)
    assert_found_and_repaired(runner, "vectors", "orphaned", count=3)


def test_vector_that_no_chunk_of_its_document_has_is_removed(runner: Runner, document: Document) -> None:
    runner.services.vectors.upsert(generation_of(runner), [vector(document.kb_id, document.id, 7)])
    assert_found_and_repaired(runner, "vectors", "orphaned")


def test_snapshots_of_documents_and_versions_that_are_gone_are_removed(runner: Runner, document: Document) -> None:
    snapshots = runner.services.snapshots
    snapshots.write(SnapshotRef(kb_id=document.kb_id, document_id="e" * 32, version=1), {"chunks": []})
    snapshots.write(SnapshotRef(kb_id=document.kb_id, document_id=document.id, version=99), {"chunks": []})
    assert_found_and_repaired(runner, "snapshots", "orphaned", count=2)


def test_rows_that_a_late_writer_gave_a_canceled_version_are_removed(runner: Runner) -> None:
    canceled = runner.system.client.document("canceled.txt")
    with runner.services.facts.engine.begin() as connection:
        template = sa.select(chunks).limit(1)
        row = dict(connection.execute(template).mappings().one())
        row |= {"id": chunk_id(canceled.id, 1, 0), "document_id": canceled.id, "version": 1, "chunk_index": 0}
        connection.execute(sa.insert(chunks).values(row))
    runner.services.vectors.upsert(generation_of(runner), [vector(canceled.kb_id, canceled.id, 0)])
    assert_found_and_repaired(runner, "chunk_rows", "orphaned")
    assert contents(runner.services).of(canceled.id).vectors == frozenset()


def test_lost_snapshot_is_written_again_from_the_artefacts(runner: Runner, document: Document) -> None:
    before = runner.snapshot(document)
    runner.services.snapshots.delete(document.kb_id, document.id)
    assert_found_and_repaired(runner, "snapshots", "missing")
    assert runner.snapshot(document) == before
    assert runner.now(document).version == document.version


def lose_vectors(runner: Runner, document: Document, own: Contents) -> None:
    runner.services.vectors.delete(generation_of(runner), sorted(own.vectors))


def lose_chunk_rows(runner: Runner, document: Document, own: Contents) -> None:
    with runner.services.facts.engine.begin() as connection:
        connection.execute(sa.delete(chunks).where(chunks.c.document_id == document.id))
    runner.services.vectors.delete(generation_of(runner), sorted(own.vectors))


def lose_parsed_blocks(runner: Runner, document: Document, own: Contents) -> None:
    runner.services.objects.delete([key for key in own.objects if "parsed_blocks" in key])


@pytest.mark.parametrize(
    ("lose", "store", "parsed_again"),
    [
        pytest.param(lose_vectors, "vectors", False, id="vectors"),
        pytest.param(lose_chunk_rows, "chunk_rows", False, id="chunk rows"),
        pytest.param(lose_parsed_blocks, "objects", True, id="artefact"),
    ],
)
def test_ready_document_that_lacks_something_is_rebuilt_beside_the_live_version(
    runner: Runner,
    document: Document,
    lose: Callable[[Runner, Document, Contents], None],
    store: str,
    parsed_again: bool,
) -> None:
    embedded = runner.system.embedding.texts
    lose(runner, document, contents(runner.services).of(document.id))
    assert assert_found_and_repaired(runner, store, "missing").rebuilt == 1
    after = runner.now(document)
    assert (after.status, after.live_version) == (Status.READY, document.version + 1)
    assert runner.system.embedding.texts == embedded
    parsed = [
        entry.status
        for entry in runner.system.client.node_log(document.id)
        if entry.node == Stage.PARSED_BLOCKS and entry.version == after.version
    ]
    assert parsed == ["SUCCESS" if parsed_again else "SKIPPED"]


def test_lost_original_is_reported_with_what_to_do(runner: Runner, document: Document) -> None:
    with runner.services.facts.engine.connect() as connection:
        key = connection.execute(
            sa.select(document_versions.c.object_key).where(document_versions.c.document_id == document.id)
        ).scalar_one()
    content = runner.services.objects.get(key)
    runner.services.objects.delete([key])
    found = compare(runner, repair=True)
    assert drift(found) == {("objects", "missing", 1, 0)}
    assert not found.agrees
    assert any("submit the file again" in note for note in found.notes)
    assert runner.system.client.search(KB, "valve V0")
    runner.services.objects.put(key, content)


@pytest.mark.parametrize("status", [each for each in Status if each not in SETTLED], ids=str)
def test_document_that_is_not_settled_is_not_touched(runner: Runner, document: Document, status: Status) -> None:
    runner.services.vectors.upsert(generation_of(runner), [vector(document.kb_id, document.id, 7)])
    key = f"kb/{document.kb_id}/{document.id}/v1/chunks.a9.parquet"
    runner.services.objects.put(key, b"being written")
    set_status(runner, document, status)
    before = contents(runner.services)
    try:
        assert compare(runner, repair=True).drift == ()
        assert contents(runner.services) == before
    finally:
        set_status(runner, document, document.status)
        compare(runner, repair=True)


def set_status(runner: Runner, document: Document, status: Status) -> None:
    with runner.services.facts.engine.begin() as connection:
        connection.execute(sa.update(documents).where(documents.c.id == document.id).values(status=status))


def test_deleted_knowledge_base_stays_known(runner: Runner) -> None:
    """What a zombie adds after the deletion is removed: the row of the knowledge base is still there."""
    client = runner.system.client
    kb = client.create_knowledge_base("short lived")
    document = client.submit(kb.name, b"Some text.", filename="a.txt")
    client.delete_knowledge_base(kb.name)
    runner.remove()
    with runner.services.facts.engine.connect() as connection:
        status = sa.select(knowledge_bases.c.status).where(knowledge_bases.c.id == kb.id)
        assert connection.execute(status).scalar_one() == "DELETED"
    runner.services.objects.put(f"kb/{kb.id}/{document.id}/v1/embeddings.a1.parquet", b"late")
    assert_found_and_repaired(runner, "objects", "orphaned")


def test_snapshots_in_the_bucket_are_compared_and_left_alone_as_objects(settings: Settings) -> None:
    with running(settings, snapshot_prefix="chunk_snapshots/") as runner:
        document = runner.submit("a.txt", "A text.")
        assert runner.run(document).ready == 1
        key = f"chunk_snapshots/{document.kb_id}/{document.id}/chunks.json"
        assert [info.key for info in runner.services.objects.list("chunk_snapshots/")] == [key]
        assert compare(runner, repair=True).agrees
        runner.services.objects.delete([key])
        assert [each.repaired for each in compare(runner, repair=True).drift] == [1]
        assert compare(runner, repair=False).drift == ()
        assert runner.services.objects.stat(key) is not None
