"""Cases pf-01 to pf-04: rate limits, wrong numbers of vectors, killed runs, another embedding model."""

import multiprocessing
import os
import signal
from collections.abc import Sequence

import pytest

from rag_pipeline.core.documents import Document, Stage, Status
from rag_pipeline.core.work import StageOutcome
from rag_pipeline.settings import Settings
from rag_pipeline.stages.batch import BatchRequest, run_batch
from rag_pipeline.stages.services import Services
from rag_pipeline_tests.adapters.postgres.rows import silence
from rag_pipeline_tests.cases.book import Book
from rag_pipeline_tests.contents import contents
from rag_pipeline_tests.embedding_server import Answer
from rag_pipeline_tests.stages.runner import ALL, running_system_again

LEASE_SECONDS = 60.0


def long_text(word: str) -> str:
    """About forty passages."""
    return "\n\n".join(f"# {word} {number}\n\n" + f"Paragraph {number} about the {word}. " * 40 for number in range(40))


@pytest.mark.parametrize(
    "script",
    [
        pytest.param([Answer(status=429, headers={"Retry-After": "1"})] * 3, id="three rate limits"),
        pytest.param([Answer(status=500)] * 2, id="two server errors"),
        pytest.param([Answer(drop_connection=True)], id="connection dropped"),
    ],
)
def test_passing_trouble_of_the_embedder_ends_ready_and_pays_little_twice(book: Book, script: list[Answer]) -> None:
    before = book.embedding.texts
    book.embedding.script(*script)
    document = book.upload("report.md", long_text(f"kestrel{len(script)}{script[0].status}"))
    book.runner.run_queued()
    for _ in range(2):
        if book.client.document(document.id).status is not Status.READY:
            book.try_again()
    done = book.client.document(document.id)
    assert done.status is Status.READY
    rows, vectors = book.stored(done)
    assert rows == vectors == done.chunk_count
    # Refused requests are not billed, but counted here.
    assert (
        book.embedding.texts - before <= 1.5 * rows + len(script) * book.runner.services.settings.embedding_batch_size
    )


def test_endless_rate_limit_ends_dead_with_nothing_to_be_found(book: Book) -> None:
    book.embedding.script(*[Answer(status=429)] * 400)
    document = book.upload("report.md", long_text("merlin"))
    book.runner.run_queued()
    for _ in range(3):
        assert book.hits("merlin") == []
        book.try_again()
    done = book.client.document(document.id)
    assert done.status is Status.FAILED
    assert done.error is not None
    assert (done.error.error_class, done.error.stage) == ("dead", "embeddings")
    assert "429" in done.error.message
    assert book.stored(done) == (0, 0)
    book.embedding.forget_script()
    book.client.retry(document.id)
    book.runner.run_queued()
    assert book.client.document(document.id).status is Status.READY


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(Answer(leave_out=1), id="one vector short"),
        pytest.param(Answer(body=b'{"data": [{"index": 0, "embedding": [1.0]}, {"index": 2}]}'), id="gap"),
        pytest.param(Answer(zero=True), id="zero vectors"),
        pytest.param(Answer(dimensions=8), id="too few dimensions"),
    ],
)
def test_wrong_vectors_fail_and_nothing_is_indexed_until_the_service_is_mended(book: Book, answer: Answer) -> None:
    book.embedding.script(*[answer] * 400)
    document = book.ingest("report.md", long_text(f"hobby {id(answer)}"))
    for _ in range(3):
        if document.error is not None and document.error.error_class == "temporary":
            book.try_again()
            document = book.client.document(document.id)
    assert document.status is Status.FAILED
    assert document.error is not None
    assert book.stored(document) == (0, 0)
    book.embedding.forget_script()
    book.client.retry(document.id)
    book.runner.run_queued()
    done = book.client.document(document.id)
    assert done.status is Status.READY
    assert book.stored(done) == (done.chunk_count, done.chunk_count)


def die_after(settings: Settings, request: BatchRequest, stage: Stage) -> None:
    """In a process of its own: run the batch and be killed when a stage has been reported."""

    def report(reported: Stage, _: Sequence[StageOutcome]) -> None:
        if reported is stage:
            os.kill(os.getpid(), signal.SIGKILL)

    with Services.from_settings(settings) as services:
        run_batch(services, request, report)


@pytest.mark.parametrize("stage", list(Stage), ids=str)
def test_run_that_is_killed_leaves_nothing_stuck_and_nothing_double(book: Book, stage: Stage) -> None:
    document = book.upload("doc.txt", long_text(f"osprey {stage}"))
    book.runner.claim(f"killed at {stage}")
    request = book.runner.request_of(f"killed at {stage}")
    process = multiprocessing.get_context("spawn").Process(
        target=die_after, args=(book.runner.services.settings, request, stage)
    )
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    silence(book.runner.services.facts, f"killed at {stage}", 2 * LEASE_SECONDS)
    claims = book.runner.services.facts.claims
    claims.take_back(f"killed at {stage}", reason="killed", lease_seconds=LEASE_SECONDS)
    # READY was written before the report of the last stage, so nothing is left to do then.
    expected = Status.READY if stage is Stage.INDEX_WRITES else Status.PENDING
    assert book.client.document(document.id).status is expected
    book.runner.run_queued()
    assert_whole(book, document)
    book.client.delete(document.id)
    book.runner.remove()
    again = book.ingest("doc.txt", "Uploaded again.")
    assert (again.status, again.id == document.id) == (Status.READY, False)


def assert_whole(book: Book, document: Document) -> None:
    done = book.client.document(document.id)
    assert done.status is Status.READY
    own = contents(book.runner.services).of(document.id)
    assert own.chunk_rows == own.vectors == {f"{document.id}_1_{index}" for index in range(done.chunk_count or 0)}


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"embedding_dimensions": 32}, id="another size"),
        pytest.param({"embedding_model": "another model"}, id="same size"),
    ],
)
def test_another_embedding_model_is_noticed_before_a_row_is_written(book: Book, changes: dict[str, object]) -> None:
    old = book.ingest("old.txt", "The lighthouse stands on the cape.")
    assert old.status is Status.READY
    new = book.upload("new.txt", "The windmill stands on the hill.")
    book.embedding.dimensions = int(str(changes.get("embedding_dimensions", 16)))
    try:
        with running_system_again(book.runner, **changes) as changed:
            changed.run_queued()
        failed = book.client.document(new.id)
        assert (failed.status, book.stored(failed)) == (Status.FAILED, (0, 0))
        assert failed.error is not None
        for value in ("loopback/16", str(next(iter(changes.values())))):
            assert value in failed.error.message
    finally:
        book.embedding.dimensions = 16
    assert book.sources("lighthouse") == ["old.txt"]
    book.client.retry(new.id)
    book.runner.run(book.client.document(new.id), stages=ALL, force=True)
    assert book.sources("windmill") == ["new.txt"]
