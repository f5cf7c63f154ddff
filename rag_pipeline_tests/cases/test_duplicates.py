"""Cases dup-01 (same bytes under two names, the same file twice) and dup-02 (a new version with fewer passages)."""

import threading
from pathlib import Path

from rag_pipeline.core.documents import Document, Status
from rag_pipeline.stages.cleanup import remove_superseded
from rag_pipeline_tests.cases.book import Book
from rag_pipeline_tests.embedding_server import Answer

NOTES = "The harbour notes say when the ferry leaves.\n"
FILES = {
    "a/kustomization.yaml": "kind: Kustomization\nresources: [a.yaml]\n",
    "b/kustomization.yaml": "kind: Kustomization\nresources: [a.yaml]\n",
    "copy of notes.txt": NOTES,
    "notes.txt": NOTES,
}


def test_files_of_the_same_bytes_are_documents_of_their_own_and_paid_for_once(book: Book, tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    book.client.submit_many(book.name, [tmp_path])
    book.runner.run_queued()
    listed = book.client.documents(book.name)
    assert {document.source_path: document.status for document in listed} == dict.fromkeys(FILES, Status.READY)
    notes = next(document for document in listed if document.source_path == "notes.txt")
    before, paid = book.stored(notes), book.embedding.texts
    again = book.client.submit(book.name, tmp_path / "notes.txt")
    assert (again.id, again.duplicate, again.status) == (notes.id, True, Status.READY)
    submitted = at_the_same_moment(book, tmp_path / "notes.txt")
    assert {document.id for document in submitted} == {notes.id}
    book.runner.run_queued()
    assert book.stored(notes) == before
    assert book.embedding.texts == paid
    assert book.sources("harbour notes") == ["copy of notes.txt", "notes.txt"]
    hits = [hit.chunk_id for hit in book.hits("harbour notes")]
    assert len(hits) == len(set(hits))


def at_the_same_moment(book: Book, path: Path) -> list[Document]:
    found: list[Document] = []
    barrier = threading.Barrier(2)

    def submit() -> None:
        barrier.wait()
        found.append(book.client.submit(book.name, path))

    threads = [threading.Thread(target=submit) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2
    return found


def section(number: int, word: str) -> str:
    filler = "filler " * 60
    return f"## section-{number:02d}\n\nThis part speaks about {word} in enough words for a passage. {filler}\n\n"


def test_shrunk_version_leaves_nothing_of_the_longer_one_and_a_failed_one_changes_nothing(book: Book) -> None:
    first = book.ingest(
        "manual.md", "# Manual\n\n" + "".join(section(n, "walnut" if n == 9 else "oak") for n in range(1, 13))
    )
    assert (first.status, book.sources("walnut")) == (Status.READY, ["manual.md"])
    book.embedding.script(Answer(wait_seconds=2.0))
    asked = book.embedding.requests
    book.upload("manual.md", "# Manual\n\n" + section(1, "oak") + section(2, "cedar") + section(3, "oak"))
    run = threading.Thread(target=book.runner.run_queued)
    run.start()
    while book.embedding.requests == asked:
        assert run.is_alive()
    assert book.sources("walnut") == ["manual.md"]
    assert book.client.document(first.id).status is Status.EMBEDDING
    run.join()
    assert_only_second_version(book, first)
    book.embedding.script(*[Answer(status=429)] * 50)
    book.upload("manual.md", "# Manual\n\n" + section(1, "birch"))
    for _ in range(3):
        book.try_again()
    failed = book.client.document(first.id)
    assert (failed.status, failed.version, failed.live_version) == (Status.FAILED, 3, 2)
    assert failed.error is not None
    assert failed.error.error_class == "dead"
    assert book.sources("cedar") == ["manual.md"]
    assert book.sources("birch") == []


def assert_only_second_version(book: Book, document: Document) -> None:
    remove_superseded(book.runner.services, limit=10, kept_seconds=0)
    rows, vectors = book.stored(document)
    assert rows == vectors == book.client.document(document.id).chunk_count
    assert {hit.version for hit in book.hits("oak")} == {2}
    for marker in ("walnut", *(f"section-{number:02d}" for number in range(7, 13))):
        assert marker not in book.live_text(document)
    assert len(book.hits("cedar")) == 1
