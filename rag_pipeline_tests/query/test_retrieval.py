import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from rag_pipeline.adapters.embedders.openai import OpenAICompatibleEmbedder
from rag_pipeline.adapters.milvus import MilvusIndex
from rag_pipeline.core.ports import CollectionGeneration, SearchScope, VectorHit, VectorRow
from rag_pipeline.errors import (
    ConfigurationError,
    EmbeddingUnavailableError,
    FactsUnavailableError,
    VectorStoreUnavailableError,
)
from rag_pipeline.query.retrieval import (
    QUERY_CHARACTERS,
    LiveChunks,
    RetrievalOptions,
    RetrievalRun,
    StoredChunk,
    retrieve,
)
from rag_pipeline.settings import Settings
from rag_pipeline_tests.embedding_server import Answer, EmbeddingServer, unit_vector

DIMENSIONS = 16


@dataclass(kw_only=True)
class Corpus:
    """A filled collection, and the facts about it that a test may change."""

    index: MilvusIndex
    generation: CollectionGeneration
    server: EmbeddingServer
    embedder: OpenAICompatibleEmbedder
    live: dict[str, StoredChunk] = field(default_factory=dict)
    asked: list[list[str]] = field(default_factory=list)

    def add(
        self,
        text: str,
        *,
        document_id: str = "doc",
        version: int = 1,
        kb_id: str = "kb",
        number: int | None = None,
        live: bool = True,
        near: str | None = None,
    ) -> str:
        """Store a passage; its vector is that of the text `near` (its own by default)."""
        place = len(self.live) if number is None else number
        chunk_id = f"{document_id}_{version}_{place}"
        row = VectorRow(
            chunk_id=chunk_id,
            kb_id=kb_id,
            document_id=document_id,
            version=version,
            chunk_index=place,
            content=text,
            dense=unit_vector(near or text, DIMENSIONS),
        )
        self.index.upsert(self.generation, [row])
        if live:
            self.live[chunk_id] = StoredChunk(
                chunk_id=chunk_id,
                document_id=document_id,
                kb_id=kb_id,
                version=version,
                file_name="a.pdf",
                source_path="docs/a.pdf",
                text=text,
                start=10,
                end=10 + len(text),
                parent_id=f"{document_id}_{version}_s0",
                heading_path=("Title", "Section"),
                page=2,
                page_end=3,
                metadata={"lang": "en"},
            )
        return chunk_id

    def live_chunks(self, chunk_ids: Sequence[str]) -> Mapping[str, StoredChunk]:
        self.asked.append(list(chunk_ids))
        return {chunk_id: self.live[chunk_id] for chunk_id in chunk_ids if chunk_id in self.live}

    def retrieve(
        self,
        query: str,
        *,
        options: RetrievalOptions | None = None,
        kb_id: str = "kb",
        index: MilvusIndex | None = None,
        live_chunks: LiveChunks | None = None,
    ) -> RetrievalRun:
        return retrieve(
            query,
            kb_id=kb_id,
            index=index or self.index,
            generation=self.generation,
            embedder=self.embedder,
            live_chunks=live_chunks or self.live_chunks,
            options=options or RetrievalOptions(),
        )


@pytest.fixture
def corpus(servers: Settings) -> Iterator[Corpus]:
    generation = CollectionGeneration(
        collection=f"retrieval_{uuid.uuid4().hex[:12]}", dimensions=DIMENSIONS, analyzer="standard"
    )
    index = MilvusIndex.from_settings(servers)
    index.ensure(generation)
    with EmbeddingServer(dimensions=DIMENSIONS) as server:
        embedder = OpenAICompatibleEmbedder(url=server.url, model="test", dimensions=DIMENSIONS)
        yield Corpus(index=index, generation=generation, server=server, embedder=embedder)
        embedder.close()
    index.drop(generation)
    index.close()


class BrokenTextSearch(MilvusIndex):
    """A server whose BM25 search fails, from the call number `after` on, while the rest works."""

    after = 0

    def search_text(
        self, generation: CollectionGeneration, query: str, *, scope: SearchScope, limit: int
    ) -> list[VectorHit]:
        self.after -= 1
        if self.after < 0:
            raise VectorStoreUnavailableError("from the test")
        return super().search_text(generation, query, scope=scope, limit=limit)


def ids(run: RetrievalRun) -> list[str]:
    return [result.chunk_id for result in run.results]


def test_a_passage_that_both_channels_find_comes_first(corpus: Corpus) -> None:
    both = corpus.add("annual report")
    words = corpus.add("the annual report of another year", near="unrelated")
    vector = corpus.add("something else", near="annual report")

    run = corpus.retrieve("annual report")

    assert ids(run)[0] == both
    assert set(ids(run)) == {both, words, vector}
    assert set(run.results[0].channels) == {"dense", "bm25"}
    assert [result.rank for result in run.results] == [1, 2, 3]
    scores = [result.score for result in run.results]
    assert scores == sorted(scores, reverse=True)
    assert {trace.name: (trace.hits, trace.error) for trace in run.trace.channels} == {
        "dense": (3, None),
        "bm25": (2, None),
    }
    assert all(trace.milliseconds > 0 for trace in run.trace.channels)
    assert (run.trace.candidates, run.trace.dropped, run.trace.refills, run.trace.notes) == (3, 0, 0, ())


def test_a_result_carries_what_the_facts_say(corpus: Corpus) -> None:
    chunk_id = corpus.add("annual report")
    (result,) = corpus.retrieve("annual report").results
    stored = corpus.live[chunk_id]
    for name in StoredChunk.__slots__:
        assert getattr(result, name) == getattr(stored, name)
    assert result.channels == {"dense": 1, "bm25": 1}


@pytest.mark.parametrize(("mode", "other"), [("dense", "bm25"), ("bm25", "dense")])
def test_one_channel_alone(corpus: Corpus, mode: str, other: str) -> None:
    found = {
        "dense": corpus.add("something else", near="annual report"),
        "bm25": corpus.add("annual report of the year", near="unrelated"),
    }
    run = corpus.retrieve("annual report", options=RetrievalOptions(mode=mode, top_k=1))  # type: ignore[arg-type]
    assert ids(run) == [found[mode]]
    assert [trace.name for trace in run.trace.channels] == [mode]
    assert corpus.server.requests == (1 if mode == "dense" else 0)
    assert other not in run.results[0].channels


def test_the_search_stays_in_its_knowledge_base_and_documents(corpus: Corpus) -> None:
    inside = corpus.add("annual report", document_id="a")
    corpus.add("annual report", document_id="b")
    corpus.add("annual report", document_id="c", kb_id="other")
    assert ids(corpus.retrieve("annual report", options=RetrievalOptions(document_ids=("a", "c")))) == [inside]
    assert len(ids(corpus.retrieve("annual report"))) == 2


def test_an_empty_document_list_asks_nobody(corpus: Corpus) -> None:
    corpus.add("annual report")
    run = corpus.retrieve("annual report", options=RetrievalOptions(document_ids=()))
    assert run.results == ()
    assert run.trace.notes == ("no document to search",)
    assert corpus.server.requests == 0
    assert corpus.asked == []


def test_facts_that_belong_to_another_knowledge_base_are_not_shown(corpus: Corpus) -> None:
    chunk_id = corpus.add("annual report")
    other = corpus.add("annual report", kb_id="other", document_id="x", number=0)
    corpus.live[chunk_id] = corpus.live[other]
    assert corpus.retrieve("annual report").results == ()


@pytest.mark.parametrize("query", ["", " \n\t", "\0"], ids=repr)
def test_an_empty_query_finds_nothing(corpus: Corpus, query: str) -> None:
    corpus.add("annual report")
    run = corpus.retrieve(query)
    assert run.results == ()
    assert run.trace.notes == ("the query is empty",)


def test_a_query_is_cleaned_and_cut(corpus: Corpus) -> None:
    corpus.add("annual report")
    run = corpus.retrieve(" annual\0 \n report\ud800 ")
    assert run.trace.query == "annual report�"
    long_run = corpus.retrieve("annual report " * 10_000)
    assert len(long_run.trace.query) == QUERY_CHARACTERS
    assert "139999 characters" in long_run.trace.notes[0]
    assert len(long_run.results) == 1


def test_hits_of_versions_that_are_not_live_are_replaced_by_further_hits(corpus: Corpus) -> None:
    for number in range(50):
        corpus.add("annual report", document_id="old", number=number, live=False)
    live = {corpus.add(f"annual report {number}", document_id="doc", number=number) for number in range(6)}

    run = corpus.retrieve("annual report", options=RetrievalOptions(top_k=5, candidates=10))

    assert len(run.results) == 5
    assert set(ids(run)) <= live
    assert 1 <= run.trace.refills <= 2
    assert run.trace.dropped == 50
    assert corpus.server.requests == 1, "the query is embedded once"


def test_no_refill_when_there_is_nothing_to_replace(corpus: Corpus) -> None:
    corpus.add("annual report")
    run = corpus.retrieve("annual report", options=RetrievalOptions(top_k=5))
    assert run.trace.refills == 0
    assert len(corpus.asked) == 1


def test_refills_end_when_nothing_is_live(corpus: Corpus) -> None:
    for number in range(5):
        corpus.add("annual report", number=number, live=False)
    run = corpus.retrieve("annual report")
    assert run.results == ()
    assert run.trace.refills == 1


def test_a_version_that_goes_live_during_the_search_is_found(corpus: Corpus) -> None:
    corpus.add("annual report", version=1, number=0)

    def flip_first(chunk_ids: Sequence[str]) -> Mapping[str, StoredChunk]:
        if not corpus.asked:
            corpus.live.clear()
            corpus.add("annual report, revised", version=2, number=0)
        return corpus.live_chunks(chunk_ids)

    run = corpus.retrieve("annual report", live_chunks=flip_first)
    assert ids(run) == ["doc_2_0"]
    assert run.trace.refills == 1


def test_without_the_embedder_the_words_still_find(corpus: Corpus) -> None:
    chunk_id = corpus.add("annual report")
    corpus.server.script(*[Answer(status=500)] * 3)
    run = corpus.retrieve("annual report")
    assert ids(run) == [chunk_id]
    assert run.results[0].channels == {"bm25": 1}
    assert run.trace.notes == ("dense search failed: embedding_unavailable",)
    dense = next(trace for trace in run.trace.channels if trace.name == "dense")
    assert dense.error is not None
    assert "HTTP 500" in dense.error


def test_without_the_words_the_vectors_still_find(corpus: Corpus, servers: Settings) -> None:
    chunk_id = corpus.add("annual report")
    index = BrokenTextSearch.from_settings(servers)
    run = corpus.retrieve("annual report", index=index)
    assert ids(run) == [chunk_id]
    assert run.trace.notes == ("bm25 search failed: vector_store_unavailable",)
    index.close()


def test_a_channel_that_fails_in_a_refill_keeps_what_it_found(corpus: Corpus, servers: Settings) -> None:
    words = corpus.add("annual report", near="unrelated", number=0)
    for number in range(1, 40):
        corpus.add("other", document_id="old", near="annual report", number=number, live=False)
    index = BrokenTextSearch.from_settings(servers)
    assert isinstance(index, BrokenTextSearch)
    index.after = 1
    run = corpus.retrieve("annual report", index=index, options=RetrievalOptions(top_k=2, candidates=5))
    assert ids(run) == [words]
    assert run.trace.refills == 2
    assert run.trace.notes == ("bm25 search failed: vector_store_unavailable",)
    index.close()


def test_when_every_channel_fails_the_first_error_is_raised(corpus: Corpus, servers: Settings) -> None:
    corpus.server.script(*[Answer(status=500)] * 3)
    index = BrokenTextSearch.from_settings(servers)
    with pytest.raises(EmbeddingUnavailableError, match="HTTP 500"):
        corpus.retrieve("annual report", index=index)
    with pytest.raises(VectorStoreUnavailableError):
        corpus.retrieve("annual report", index=index, options=RetrievalOptions(mode="bm25"))
    index.close()


def test_without_the_facts_nothing_is_shown(corpus: Corpus) -> None:
    corpus.add("annual report")

    def fail(_: Sequence[str]) -> Mapping[str, StoredChunk]:
        raise FactsUnavailableError("from the test")

    with pytest.raises(FactsUnavailableError):
        corpus.retrieve("annual report", live_chunks=fail)


def test_an_error_that_is_a_bug_is_not_taken_for_a_failed_channel(corpus: Corpus) -> None:
    class Buggy(MilvusIndex):
        def search_text(self, *_: object, **__: object) -> list[VectorHit]:
            raise KeyError("from the test")

    corpus.add("annual report")
    with pytest.raises(KeyError):
        corpus.retrieve("annual report", index=Buggy(uri="http://127.0.0.1:9"))


INVALID: list[Callable[[], RetrievalOptions]] = [
    lambda: RetrievalOptions(top_k=0),
    lambda: RetrievalOptions(top_k=1_001),
    lambda: RetrievalOptions(candidates=0),
    lambda: RetrievalOptions(candidates=4_001),
    lambda: RetrievalOptions(mode="sparse"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("make", INVALID, ids=["top_k 0", "top_k 1001", "candidates 0", "candidates 4001", "mode"])
def test_options_out_of_range_are_refused(make: Callable[[], RetrievalOptions]) -> None:
    with pytest.raises(ConfigurationError):
        make()


def test_more_results_than_candidates_are_possible(corpus: Corpus) -> None:
    for number in range(12):
        corpus.add(f"annual report {number}", number=number)
    run = corpus.retrieve("annual report", options=RetrievalOptions(top_k=12, candidates=3))
    assert len(run.results) == 12
    assert np.unique([result.chunk_id for result in run.results]).size == 12
