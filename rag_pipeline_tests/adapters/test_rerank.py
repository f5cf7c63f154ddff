import json
from collections.abc import Iterator

import pytest
from pydantic import SecretStr

from rag_pipeline.adapters.rerank import TEXT_CHARACTERS, HttpReranker
from rag_pipeline.errors import ConfigurationError, ModelRejectedError, ModelUnavailableError
from rag_pipeline_tests.conftest import clean_settings
from rag_pipeline_tests.model_server import ModelServer, Scripted

TEXTS = ["the log", "harbour crane", "a crane"]
KEY = "secret-1234"


@pytest.fixture
def reranker(models: ModelServer) -> Iterator[HttpReranker]:
    reranker = HttpReranker(url=models.url, model="m", api_key=SecretStr(KEY), timeout_seconds=5)
    yield reranker
    reranker.close()


def test_scores_come_by_position(reranker: HttpReranker, models: ModelServer) -> None:
    assert reranker.rerank("harbour crane", TEXTS) == {1: 1.0, 2: 0.5, 0: 0.0}
    assert models.reranks == [{"query": "harbour crane", "documents": TEXTS, "top_n": 3, "model": "m"}]
    assert models.authorizations == [f"Bearer {KEY}"]


def test_the_shape_of_text_embeddings_inference(models: ModelServer) -> None:
    reranker = HttpReranker(url=models.url + "/", api="tei")
    assert reranker.rerank("harbour crane", TEXTS) == {1: 1.0, 2: 0.5, 0: 0.0}
    assert models.reranks == [{"query": "harbour crane", "texts": TEXTS, "truncate": True}]
    reranker.close()


def test_long_passages_are_cut_and_cleaned(reranker: HttpReranker, models: ModelServer) -> None:
    reranker.rerank("a", ["\0\ud800" + "x" * 20_000])
    (sent,) = models.reranks[0]["documents"]
    assert sent.startswith("�xxx")
    assert len(sent) == TEXT_CHARACTERS


def test_places_that_do_not_exist_are_passed_over(reranker: HttpReranker, models: ModelServer) -> None:
    rows = [{"index": 99, "relevance_score": 0.99}, {"index": -1, "relevance_score": 0.9}, {"index": 1, "score": 0.4}]
    models.script_rerank(Scripted(body=json.dumps({"results": rows})))
    assert reranker.rerank("a", TEXTS) == {1: 0.4}


NONSENSE = {
    "not JSON": "{not json",
    "a number": "3",
    "no results": '{"data": []}',
    "empty results": '{"results": []}',
    "rows that are no objects": '{"results": [1, 2]}',
    "a score that is no number": '{"results": [{"index": 0, "relevance_score": NaN}]}',
    "a score as text": '{"results": [{"index": 0, "relevance_score": "high"}]}',
    "only places that do not exist": '{"results": [{"index": 99, "relevance_score": 1}]}',
}


@pytest.mark.parametrize("body", NONSENSE.values(), ids=NONSENSE.keys())
def test_an_answer_without_sense_is_refused(reranker: HttpReranker, models: ModelServer, body: str) -> None:
    models.script_rerank(Scripted(body=body))
    with pytest.raises(ModelRejectedError, match="does not answer as expected"):
        reranker.rerank("a", TEXTS)


@pytest.mark.parametrize("status", [400, 401, 404])
def test_a_refused_request_is_permanent_and_sent_once(reranker: HttpReranker, models: ModelServer, status: int) -> None:
    models.script_rerank(Scripted(status=status, body=json.dumps({"error": f"bad key {KEY}"})))
    with pytest.raises(ModelRejectedError, match=rf"HTTP {status}: bad key \[key\]$"):
        reranker.rerank("a", TEXTS)
    assert len(models.reranks) == 1


@pytest.mark.parametrize(
    "failure",
    [Scripted(status=500), Scripted(status=429, headers={"Retry-After": "0"}), Scripted(drop_connection=True)],
    ids=["500", "429", "dropped connection"],
)
def test_a_passing_failure_is_tried_once_more(reranker: HttpReranker, models: ModelServer, failure: Scripted) -> None:
    models.script_rerank(failure)
    assert reranker.rerank("harbour crane", TEXTS)[1] == 1.0
    models.script_rerank(failure, failure)
    with pytest.raises(ModelUnavailableError):
        reranker.rerank("a", TEXTS)
    assert len(models.reranks) == 4


def test_a_long_retry_after_is_not_waited_for(reranker: HttpReranker, models: ModelServer) -> None:
    models.script_rerank(Scripted(status=429, headers={"Retry-After": "3600"}))
    with pytest.raises(ModelUnavailableError) as caught:
        reranker.rerank("a", TEXTS)
    assert caught.value.retry_after_seconds == 3600
    assert len(models.reranks) == 1


def test_a_service_that_hangs_is_given_up_and_not_asked_again(models: ModelServer) -> None:
    reranker = HttpReranker(url=models.url, timeout_seconds=0.2)
    models.script_rerank(Scripted(wait_seconds=60))
    with pytest.raises(ModelUnavailableError, match="Timeout"):
        reranker.rerank("a", TEXTS)
    assert len(models.reranks) == 1
    reranker.close()


def test_nobody_listens() -> None:
    reranker = HttpReranker(url="http://127.0.0.1:9/v1")
    with pytest.raises(ModelUnavailableError, match=r"http://127.0.0.1:9/v1/rerank: ConnectError"):
        reranker.rerank("a", TEXTS)
    reranker.close()


@pytest.mark.parametrize("url", ["localhost:80", "ftp://host", "http://"])
def test_a_wrong_url_is_refused_at_once(url: str) -> None:
    with pytest.raises(ConfigurationError, match="RAG_RERANK_URL"):
        HttpReranker(url=url)


def test_settings_name_the_service() -> None:
    assert HttpReranker.from_settings(clean_settings()) is None
    assert HttpReranker.from_settings(clean_settings(rerank_url="http://127.0.0.1:9")) is not None
