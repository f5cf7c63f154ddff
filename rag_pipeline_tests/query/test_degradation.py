"""Every helper that fails is left out with a note in the trace; only when every recall channel fails is it an error."""

import asyncio
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from pydantic import SecretStr

from rag_pipeline.adapters.chat import OpenAICompatibleChat
from rag_pipeline.adapters.milvus import MilvusIndex
from rag_pipeline.adapters.rerank import HttpReranker
from rag_pipeline.core.ports import VectorHit
from rag_pipeline.errors import EmbeddingUnavailableError, FactsUnavailableError, VectorStoreUnavailableError
from rag_pipeline.query.options import RetrievalOptions
from rag_pipeline.query.results import RetrievalRun
from rag_pipeline_tests.defs.system import wait_until
from rag_pipeline_tests.embedding_server import Answer
from rag_pipeline_tests.model_server import ModelServer, Scripted
from rag_pipeline_tests.query.corpus import Corpus, WatchedIndex, WatchedPassages, ids
from rag_pipeline_tests.query.library import LIBRARY, Library

EMBEDDER_DOWN = [Answer(status=500)] * 3
NOBODY = "http://127.0.0.1:9"


@pytest.fixture
def equipped(corpus: Corpus, models: ModelServer) -> Iterator[Corpus]:
    """A corpus with a reranker and a chat model."""
    reranker = HttpReranker(url=models.url, timeout_seconds=0.5)
    chat = OpenAICompatibleChat(url=models.url, model="m", timeout_seconds=5)
    corpus.reranker, corpus.chat = reranker, chat
    yield corpus
    reranker.close()
    chat.close()


def failures(run: RetrievalRun) -> dict[str, str]:
    return {each.step: each.code for each in run.trace.degradations}


HARBOUR = (
    "The harbour crane lifts forty tonnes.",
    "Crane service dates for the harbour.",
    "The harbour master signs the log.",
    "A crane is also a bird.",
    "Harbour fees rose in spring.",
)
RERANK_FAILURES = {
    "401": (Scripted(status=401), "model_rejected"),
    "500": (Scripted(status=500), "model_unavailable"),
    "hang": (Scripted(wait_seconds=30), "model_unavailable"),
    "malformed": (Scripted(body="{not json"), "model_rejected"),
    "not a number": (Scripted(body='{"results": [{"index": 0, "relevance_score": NaN}]}'), "model_rejected"),
    "dropped": (Scripted(drop_connection=True), "model_unavailable"),
}


@pytest.mark.parametrize(("failure", "code"), RERANK_FAILURES.values(), ids=RERANK_FAILURES.keys())
def test_without_the_reranker_the_fused_order_stays(
    equipped: Corpus, models: ModelServer, failure: Scripted, code: str
) -> None:
    for text in HARBOUR:
        equipped.add(text)
    expected = equipped.retrieve("harbour crane", options=RetrievalOptions(rerank=False))
    assert models.reranks == []
    models.script_rerank(failure, failure)
    run = equipped.retrieve("harbour crane")
    assert len(run.results) == 5
    assert run.results == expected.results
    assert not run.trace.is_reranked
    assert failures(run) == {"rerank": code}


def test_a_reranker_that_works_decides(equipped: Corpus, models: ModelServer) -> None:
    for text in HARBOUR:
        equipped.add(text)
    run = equipped.retrieve("harbour crane")
    assert run.trace.is_reranked
    assert failures(run) == {}
    scores = [result.rerank_score for result in run.results]
    assert scores == sorted(scores, key=lambda score: -(score or 0))
    assert [result.rank for result in run.results] == [1, 2, 3, 4, 5]
    assert models.reranks[0]["query"] == "harbour crane"
    assert all(text.startswith("Title > Section\n") for text in models.reranks[0]["documents"])


def test_a_partial_rerank_keeps_the_rest_behind(equipped: Corpus, models: ModelServer) -> None:
    for text in HARBOUR:
        equipped.add(text)
    plain = ids(equipped.retrieve("harbour crane", options=RetrievalOptions(rerank=False)))
    models.script_rerank(
        Scripted(body='{"results": [{"index": 99, "relevance_score": 1}, {"index": 3, "relevance_score": -0.5}]}')
    )
    run = equipped.retrieve("harbour crane")
    assert ids(run) == [plain[3], *(each for each in plain if each != plain[3])]
    assert [result.rerank_score for result in run.results] == [-0.5, None, None, None, None]
    assert run.trace.is_reranked


def test_no_more_than_the_candidates_are_reranked(equipped: Corpus, models: ModelServer) -> None:
    for number in range(12):
        equipped.add(f"annual report {number}", near=f"unrelated {number}")
    equipped.retrieve("annual report", options=RetrievalOptions(top_k=2, candidates=6))
    assert len(models.reranks[0]["documents"]) == 6


def test_a_missing_endpoint_is_noted(corpus: Corpus) -> None:
    corpus.add("annual report")
    run = corpus.retrieve("annual report", options=RetrievalOptions(rerank=True, rewrite=True))
    assert len(run.results) == 1
    assert run.trace.notes == ("not rewritten: RAG_CHAT_URL is not set", "not reranked: RAG_RERANK_URL is not set")


def test_the_rewritten_question_is_searched_as_well(equipped: Corpus, models: ModelServer) -> None:
    models.answer = '  "voltage of the pump"\n'
    found = equipped.add("voltage of the pump")
    run = equipped.retrieve(
        "and how strong is it?",
        options=RetrievalOptions(rewrite=True, rerank=False),
        earlier_questions=["Is there a <pump>?"],
    )
    assert run.trace.variants == ("and how strong is it?", "voltage of the pump")
    assert run.results[0].channels.keys() == {"dense", "dense:rewritten", "bm25:rewritten"}
    assert ids(run) == [found]
    (request,) = models.chats
    assert "- Is there a &lt;pump>?" in request["messages"][1]["content"]
    assert equipped.server.requests == 1, "both variants are embedded in one request"


@pytest.mark.parametrize("reply", ["", " \n", "annual report", "Annual Report", "x" * 401], ids=repr)
def test_a_reply_that_is_no_other_query_is_not_used(equipped: Corpus, models: ModelServer, reply: str) -> None:
    models.answer = reply
    equipped.add("annual report")
    run = equipped.retrieve("annual report", options=RetrievalOptions(rewrite=True))
    assert run.trace.variants == ("annual report",)
    assert failures(run) == {}


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (Scripted(status=500), "model_unavailable"),
        (Scripted(status=401), "model_rejected"),
        (Scripted(wait_seconds=30), "model_unavailable"),
    ],
    ids=["500", "401", "hang"],
)
def test_without_the_rewriter_the_question_is_searched_as_it_is(
    equipped: Corpus, models: ModelServer, failure: Scripted, code: str
) -> None:
    found = equipped.add("annual report")
    models.script_chat(failure, failure)
    run = equipped.retrieve("annual report", options=RetrievalOptions(rewrite=True))
    assert ids(run) == [found]
    assert run.trace.variants == ("annual report",)
    assert failures(run) == {"rewrite": code}


def test_without_the_embedder_the_words_still_find(corpus: Corpus) -> None:
    chunk_id = corpus.add("annual report")
    corpus.server.script(*EMBEDDER_DOWN)
    run = corpus.retrieve("annual report")
    assert ids(run) == [chunk_id]
    assert run.results[0].channels == {"bm25": 1}
    assert failures(run) == {"dense": "embedding_unavailable"}
    dense = next(trace for trace in run.trace.channels if trace.name == "dense")
    assert dense.error is not None
    assert "HTTP 500" in dense.error


def test_without_the_words_the_vectors_still_find(corpus: Corpus) -> None:
    chunk_id = corpus.add("annual report")
    corpus.index.text_searches_before_failure = 0
    run = corpus.retrieve("annual report")
    assert ids(run) == [chunk_id]
    assert run.results[0].channels == {"dense": 1}
    assert failures(run) == {"bm25": "vector_store_unavailable"}


def test_a_channel_that_fails_for_the_rewritten_question_keeps_what_it_found(
    equipped: Corpus, models: ModelServer
) -> None:
    models.answer = "yearly figures"
    chunk_id = equipped.add("annual report", near="unrelated")
    equipped.index.text_searches_before_failure = 1
    run = equipped.retrieve("annual report", options=RetrievalOptions(rewrite=True))
    assert run.results[0].chunk_id == chunk_id
    assert "bm25" in run.results[0].channels
    assert failures(run) == {"bm25": "vector_store_unavailable"}


def test_a_channel_that_fails_in_a_refill_keeps_what_it_found(corpus: Corpus) -> None:
    words = corpus.add("annual report", near="unrelated", number=0)
    for number in range(1, 40):
        corpus.add("other", document_id="old", near="annual report", number=number, live=False)
    corpus.index.text_searches_before_failure = 1
    run = corpus.retrieve("annual report", options=RetrievalOptions(top_k=2, candidates=5))
    assert ids(run) == [words]
    assert run.trace.refills == 2
    assert failures(run) == {"bm25": "vector_store_unavailable"}


def test_without_the_sections_the_hits_stay_as_they_are(corpus: Corpus) -> None:
    found = corpus.add("annual report")
    corpus.add("next chunk", start=24)
    corpus.sections_fail = True
    run = corpus.retrieve("annual report", options=RetrievalOptions(expand=True, top_k=1))
    assert ids(run) == [found]
    assert run.results[0].text == "annual report"
    assert failures(run) == {"expansion": "facts_unavailable"}


HELPERS = ("rewrite", "rerank", "expansion", "dense", "bm25")
"""In the order in which a trace names them."""


@pytest.mark.parametrize(
    "failing",
    [combination for size in range(len(HELPERS) + 1) for combination in itertools.combinations(HELPERS, size)],
    ids=lambda failing: " and ".join(failing) or "nothing",
)
def test_every_combination_of_failures(equipped: Corpus, models: ModelServer, failing: tuple[str, ...]) -> None:
    models.answer = "yearly report"
    found = equipped.add("annual report")
    if "dense" in failing:
        equipped.server.script(*EMBEDDER_DOWN)
    if "bm25" in failing:
        equipped.index.text_searches_before_failure = 0
    if "rewrite" in failing:
        models.script_chat(Scripted(status=401))
    if "rerank" in failing:
        models.script_rerank(Scripted(status=401))
    equipped.sections_fail = "expansion" in failing
    options = RetrievalOptions(rewrite=True, expand=True)
    if {"dense", "bm25"} <= set(failing):
        with pytest.raises(EmbeddingUnavailableError, match="HTTP 500"):
            equipped.retrieve("annual report", options=options)
        return
    run = equipped.retrieve("annual report", options=options)
    assert ids(run) == [found]
    assert tuple(failures(run)) == failing
    assert run.trace.is_reranked == ("rerank" not in failing)
    assert run.results[0].is_expanded is False
    assert ("yearly report" in run.trace.variants) == ("rewrite" not in failing)
    assert {name.partition(":")[0] for name in run.results[0].channels} == {"dense", "bm25"} - set(failing)
    assert {trace.name for trace in run.trace.channels if trace.error} == {"dense", "bm25"} & set(failing)


def test_everything_that_may_fail_fails_at_once(equipped: Corpus, models: ModelServer) -> None:
    found = equipped.add("annual report")
    equipped.server.script(*EMBEDDER_DOWN)
    models.script_chat(Scripted(status=401))
    models.script_rerank(Scripted(status=401))
    equipped.sections_fail = True
    run = equipped.retrieve("annual report", options=RetrievalOptions(rewrite=True, expand=True))
    assert ids(run) == [found]
    assert list(failures(run)) == ["rewrite", "rerank", "expansion", "dense"]


def test_when_every_channel_fails_the_first_error_is_raised(corpus: Corpus) -> None:
    corpus.server.script(*EMBEDDER_DOWN)
    corpus.index.text_searches_before_failure = 0
    with pytest.raises(EmbeddingUnavailableError, match="HTTP 500"):
        corpus.retrieve("annual report")
    with pytest.raises(VectorStoreUnavailableError):
        corpus.retrieve("annual report", options=RetrievalOptions(mode="bm25"))


def test_when_the_vector_store_is_gone_both_channels_fail(corpus: Corpus) -> None:
    corpus.add("annual report")
    with pytest.raises(VectorStoreUnavailableError):
        corpus.retrieve("annual report", engine=corpus.with_index(WatchedIndex(uri=NOBODY)))


@pytest.mark.parametrize(
    ("gone", "error"),
    [
        ("postgres_url", FactsUnavailableError),
        ("milvus_uri", VectorStoreUnavailableError),
    ],
)
def test_a_client_whose_server_is_gone_says_which_one(
    library: Library, models: ModelServer, gone: str, error: type[Exception]
) -> None:
    address = SecretStr("postgresql://nobody@127.0.0.1:9/rag") if gone == "postgres_url" else NOBODY
    with library.client(models, **{gone: address}) as client:
        for call in (client.search, client.ask, client.stream):
            with pytest.raises(error):
                call(LIBRARY, "deposit")
    assert models.chats == [], "without evidence no model is asked"


def test_a_client_whose_every_helper_is_gone_still_answers_from_the_words(library: Library) -> None:
    gone: dict[str, Any] = {"embedding_url": NOBODY, "rerank_url": NOBODY, "chat_url": NOBODY, "chat_model": "m"}
    options = RetrievalOptions(document_ids=library.ids("lease.md"), rewrite=True)
    with library.client(**gone) as client:
        answer = client.ask(LIBRARY, "What is the deposit?", options=options)
        streamed = client.stream(LIBRARY, "What is the deposit?", options=options)
        assert "".join(streamed) == answer.text
    assert answer.kind == "extractive"
    assert "400 euro" in answer.text
    assert [each.step for each in answer.trace.degradations] == ["rewrite", "rerank", "dense", "answer"]
    assert {each.code for each in answer.trace.degradations} == {"model_unavailable", "embedding_unavailable"}


def test_without_the_facts_nothing_is_shown(corpus: Corpus) -> None:
    corpus.add("annual report")
    corpus.facts_fail = True
    with pytest.raises(FactsUnavailableError):
        corpus.retrieve("annual report")


@pytest.mark.parametrize("cancellation", [KeyboardInterrupt, asyncio.CancelledError, GeneratorExit])
def test_cancellation_is_no_failed_channel(corpus: Corpus, cancellation: type[BaseException]) -> None:
    class Canceled(MilvusIndex):
        def search_text(self, *_: object, **__: object) -> list[VectorHit]:
            raise cancellation

    corpus.add("annual report")
    with pytest.raises(cancellation):
        corpus.retrieve("annual report", engine=corpus.with_index(Canceled(uri=NOBODY)))


@pytest.mark.parametrize("cancellation", [KeyboardInterrupt, asyncio.CancelledError, GeneratorExit])
@pytest.mark.parametrize("place", ["rewriting", "embedding", "reranking", "looking at the hits", "expanding"])
def test_cancellation_at_any_step_passes_through(
    equipped: Corpus, monkeypatch: pytest.MonkeyPatch, cancellation: type[BaseException], place: str
) -> None:
    def cancel(*_: object, **__: object) -> NoReturn:
        raise cancellation

    equipped.add("annual report")
    part, method = {
        "rewriting": (equipped.chat, "complete"),
        "embedding": (equipped.embedder, "embed_queries"),
        "reranking": (equipped.reranker, "rerank"),
        "looking at the hits": (WatchedPassages, "live"),
        "expanding": (WatchedPassages, "sections"),
    }[place]
    monkeypatch.setattr(part, method, cancel)
    with pytest.raises(cancellation):
        equipped.retrieve("annual report", options=RetrievalOptions(rewrite=True, expand=True))


@pytest.mark.parametrize("is_streaming", [False, True], ids=["whole", "streaming"])
def test_a_question_that_is_canceled_while_the_model_answers_ends_at_once(
    library: Library, models: ModelServer, tmp_path: Path, is_streaming: bool
) -> None:
    """A process that is interrupted while the model says nothing more; the connection to the model is closed."""
    models.hang_after = 1
    if not is_streaming:
        models.script_chat(*[Scripted(wait_seconds=120.0)] * 3)
    settings = library.settings.model_copy(
        update={"chat_url": models.url, "chat_model": "m", "chat_timeout_seconds": 120.0}
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAG_")}
    arguments = ["ask", "What is the deposit?", "--kb", LIBRARY, "--document", "lease.md"]
    process = subprocess.Popen(
        [sys.executable, "-m", "rag_pipeline.cli.main", *arguments, *(["--stream"] if is_streaming else [])],
        cwd=tmp_path,
        env={**kept, **settings.as_environment()},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: len(models.chats), lambda count: count == 1)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
    finally:
        process.kill()
        process.wait()
    assert len(models.chats) == 1, "who cancels does not ask again"
