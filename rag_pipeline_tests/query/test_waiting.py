"""`RagClient.wait`: until nothing more can come in time."""

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from rag_pipeline.adapters.postgres.facts import Facts
from rag_pipeline.adapters.postgres.schema import documents, migrate
from rag_pipeline.core.documents import Document, Status
from rag_pipeline.errors import CorruptDocumentError, EmbeddingUnavailableError, RagPipelineError
from rag_pipeline.query.client import RagClient
from rag_pipeline.settings import Settings
from rag_pipeline_tests.adapters.postgres.rows import create_knowledge_base, fail, make_ready, register

LIMITED = EmbeddingUnavailableError("HTTP 429")


@pytest.fixture
def facts(settings: Settings) -> Iterator[Facts]:
    migrate(settings.require_postgres())
    with Facts.from_settings(settings) as opened:
        yield opened


@pytest.fixture
def client(settings: Settings, facts: Facts) -> Iterator[RagClient]:
    with RagClient(settings) as opened:
        yield opened


def failed(facts: Facts, error: RagPipelineError) -> Document:
    """A document that has failed once; with a passing error it is due in about five seconds."""
    document = register(facts, create_knowledge_base(facts, "handbook"), "a.txt")
    fail(facts, {document.id: error})
    return facts.documents.get(document.id)


def test_a_document_that_is_tried_again_in_time_is_waited_for(client: RagClient, facts: Facts) -> None:
    document = failed(facts, LIMITED)
    seen: list[Status] = []

    def look(found: list[Document]) -> None:
        seen.extend(each.status for each in found)
        if len(seen) == 2:
            with facts.engine.begin() as connection:
                connection.execute(sa.update(documents).values(available_at=sa.func.now()))
            assert facts.waiting.requeue_due(limit=1) == 1
            make_ready(facts, document)

    (done,) = client.wait([document], timeout_seconds=60, progress=look)
    assert done.status is Status.READY
    assert seen == [Status.FAILED, Status.FAILED, Status.READY]


@pytest.mark.parametrize(
    ("error", "seconds"),
    [pytest.param(LIMITED, 2, id="tried again too late"), pytest.param(CorruptDocumentError("x"), 60, id="for good")],
)
def test_a_failure_that_stays_one_ends_the_wait(
    client: RagClient, facts: Facts, error: RagPipelineError, seconds: float
) -> None:
    document = failed(facts, error)
    looks: list[object] = []
    (done,) = client.wait([document], timeout_seconds=seconds, progress=looks.append)
    assert (done.status, len(looks)) == (Status.FAILED, 1)


def test_a_retry_that_does_not_come_is_said_at_the_end(client: RagClient, facts: Facts) -> None:
    document = failed(facts, LIMITED)
    with facts.engine.begin() as connection:
        connection.execute(sa.update(documents).values(available_at=sa.func.now()))
    with pytest.raises(TimeoutError, match="1 FAILED"):
        client.wait([document], timeout_seconds=0.5)
