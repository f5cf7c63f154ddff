import pytest

from rag_pipeline.adapters.postgres.facts import Facts
from rag_pipeline.core.documents import KnowledgeBase


@pytest.fixture
def kb(facts: Facts) -> KnowledgeBase:
    return facts.knowledge_bases.create("handbook")
