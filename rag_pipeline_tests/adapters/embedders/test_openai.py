import base64
import itertools
import json
import logging
import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx
import numpy as np
import pytest
from pydantic import SecretStr

from rag_pipeline.adapters.embedders import openai_service
from rag_pipeline.adapters.embedders.openai import OpenAICompatibleEmbedder
from rag_pipeline.adapters.http_service import retry_after
from rag_pipeline.errors import ConfigurationError, EmbeddingRejectedError, EmbeddingUnavailableError
from rag_pipeline_tests.embedding_server import NOT_A_NUMBER, POISON, Answer, EmbeddingServer, unit_vector

DIMENSIONS = 16
KEY = "sk-secret-9f8e7d"


@pytest.fixture
def server() -> Iterator[EmbeddingServer]:
    with EmbeddingServer(dimensions=DIMENSIONS) as server:
        yield server


@pytest.fixture
def embedder(server: EmbeddingServer) -> Iterator[OpenAICompatibleEmbedder]:
    embedder = make_embedder(server.url)
    yield embedder
    embedder.close()


def make_embedder(
    url: str,
    *,
    batch_size: int = 64,
    concurrency: int = 4,
    timeout_seconds: float = 10.0,
    query_prefix: str = "",
    passage_prefix: str = "",
) -> OpenAICompatibleEmbedder:
    return OpenAICompatibleEmbedder(
        url=url,
        model="test",
        dimensions=DIMENSIONS,
        api_key=SecretStr(KEY),
        batch_size=batch_size,
        concurrency=concurrency,
        timeout_seconds=timeout_seconds,
        query_prefix=query_prefix,
        passage_prefix=passage_prefix,
    )


def expected(texts: list[str]) -> np.ndarray:
    return np.stack([unit_vector(text, DIMENSIONS) for text in texts])


def test_many_texts_are_sent_in_batches_with_bounded_requests_in_flight(server: EmbeddingServer) -> None:
    embedder = make_embedder(server.url, batch_size=10, concurrency=3)
    server.script(*[Answer(wait_seconds=0.05)] * 10)
    texts = [f"text {number}" for number in range(95)]

    vectors = embedder.embed_passages(texts)

    np.testing.assert_allclose(vectors, expected(texts), atol=1e-6)
    assert server.requests == 10
    assert server.texts == 95
    assert 2 <= server.most_in_flight <= 3
    embedder.close()


def test_prefixes_and_key_are_sent(server: EmbeddingServer) -> None:
    embedder = make_embedder(server.url, query_prefix="query: ", passage_prefix="passage: ")
    embedder.embed_passages(["a"])
    embedder.embed_queries(["b"])
    assert [request.texts for request in server.received] == [("passage: a",), ("query: b",)]
    assert {request.authorization for request in server.received} == {f"Bearer {KEY}"}
    embedder.close()


@pytest.mark.parametrize("base64_vectors", [False, True], ids=["numbers", "base64"])
def test_vectors_in_either_encoding_are_understood(base64_vectors: bool) -> None:
    with EmbeddingServer(dimensions=DIMENSIONS, base64_vectors=base64_vectors) as server:
        embedder = make_embedder(server.url)
        np.testing.assert_allclose(embedder.embed_passages(["x", "y"]), expected(["x", "y"]), atol=1e-6)
        embedder.close()


def test_vectors_are_ordered_by_index(server: EmbeddingServer, embedder: OpenAICompatibleEmbedder) -> None:
    server.script(Answer(reverse=True))
    np.testing.assert_allclose(embedder.embed_passages(["x", "y", "z"]), expected(["x", "y", "z"]), atol=1e-6)


@pytest.mark.parametrize("place", [0, 31, 32, 63], ids=lambda place: f"text {place} of 64")
def test_one_refused_text_fails_alone_and_costs_few_requests(
    server: EmbeddingServer, embedder: OpenAICompatibleEmbedder, place: int
) -> None:
    texts = [f"text {number}" for number in range(64)]
    embedder.embed_passages(["the service works"])
    server.requests = 0
    texts[place] = f"bad {POISON}"

    outcome = embedder.embed_passages_partial(texts)

    assert list(outcome.errors) == [place]
    assert isinstance(outcome.errors[place], EmbeddingRejectedError)
    assert not outcome.vectors[place].any()
    good = [number for number in range(64) if number != place]
    np.testing.assert_allclose(outcome.vectors[good], expected([texts[number] for number in good]), atol=1e-6)
    assert server.requests - 1 <= 2 * math.log2(64)


def test_several_refused_texts_are_all_found(server: EmbeddingServer, embedder: OpenAICompatibleEmbedder) -> None:
    texts = [f"{POISON} {number}" if number in {3, 4, 40, 99} else f"text {number}" for number in range(100)]
    outcome = embedder.embed_passages_partial(texts)
    assert list(outcome.errors) == [3, 4, 40, 99]
    np.testing.assert_allclose(np.linalg.norm(outcome.vectors, axis=1).sum(), 96, atol=1e-3)


def test_embed_passages_raises_when_one_text_is_refused(embedder: OpenAICompatibleEmbedder) -> None:
    with pytest.raises(EmbeddingRejectedError, match="not allowed"):
        embedder.embed_passages(["good", POISON])


def test_a_service_that_takes_fewer_texts_is_learned(caplog: pytest.LogCaptureFixture) -> None:
    with EmbeddingServer(dimensions=DIMENSIONS, most_texts=10) as server:
        embedder = make_embedder(server.url, batch_size=64, concurrency=1)
        texts = [f"text {number}" for number in range(640)]
        with caplog.at_level(logging.WARNING):
            first = embedder.embed_passages_partial(texts)
        assert not first.errors
        np.testing.assert_allclose(first.vectors, expected(texts), atol=1e-6)
        assert "RAG_EMBEDDING_BATCH_SIZE=8" in caplog.text
        server.requests = 0
        embedder.embed_passages(texts[:64])
        assert server.requests == 8
        embedder.close()


def test_a_service_that_refuses_everything_is_not_asked_for_every_text() -> None:
    with EmbeddingServer(dimensions=DIMENSIONS, refuse_everything=True) as server:
        embedder = make_embedder(server.url, concurrency=1)
        outcome = embedder.embed_passages_partial([f"text {number}" for number in range(640)])
        assert len(outcome.errors) == 640
        assert server.requests == 2
        with pytest.raises(EmbeddingRejectedError, match=r"model not found.*one-word text is refused"):
            embedder.embed_passages(["a", "b"])
        embedder.close()


@pytest.mark.parametrize(
    "answer",
    [
        Answer(status=429, headers={"Retry-After": "0"}),
        Answer(status=429),
        Answer(status=408),
        Answer(status=500),
        Answer(status=503, headers={"Retry-After": "0.1"}),
        Answer(drop_connection=True),
    ],
    ids=["429 with Retry-After", "429", "408", "500", "503", "connection dropped"],
)
def test_short_failures_are_retried(
    server: EmbeddingServer, embedder: OpenAICompatibleEmbedder, answer: Answer
) -> None:
    server.script(answer, answer)
    np.testing.assert_allclose(embedder.embed_passages(["x"]), expected(["x"]), atol=1e-6)
    assert server.requests == 3


def test_a_service_that_stays_down_is_temporary_and_keeps_what_was_paid_for(server: EmbeddingServer) -> None:
    embedder = make_embedder(server.url, batch_size=2, concurrency=1)
    server.script(Answer(), *[Answer(status=500)] * openai_service.ATTEMPTS)

    outcome = embedder.embed_passages_partial(["a", "b", "c", "d", "e", "f"])

    assert list(outcome.errors) == [2, 3, 4, 5]
    assert all(isinstance(error, EmbeddingUnavailableError) for error in outcome.errors.values())
    np.testing.assert_allclose(outcome.vectors[:2], expected(["a", "b"]), atol=1e-6)
    assert server.requests == 1 + openai_service.ATTEMPTS, "nothing is sent after a service failed"
    embedder.close()


def test_a_long_retry_after_is_handed_on_instead_of_waited_for(
    server: EmbeddingServer, embedder: OpenAICompatibleEmbedder
) -> None:
    server.script(Answer(status=429, headers={"Retry-After": "3600"}))
    with pytest.raises(EmbeddingUnavailableError) as raised:
        embedder.embed_passages(["x"])
    assert raised.value.retry_after_seconds == 3600
    assert server.requests == 1


def test_retry_after_as_a_date() -> None:
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=90), usegmt=True)
    seconds = retry_after(httpx.Headers({"Retry-After": soon}))
    assert seconds is not None
    assert 80 < seconds <= 90


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("7", 7.0), ("1.5", 1.5), ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0), ("soon", None), ("-3", None), ("", None)],
)
def test_retry_after_values(value: str, seconds: float | None) -> None:
    assert retry_after(httpx.Headers({"Retry-After": value})) == seconds


def test_a_slow_service_is_not_waited_for_again(server: EmbeddingServer) -> None:
    embedder = make_embedder(server.url, timeout_seconds=0.2)
    server.script(Answer(wait_seconds=1.0))
    with pytest.raises(EmbeddingUnavailableError, match="ReadTimeout"):
        embedder.embed_passages(["x"])
    assert server.requests == 1
    embedder.close()


def test_no_service_at_all_is_temporary() -> None:
    with EmbeddingServer(dimensions=DIMENSIONS) as server:
        url = server.url
    embedder = make_embedder(url)
    with pytest.raises(EmbeddingUnavailableError, match="ConnectError"):
        embedder.embed_queries(["x"])
    embedder.close()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (Answer(status=401), "HTTP 401"),
        (Answer(status=404), "HTTP 404"),
        (Answer(body=b"<html>sign in</html>"), "not answer like an embedding service: <html>"),
        (Answer(body=b"[]"), "not answer like"),
        (Answer(body=b'{"data": [{"index": 0, "embedding": {"a": 1}}]}'), "not answer like"),
        (Answer(body=b'{"data": [{"index": 0, "embedding": "%%%"}]}'), "not answer like"),
        (Answer(dimensions=8), "8.* dimensions; RAG_EMBEDDING_DIMENSIONS is 16"),
    ],
    ids=["wrong key", "wrong path", "html", "no object", "no vector", "no base64", "other dimensions"],
)
def test_a_wrong_configuration_is_permanent_and_asked_once(
    server: EmbeddingServer, embedder: OpenAICompatibleEmbedder, answer: Answer, message: str
) -> None:
    server.script(answer)
    with pytest.raises(EmbeddingRejectedError, match=message):
        embedder.embed_passages(["x"])
    assert server.requests == 1


def test_a_short_answer_is_not_taken_for_the_texts(server: EmbeddingServer, embedder: OpenAICompatibleEmbedder) -> None:
    server.script(Answer(leave_out=1), Answer(), Answer(leave_out=1))
    outcome = embedder.embed_passages_partial(["a", "b"])
    # The batch, the probe, "a" alone without a vector, "b" alone.
    assert list(outcome.errors) == [0]
    assert "0 vectors for 1 texts" in str(outcome.errors[0])
    np.testing.assert_allclose(outcome.vectors[1:], expected(["b"]), atol=1e-6)


@pytest.mark.parametrize("base64_vectors", [False, True], ids=["numbers", "base64"])
def test_a_vector_that_is_not_a_number_fails_its_text_alone(base64_vectors: bool) -> None:
    with EmbeddingServer(dimensions=DIMENSIONS, base64_vectors=base64_vectors) as server:
        embedder = make_embedder(server.url)
        outcome = embedder.embed_passages_partial(["a", NOT_A_NUMBER, "c"])
        assert list(outcome.errors) == [1]
        assert isinstance(outcome.errors[1], EmbeddingRejectedError)
        assert server.requests == 1
        embedder.close()


def test_zero_vectors_are_refused(server: EmbeddingServer, embedder: OpenAICompatibleEmbedder) -> None:
    server.script(Answer(zero=True))
    with pytest.raises(EmbeddingRejectedError, match="no vector for 'x'"):
        embedder.embed_passages(["x"])


def test_vectors_of_another_length_are_normalised(server: EmbeddingServer, embedder: OpenAICompatibleEmbedder) -> None:
    vector = (5 * unit_vector("x", DIMENSIONS)).astype("<f4")
    body = {"data": [{"index": 0, "embedding": base64.b64encode(vector.tobytes()).decode()}]}
    server.script(Answer(body=json.dumps(body).encode()))
    np.testing.assert_allclose(embedder.embed_passages(["x"]), expected(["x"]), atol=1e-6)


@pytest.mark.parametrize("status", [400, 401, 500], ids=lambda status: f"HTTP {status}")
def test_the_key_is_in_no_error_log_or_representation(
    server: EmbeddingServer, embedder: OpenAICompatibleEmbedder, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    body = json.dumps({"error": {"message": f"Incorrect API key provided: {KEY}. " + "x" * 5000}}).encode()
    server.script(*itertools.repeat(Answer(status=status, body=body), 6))
    with caplog.at_level(logging.DEBUG), pytest.raises((EmbeddingRejectedError, EmbeddingUnavailableError)) as raised:
        embedder.embed_passages(["x"])
    assert "Incorrect API key provided" in str(raised.value)
    assert len(str(raised.value)) < 600
    for shown in (str(raised.value), repr(raised.value), repr(embedder), repr(vars(embedder)), caplog.text):
        assert KEY not in shown


def test_a_password_in_the_url_is_in_no_error() -> None:
    embedder = make_embedder("http://user:hunter2@127.0.0.1:9/v1?token=hunter3")
    with pytest.raises(EmbeddingUnavailableError) as raised:
        embedder.embed_passages(["x"])
    assert "http://127.0.0.1:9/v1/embeddings" in str(raised.value)
    assert "hunter" not in str(raised.value)
    embedder.close()


@pytest.mark.parametrize("url", ["", "ftp://host/v1", "localhost:8000", "http://", "http://[::1"], ids=repr)
def test_a_wrong_url_is_a_configuration_error(url: str) -> None:
    with pytest.raises(ConfigurationError, match="RAG_EMBEDDING_URL"):
        make_embedder(url)


VENDOR_ERRORS = [
    error
    for error in vars(httpx).values()
    if isinstance(error, type) and issubclass(error, httpx.RequestError | httpx.StreamError)
]


@pytest.mark.parametrize("error_class", VENDOR_ERRORS, ids=lambda error: error.__name__)
def test_every_error_of_httpx_is_translated(embedder: OpenAICompatibleEmbedder, error_class: type[Exception]) -> None:
    error = error_class.__new__(error_class)
    Exception.__init__(error, "from the test")
    with pytest.raises(EmbeddingUnavailableError) as raised, embedder._service._translated():
        raise error
    assert raised.value.__cause__ is error
