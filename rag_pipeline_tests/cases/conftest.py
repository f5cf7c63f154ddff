"""One set of stores for each module of cases; every test has a knowledge base of its own in it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

from rag_pipeline.query.client import RagClient
from rag_pipeline.settings import Settings
from rag_pipeline_tests.cases.book import Book
from rag_pipeline_tests.conftest import own_settings
from rag_pipeline_tests.model_server import ModelServer
from rag_pipeline_tests.stages.runner import KB, Runner, running


@pytest.fixture(scope="module")
def shared(servers: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    with own_settings(servers, tmp_path_factory.mktemp("cases")) as own, running(own) as runner:
        yield runner


@contextmanager
def reading(
    servers: Settings, tmp_path_factory: pytest.TempPathFactory, files: Mapping[str, bytes]
) -> Iterator[Runner]:
    """Stores in which these files are READY."""
    with own_settings(servers, tmp_path_factory.mktemp("cases")) as own, running(own) as found:
        documents = [found.system.client.submit(KB, content, filename=name) for name, content in files.items()]
        assert found.run(*documents).ready == len(files)
        yield found


@pytest.fixture
def client(runner: Runner, models: ModelServer) -> Iterator[RagClient]:
    """A client of the module's `runner` whose questions the model server answers."""
    chat = {"chat_url": models.url, "chat_model": "m"}
    with RagClient(runner.system.settings.model_copy(update=chat)) as client:
        yield client


@pytest.fixture
def book(shared: Runner, request: pytest.FixtureRequest) -> Iterator[Book]:
    found = Book(runner=shared, name=request.node.name[:90].replace("/", "-"))
    shared.system.client.create_knowledge_base(found.name)
    yield found
    shared.system.embedding.forget_script()
    shared.system.embedding.most_texts = 10_000
    shared.system.client.delete_knowledge_base(found.name)
    shared.make_due()
    shared.remove()
