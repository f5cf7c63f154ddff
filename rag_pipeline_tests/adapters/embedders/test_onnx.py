from pathlib import Path

import numpy as np
import pytest

from rag_pipeline.adapters.embedders.onnx import OnnxEmbedder
from rag_pipeline.errors import ConfigurationError
from rag_pipeline_tests.onnx_model import DIMENSIONS, write_json, write_model


def test_vectors_do_not_depend_on_the_company_in_a_batch(tmp_path: Path) -> None:
    embedder = OnnxEmbedder(write_model(tmp_path), dimensions=DIMENSIONS)
    texts = [f"{'x' * (number % 90)} {number}" for number in range(100)]
    together = embedder.embed_passages(texts)
    for number in (0, 1, 50, 89, 99):
        np.testing.assert_allclose(embedder.embed_passages([texts[number]])[0], together[number], atol=1e-5)


def test_the_first_token_is_taken_when_the_folder_says_so(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    mean = OnnxEmbedder(folder, dimensions=DIMENSIONS).embed_passages(["a", "b"])
    write_json(folder / "1_Pooling" / "config.json", {"pooling_mode_cls_token": True})
    first = OnnxEmbedder(folder, dimensions=DIMENSIONS).embed_passages(["a", "b"])
    assert not np.allclose(mean[0], mean[1], atol=1e-3)
    np.testing.assert_allclose(first[0], first[1], atol=1e-6)


def test_texts_are_cut_at_the_limit_of_the_model(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    write_json(folder / "config.json", {"max_position_embeddings": 6})
    embedder = OnnxEmbedder(folder, dimensions=DIMENSIONS)
    vectors = embedder.embed_passages(["abcd", "abcdefgh", "abxx"])
    np.testing.assert_allclose(vectors[0], vectors[1], atol=1e-6)
    assert not np.allclose(vectors[0], vectors[2], atol=1e-3)


def test_a_model_that_wants_token_types(tmp_path: Path) -> None:
    plain = OnnxEmbedder(write_model(tmp_path / "plain"), dimensions=DIMENSIONS)
    typed = OnnxEmbedder(write_model(tmp_path / "typed", inputs=("token_type_ids",)), dimensions=DIMENSIONS)
    np.testing.assert_allclose(plain.embed_passages(["cat"]), typed.embed_passages(["cat"]), atol=1e-6)


def test_prefixes_are_put_in_front(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    plain = OnnxEmbedder(folder, dimensions=DIMENSIONS)
    prefixed = OnnxEmbedder(folder, dimensions=DIMENSIONS, query_prefix="query: ", passage_prefix="passage: ")
    np.testing.assert_allclose(prefixed.embed_queries(["x"]), plain.embed_queries(["query: x"]), atol=1e-6)
    np.testing.assert_allclose(prefixed.embed_passages(["x"]), plain.embed_passages(["passage: x"]), atol=1e-6)


def test_an_exchanged_model_is_another_embedder(tmp_path: Path) -> None:
    first = OnnxEmbedder(write_model(tmp_path / "model"), dimensions=DIMENSIONS).identity
    second = OnnxEmbedder(write_model(tmp_path / "model", inputs=("token_type_ids",)), dimensions=DIMENSIONS).identity
    assert first.model.startswith("model-")
    assert first != second


@pytest.mark.parametrize("name", ["model.onnx", "tokenizer.json"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    folder = write_model(tmp_path)
    (folder / name).unlink()
    with pytest.raises(ConfigurationError, match=f"has no {name}"):
        OnnxEmbedder(folder, dimensions=DIMENSIONS)


@pytest.mark.parametrize("name", ["model.onnx", "tokenizer.json", "config.json", "1_Pooling/config.json"])
def test_a_damaged_file_is_named(tmp_path: Path, name: str) -> None:
    folder = write_model(tmp_path)
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(b"damaged")
    with pytest.raises(ConfigurationError, match=Path(name).name):
        OnnxEmbedder(folder, dimensions=DIMENSIONS).embed_passages(["x"])


def test_other_dimensions_are_a_configuration_error(tmp_path: Path) -> None:
    embedder = OnnxEmbedder(write_model(tmp_path), dimensions=DIMENSIONS + 1)
    with pytest.raises(ConfigurationError, match="RAG_EMBEDDING_DIMENSIONS is 17"):
        embedder.embed_passages(["x"])


def test_an_unknown_input_is_a_configuration_error(tmp_path: Path) -> None:
    embedder = OnnxEmbedder(write_model(tmp_path, inputs=("pixel_values",)), dimensions=DIMENSIONS)
    with pytest.raises(ConfigurationError, match="pixel_values"):
        embedder.embed_passages(["x"])
