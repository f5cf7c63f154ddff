import uuid
from collections.abc import Iterator

import pytest

from rag_pipeline.adapters.embedders.openai import OpenAICompatibleEmbedder
from rag_pipeline.adapters.postgres.facts import Facts
from rag_pipeline.core.ports import CollectionGeneration
from rag_pipeline.settings import Settings
from rag_pipeline_tests.embedding_server import EmbeddingServer
from rag_pipeline_tests.query.corpus import DIMENSIONS, Corpus, WatchedIndex


@pytest.fixture
def corpus(servers: Settings, facts: Facts, request: pytest.FixtureRequest) -> Iterator[Corpus]:
    """A test may name another analyzer as the fixture's parameter."""
    generation = CollectionGeneration(
        collection=f"retrieval_{uuid.uuid4().hex[:12]}",
        dimensions=DIMENSIONS,
        analyzer=getattr(request, "param", "standard"),
    )
    uri, token = servers.require_milvus()
    index = WatchedIndex(uri=uri, token=token)
    index.ensure(generation)
    with EmbeddingServer(dimensions=DIMENSIONS) as server:
        embedder = OpenAICompatibleEmbedder(url=server.url, model="test", dimensions=DIMENSIONS)
        yield Corpus(index=index, generation=generation, server=server, embedder=embedder, facts=facts)
        embedder.close()
    index.drop(generation)
    index.close()
