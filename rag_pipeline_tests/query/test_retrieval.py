from collections.abc import Callable

import pytest
import sqlalchemy as sa

from rag_pipeline.adapters.milvus import MilvusIndex
from rag_pipeline.adapters.postgres.schema import document_versions, documents
from rag_pipeline.core.analysis import ANALYZER
from rag_pipeline.core.ports import VectorHit
from rag_pipeline.errors import ConfigurationError
from rag_pipeline.query import retrieval
from rag_pipeline.query.options import RetrievalOptions
from rag_pipeline.query.retrieval import QUERY_CHARACTERS
from rag_pipeline_tests.query.corpus import Corpus, ids


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


@pytest.mark.parametrize(
    "corpus", [pytest.param(ANALYZER, id="words of the index"), pytest.param("standard", id="analysed")], indirect=True
)
def test_of_two_passages_that_both_channels_find_the_one_with_the_words_side_by_side_wins(corpus: Corpus) -> None:
    filler = "steel parts of many sizes " * 8
    far = corpus.add(f"pump pump pump {filler} service service service", near="unrelated")
    near = corpus.add(f"{filler} {filler} pump service", near="pump service")

    run = corpus.retrieve("pump service")

    assert ids(run) == [near, far]
    assert run.results[0].channels == {"dense": 1, "bm25": 2}
    assert run.results[1].channels == {"dense": 2, "bm25": 1}
    assert run.trace.weights == {"bm25": 1.5, "nearness": 0.75}
    assert ids(corpus.retrieve("pump service", options=RetrievalOptions(mode="bm25"))) == [far, near]
    assert corpus.retrieve("pump service", options=RetrievalOptions(mode="dense")).trace.weights == {}


def test_a_question_in_other_words_is_left_to_the_vectors(corpus: Corpus) -> None:
    question = "how often is the pump serviced in winter by the plumber"
    found = corpus.add("Wartung der Pumpe", near=question)
    corpus.add("often", near="unrelated", document_id="other")
    run = corpus.retrieve(question)
    assert ids(run)[0] == found
    assert run.trace.weights == {"bm25": 0.0}


def test_a_result_carries_what_the_facts_say(corpus: Corpus) -> None:
    chunk_id = corpus.add("annual report", metadata={"lang": "en"}, locator={"sheet": "A"})
    (result,) = corpus.retrieve("annual report").results
    assert (result.chunk_id, result.document_id, result.kb_id, result.version) == (chunk_id, "doc", "kb", 1)
    assert (result.file_name, result.source_path) == ("doc.pdf", "docs/doc.pdf")
    assert (result.text, result.start, result.end) == ("annual report", 10, 23)
    assert (result.parent_id, result.heading_path) == ("doc_1_s0", ("Title", "Section"))
    assert (result.page, result.page_end) == (2, 3)
    assert result.metadata == {"lang": "en", "sheet": "A"}
    assert result.channels == {"dense": 1, "bm25": 1}
    assert (result.matches, result.is_expanded, result.rerank_score) == ((chunk_id,), False, None)


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


def test_a_row_of_the_index_under_a_wrong_knowledge_base_is_not_shown(corpus: Corpus) -> None:
    chunk_id = corpus.add("annual report", document_id="x", kb_id="other")
    with corpus.facts.engine.begin() as connection:
        corpus.add("something else", document_id="y")
        connection.execute(sa.update(documents).where(documents.c.id == "x").values(kb_id="kb"))
    assert corpus.retrieve("annual report", kb_id="other").results == ()
    assert chunk_id not in ids(corpus.retrieve("annual report"))


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

    def flip_first(looks: int) -> None:
        if not looks:
            corpus.add("annual report, revised", version=2, number=0)

    corpus.before_live = flip_first  # type: ignore[method-assign]
    run = corpus.retrieve("annual report")
    assert ids(run) == ["doc_2_0"]
    assert run.trace.refills == 1


def test_an_error_that_is_a_bug_is_not_taken_for_a_failed_channel(corpus: Corpus) -> None:
    class Buggy(MilvusIndex):
        def search_text(self, *_: object, **__: object) -> list[VectorHit]:
            raise KeyError("from the test")

    corpus.add("annual report")
    with pytest.raises(KeyError):
        corpus.retrieve("annual report", engine=corpus.with_index(Buggy(uri="http://127.0.0.1:9")))


INVALID: list[Callable[[], RetrievalOptions]] = [
    lambda: RetrievalOptions(top_k=0),
    lambda: RetrievalOptions(top_k=101),
    lambda: RetrievalOptions(candidates=0),
    lambda: RetrievalOptions(candidates=101),
    lambda: RetrievalOptions(mode="sparse"),  # type: ignore[arg-type]
    lambda: RetrievalOptions(document_ids="doc"),  # type: ignore[arg-type]
    lambda: RetrievalOptions(principals="alice"),  # type: ignore[arg-type]
    lambda: RetrievalOptions(filters={"lang": {"like": "e%"}}),
    lambda: RetrievalOptions(expanded_characters=0),
    lambda: RetrievalOptions(document_ids=("a", "b\0")),
    lambda: RetrievalOptions(principals=("new\nline",)),
]


@pytest.mark.parametrize("make", INVALID, ids=range(len(INVALID)))
def test_options_out_of_range_are_refused(make: Callable[[], RetrievalOptions]) -> None:
    with pytest.raises(ConfigurationError):
        make()


def test_more_results_than_candidates_are_possible(corpus: Corpus) -> None:
    for number in range(12):
        corpus.add(f"annual report {number}", number=number)
    run = corpus.retrieve("annual report", options=RetrievalOptions(top_k=12, candidates=3))
    assert len(run.results) == 12
    assert len(set(ids(run))) == 12


def test_documents_in_scope_are_pushed_down_to_both_channels(corpus: Corpus) -> None:
    english = corpus.add("annual report", document_id="a", metadata={"lang": "en"})
    corpus.add("annual report", document_id="b", metadata={"lang": "de"})
    for mode in ("dense", "bm25", "hybrid"):
        options = RetrievalOptions(filters={"lang": "en"}, mode=mode)
        assert ids(corpus.retrieve("annual report", options=options)) == [english]
    assert {scope.document_ids for scope in corpus.index.scopes} == {("a",)}
    nobody = RetrievalOptions(filters={"lang": "fr"})
    assert corpus.retrieve("annual report", options=nobody).trace.notes == ("no document to search",)


def test_many_documents_in_scope_are_told_apart_at_the_hits(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrieval, "PUSHED_DOWN", 2)
    wanted = [corpus.add("annual report", document_id=f"a{number}", metadata={"lang": "en"}) for number in range(3)]
    corpus.add("annual report", document_id="b", metadata={"lang": "de"})
    run = corpus.retrieve("annual report", options=RetrievalOptions(filters={"lang": "en"}, top_k=3))
    assert sorted(ids(run)) == wanted
    assert {scope.document_ids for scope in corpus.index.scopes} == {None}
    assert run.trace.dropped == 1


def test_few_of_very_many_hits_in_scope_are_found_in_the_end(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrieval, "PUSHED_DOWN", 2)
    monkeypatch.setattr(retrieval, "MOST_HITS", 20)
    for number in range(40):
        corpus.add("annual report", document_id="b", number=number, metadata={"lang": "de"})
    wanted = [
        corpus.add("annual report of another year", document_id=f"a{number}", near="other", metadata={"lang": "en"})
        for number in range(3)
    ]
    run = corpus.retrieve("annual report", options=RetrievalOptions(filters={"lang": "en"}, top_k=3, candidates=5))
    assert sorted(ids(run)) == wanted
    assert corpus.index.scopes[-1].document_ids == ("a0", "a1", "a2")


def test_principals_see_what_they_may(corpus: Corpus) -> None:
    public = corpus.add("annual report", document_id="a")
    secret = corpus.add("annual report", document_id="b", metadata={"allowed_to": ["alice"]})
    assert ids(corpus.retrieve("annual report", options=RetrievalOptions(principals=("bob",)))) == [public]
    assert ids(corpus.retrieve("annual report", options=RetrievalOptions(principals=("bob", "alice")))) == [
        public,
        secret,
    ]
    with corpus.facts.engine.begin() as connection:
        changed = sa.update(document_versions).where(document_versions.c.document_id == "b")
        connection.execute(changed.values(metadata={"allowed_to": []}))
    assert ids(corpus.retrieve("annual report", options=RetrievalOptions(principals=("alice",)))) == [public]


def test_ten_thousand_documents_in_the_list(corpus: Corpus) -> None:
    wanted = corpus.add("annual report", document_id="a")
    corpus.add("annual report", document_id="b")
    many = RetrievalOptions(document_ids=("a", *(f"{number:032x}" for number in range(10_000))))
    assert ids(corpus.retrieve("annual report", options=many)) == [wanted]


def test_the_trace_has_the_steps_in_order_with_rounded_times(corpus: Corpus) -> None:
    corpus.add("annual report", metadata={"lang": "en"})
    options = RetrievalOptions(filters={"lang": "en"}, expand=True)
    trace = corpus.retrieve("annual report", options=options).trace
    assert [(step.name, step.count) for step in trace.steps] == [
        ("scope", 1),
        ("recall", 1),
        ("readiness", 1),
        ("expansion", 1),
    ]
    times = [trace.milliseconds, *(step.milliseconds for step in trace.steps)]
    times += [channel.milliseconds for channel in trace.channels]
    assert [round(each, 1) for each in times] == times
    assert trace.variants == ("annual report",)
