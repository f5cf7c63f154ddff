"""One set of stores for each module of cases; every test has a knowledge base of its own in it."""

from collections.abc import Iterator

import pytest

from rag_pipeline.settings import Settings
from rag_pipeline_tests.cases.book import Book
from rag_pipeline_tests.conftest import own_settings
from rag_pipeline_tests.stages.runner import Runner, running


@pytest.fixture(scope="module")
def shared(servers: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    with own_settings(servers, tmp_path_factory.mktemp("cases")) as own, running(own) as runner:
        yield runner


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
