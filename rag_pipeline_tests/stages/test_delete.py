"""Deleting documents and knowledge bases: hidden at once, gone from every store, a record stays."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from rag_pipeline.adapters.postgres.schema import metadata
from rag_pipeline.core.documents import Deletion, Document, Status
from rag_pipeline.errors import KnowledgeBaseInactiveError, ResourceNotFoundError
from rag_pipeline.local.servers import EmbeddedServers
from rag_pipeline.query.client import RagClient
from rag_pipeline.query.options import RetrievalOptions
from rag_pipeline.settings import Settings
from rag_pipeline.stages.delete import remove_deleted
from rag_pipeline_tests import files
from rag_pipeline_tests.conftest import own_settings
from rag_pipeline_tests.contents import NOTHING, assert_consistent, contents
from rag_pipeline_tests.embedding_server import Answer
from rag_pipeline_tests.stages.runner import KB, Runner, running


@pytest.fixture(scope="module")
def shared(servers: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    """One set of stores for the module; every test has a knowledge base of its own in it."""
    with own_settings(servers, tmp_path_factory.mktemp("delete")) as own, running(own) as runner:
        yield runner


@pytest.fixture
def kb(shared: Runner, request: pytest.FixtureRequest) -> Iterator[str]:
    name = request.node.name[:90]
    shared.system.client.create_knowledge_base(name)
    yield name
    shared.system.client.delete_knowledge_base(name)
    shared.make_due()
    shared.remove()


def submit(runner: Runner, kb: str, name: str, text: str) -> Document:
    return runner.system.client.submit(kb, text.encode(), filename=name)


def rows_of(runner: Runner, target_id: str) -> dict[str, int]:
    """Rows of every table that bear a document's or a knowledge base's id."""
    found = {}
    with runner.services.facts.engine.connect() as connection:
        for table in metadata.tables.values():
            columns = [table.c[name] for name in ("document_id", "kb_id") if name in table.c]
            if table.name == "documents":
                columns.append(table.c.id)
            if columns and table.name != "deletions":
                statement = sa.select(sa.func.count()).where(sa.or_(*(column == target_id for column in columns)))
                found[table.name] = connection.execute(statement).scalar_one()
    return {name: count for name, count in found.items() if count}


def sources(runner: Runner, kb: str, words: str) -> set[str]:
    """Paths that answer a question by words alone: the vectors of the loopback service mean nothing."""
    run = runner.system.client.retrieve(kb, words, options=RetrievalOptions(top_k=20, mode="bm25"))
    return {result.source_path for result in run.results}


def test_deleted_document_is_gone_everywhere_and_its_record_says_what_was(shared: Runner, kb: str) -> None:
    document = submit(shared, kb, "vpn.md", "# VPN\n\nThe company uses WireGuard on port 51820.\n")
    other = submit(shared, kb, "canteen.md", "# Canteen\n\nSoup is served at noon.\n")
    shared.run_queued()
    before = contents(shared.services).of(document.id)
    client = shared.system.client
    deletion = client.delete(document.id, reason="outdated")
    assert (deletion.kind, deletion.name, deletion.reason, deletion.finished_at) == (
        "document",
        "vpn.md",
        "outdated",
        None,
    )
    assert_hidden(client, kb, document)
    assert shared.remove().documents == 1
    assert contents(shared.services).of(document.id) == NOTHING
    assert rows_of(shared, document.id) == {}
    done = client.deletion(document.id)
    assert done.finished_at is not None
    assert done.counts == {
        "documents": 1,
        "chunk_rows": len(before.chunk_rows),
        "vectors": len(before.vectors),
        "objects": len(before.objects),
        "snapshots": 1,
        "partitions": 1,
    }
    assert client.document(other.id).status is Status.READY
    assert sources(shared, kb, "soup noon") == {"canteen.md"}


def assert_hidden(client: RagClient, kb: str, document: Document) -> None:
    assert document.id not in {each.id for each in client.documents(kb, page_size=100)}
    assert client.documents(kb, status="DELETING") == []
    assert sum(client.count_by_status(kb).values()) == len(client.documents(kb, page_size=100))
    for name in (document.id, document.partition_key):
        with pytest.raises(ResourceNotFoundError):
            client.document(name)
    for call in (client.retry, client.cancel, client.node_log):
        with pytest.raises(ResourceNotFoundError):
            call(document.id)
    assert client.wait([document], timeout_seconds=5) == []
    assert document.file_name not in {each.source_path for each in client.search(kb, "WireGuard port", top_k=20)}


def test_deleting_twice_is_harmless_and_an_unknown_document_is_said_to_be_unknown(shared: Runner, kb: str) -> None:
    document = submit(shared, kb, "a.txt", "Some text.")
    client = shared.system.client
    first = client.delete(document.id, reason="first")
    assert client.delete(document.id, reason="second") == first
    shared.remove()
    again = client.delete(document.id)
    assert (again.target_id, again.reason) == (document.id, "first")
    assert again.finished_at is not None
    with pytest.raises(ResourceNotFoundError):
        client.delete("0" * 32)


def test_path_of_a_deleted_document_can_be_used_again(shared: Runner, kb: str) -> None:
    first = submit(shared, kb, "a.txt", "The first text names the oak.")
    shared.run_queued()
    shared.system.client.delete(first.id)
    shared.remove()
    second = submit(shared, kb, "a.txt", "The second text names the cedar.")
    assert second.id != first.id
    assert second.partition_key != first.partition_key
    shared.run_queued()
    assert sources(shared, kb, "oak") == set()
    assert sources(shared, kb, "cedar") == {"a.txt"}


def test_same_bytes_elsewhere_survive_the_deletion(shared: Runner, kb: str, tmp_path: Path) -> None:
    """Case: two files of the same bytes are two documents, and the one does not need the other."""
    text = "resources: deployment and service of kustomize\n"
    client = shared.system.client
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "kustomization.yaml").write_text(text)
    first, second = (result.document for result in client.submit_many(kb, [tmp_path]))
    assert first is not None
    assert second is not None
    shared.run_queued()
    assert {each.source_path for each in client.documents(kb)} == {"a/kustomization.yaml", "b/kustomization.yaml"}
    embedded = shared.system.embedding.texts
    client.delete(first.id)
    shared.remove()
    assert sources(shared, kb, "kustomize resources") == {"b/kustomization.yaml"}
    item = shared.services.facts.reconciliation.live_item(second.id)
    assert item is not None
    assert shared.services.objects.get(item.object_key) == text.encode()
    shared.run(second, force=True)
    assert shared.now(second).status is Status.READY
    assert shared.system.embedding.texts == embedded


def test_document_in_a_run_is_hidden_at_once_and_removed_when_the_run_has_let_go(shared: Runner, kb: str) -> None:
    document, other = submit(shared, kb, "a.txt", "Some slow text."), submit(shared, kb, "b.txt", "Other slow text.")
    asked = shared.system.embedding.requests
    shared.system.embedding.script(Answer(wait_seconds=1.5))
    run = threading.Thread(target=shared.run_queued)
    run.start()
    while shared.system.embedding.requests == asked:
        assert run.is_alive()
    shared.system.client.delete(document.id)
    assert_hidden(shared.system.client, kb, document)
    removed = shared.remove()
    assert (removed.documents, removed.errors) == (0, ())
    run.join()
    assert shared.now(other).status is Status.READY
    assert shared.remove().documents == 1
    assert contents(shared.services).of(document.id) == NOTHING
    assert_consistent(shared.services)


@pytest.mark.parametrize("held", [True, False], ids=["range still needed", "free"])
def test_partition_that_a_run_still_needs_keeps_its_document_until_it_is_free(
    shared: Runner, kb: str, held: bool
) -> None:
    document = submit(shared, kb, "a.txt", "Some text.")
    shared.run_queued()
    shared.system.client.delete(document.id)
    removed = remove_deleted(shared.services, lambda keys: {} if held else dict.fromkeys(keys, True), seconds=60)
    assert (removed.documents, removed.waiting) == ((0, 1) if held else (1, 0))
    deletion = shared.system.client.deletion(document.id)
    assert (deletion.finished_at is None) == held
    left = contents(shared.services).of(document.id)
    assert left == (replace(NOTHING, chunk_rows=left.chunk_rows) if held else NOTHING)
    if held:
        assert left.chunk_rows
        assert "range" in str(deletion.last_error)
        shared.make_due()
        assert shared.remove().documents == 1
        assert shared.system.client.deletion(document.id).counts["vectors"] == 1


def test_knowledge_base_goes_with_everything_in_it_and_its_name_is_free(shared: Runner) -> None:
    client, name = shared.system.client, "to be deleted"
    kb = client.create_knowledge_base(name)
    texts = [submit(shared, name, f"{number}.txt", f"Text {number}.") for number in range(4)]
    client.submit(name, files.corrupt_pdf(), filename="bad.pdf")
    client.submit(name, b" \n", filename="blank.txt")
    shared.run_queued()
    client.submit(name, b"A newer text.", filename="0.txt")
    waiting = submit(shared, name, "waiting.txt", "This one waits.")
    shared.services.objects.put(f"inbox/{name}/dropped.txt", b"dropped")
    shared.services.objects.put(f"rejected/{name}/refused.exe", b"refused")
    shared.services.objects.put(f"kb/{kb.id}/{waiting.id}/v1/late.parquet", b"from a late writer")
    others = contents(shared.services)
    deletion = client.delete_knowledge_base(name, reason="project over")
    assert_kb_hidden(client, name, texts[0])
    removed = shared.remove()
    assert (removed.documents, removed.knowledge_bases, removed.errors) == (7, 1, ())
    left = contents(shared.services)
    assert {key for key in left.objects if kb.id in key or f"/{name}/" in key} == set()
    assert {path for path in left.snapshots if kb.id in path} == set()
    assert not (shared.services.settings.snapshots / kb.id).exists()
    assert left.vectors == left.chunk_rows
    assert rows_of(shared, kb.id) == {}
    done = client.deletion(deletion.target_id)
    assert done.finished_at is not None
    assert (done.kind, done.name, done.counts["documents"]) == ("knowledge_base", name, 7)
    assert done.counts["objects"] == len(others.objects) - len(left.objects)
    assert done.counts["vectors"] == len(others.vectors) - len(left.vectors)
    again = client.create_knowledge_base(name)
    assert again.id != kb.id
    assert client.documents(name) == []
    assert client.delete_knowledge_base(name).target_id == again.id
    shared.remove()


def assert_kb_hidden(client: RagClient, name: str, document: Document) -> None:
    assert name not in {kb.name for kb in client.knowledge_bases()}
    for call in (client.documents, client.count_by_status, lambda kb: client.search(kb, "text")):
        with pytest.raises(KnowledgeBaseInactiveError):
            call(name)
    with pytest.raises(KnowledgeBaseInactiveError):
        client.submit(name, b"new", filename="new.txt")
    with pytest.raises(ResourceNotFoundError):
        client.document(document.id)
    assert client.delete_knowledge_base(name).finished_at is None


def test_client_that_dies_after_marking_the_knowledge_base_is_made_good(shared: Runner) -> None:
    kb = shared.system.client.create_knowledge_base("half marked")
    document = submit(shared, kb.name, "a.txt", "Some text.")
    with shared.services.facts.engine.begin() as connection:
        connection.execute(sa.text("UPDATE knowledge_bases SET status = 'DELETING' WHERE id = :id"), {"id": kb.id})
        connection.execute(
            sa.text(
                "INSERT INTO deletions (target_id, kind, kb_id, kb_name, name) "
                "VALUES (:id, 'knowledge_base', :id, 'half marked', 'half marked')"
            ),
            {"id": kb.id},
        )
    with pytest.raises(ResourceNotFoundError):
        shared.system.client.document(document.id)
    assert shared.remove().knowledge_bases == 1
    assert rows_of(shared, kb.id) == {}


def test_deletion_while_milvus_is_down_stays_hidden_and_is_finished_later(settings: Settings, tmp_path: Path) -> None:
    """Case: the record went, the vectors stayed and were cited in later answers."""
    folder = tmp_path / "milvus"
    folder.mkdir()
    milvus = EmbeddedServers()
    without_milvus = settings.model_copy(update={"data_dir": folder, "milvus_uri": None})
    own = milvus.start(without_milvus)
    try:
        with running(own) as runner:
            client = runner.system.client
            document = runner.submit("vpn.md", "# VPN setup\n\nThe company uses WireGuard on port 51820.\n")
            runner.submit("other.md", "# Canteen\n\nSoup is served at noon.\n")
            runner.run_queued()
            milvus.stop()
            assert client.delete(document.id).finished_at is None
            removed = runner.remove()
            assert (removed.documents, removed.waiting) == (0, 1)
            waiting = client.deletion(document.id)
            assert waiting.finished_at is None
            assert "Milvus" in str(waiting.last_error)
            assert_hidden_by_facts(client, document, waiting)
            milvus.start(without_milvus)
            assert sources(runner, KB, "WireGuard") == set()
            runner.make_due()
            assert runner.remove().documents == 1
            assert contents(runner.services).of(document.id) == NOTHING
            assert sources(runner, KB, "WireGuard") == set()
            assert sources(runner, KB, "soup") == {"other.md"}
            assert client.deletion(document.id).last_error is None
            assert_consistent(runner.services)
    finally:
        milvus.stop()


def assert_hidden_by_facts(client: RagClient, document: Document, waiting: Deletion) -> None:
    with pytest.raises(ResourceNotFoundError):
        client.document(document.id)
    assert [each.source_path for each in client.documents(KB)] == ["other.md"]
    assert client.deletions(only_unfinished=True) == [waiting]
    assert client.delete(document.id) == waiting
