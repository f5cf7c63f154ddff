import pytest

from rag_pipeline.adapters.postgres.facts import Facts
from rag_pipeline.core.documents import KnowledgeBase
from rag_pipeline_tests.adapters.postgres.rows import create_knowledge_base


@pytest.fixture
def kb(facts: Facts) -> KnowledgeBase:
    return create_knowledge_base(facts, "handbook")
