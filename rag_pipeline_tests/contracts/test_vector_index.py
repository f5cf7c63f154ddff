"""The contract of `VectorIndex`."""

import itertools
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from rag_pipeline.adapters.milvus import MilvusIndex
from rag_pipeline.core.analysis import ANALYZER, words
from rag_pipeline.core.ports import CollectionGeneration, SearchScope, VectorIndex, VectorRow
from rag_pipeline.errors import ConfigurationError, InternalError, VectorStoreUnavailableError
from rag_pipeline.settings import Settings

DIMENSIONS = 8
HOSTILE = ['quote"', "apostrophe'", "back\\slash", 'x" or kb_id != "', "new\nline", "tab\t", "中文", "%_", "{a}", ""]
SCOPE = SearchScope(kb_id="kb")


@pytest.fixture(scope="module")
def index(servers: Settings) -> Iterator[VectorIndex]:
    index = MilvusIndex.from_settings(servers)
    yield index
    index.close()


@pytest.fixture
def generation(index: MilvusIndex) -> Iterator[CollectionGeneration]:
    generation = make_generation()
    index.ensure(generation)
    yield generation
    index.drop(generation)


def make_generation(analyzer: str = ANALYZER) -> CollectionGeneration:
    return CollectionGeneration(
        collection=f"contract_{uuid.uuid4().hex[:12]}", dimensions=DIMENSIONS, analyzer=analyzer
    )


def unit(*values: float) -> npt.NDArray[np.float32]:
    vector = np.zeros(DIMENSIONS, dtype=np.float32)
    vector[: len(values)] = values
    return vector / np.float32(np.linalg.norm(vector))


def make_row(
    number: int,
    *,
    document_id: str = "doc",
    kb_id: str = "kb",
    content: str = "some words",
    dense: npt.NDArray[np.float32] | None = None,
) -> VectorRow:
    return VectorRow(
        chunk_id=f"{document_id}_1_{number}",
        kb_id=kb_id,
        document_id=document_id,
        version=1,
        chunk_index=number,
        content=content,
        dense=unit(1.0, number + 1.0) if dense is None else dense,
    )


def test_rows_are_counted_and_found_by_id(index: VectorIndex, generation: CollectionGeneration) -> None:
    index.upsert(generation, [make_row(0), make_row(1), make_row(0, kb_id="other", document_id="else")])
    assert index.count(generation) == 3
    assert index.count(generation, kb_id="kb") == 2
    assert index.count(generation, kb_id="none") == 0
    assert index.existing(generation, ["doc_1_0", "doc_1_9", "else_1_0"]) == {"doc_1_0", "else_1_0"}
    assert index.existing(generation, []) == frozenset()


def test_an_empty_collection(index: VectorIndex, generation: CollectionGeneration) -> None:
    index.upsert(generation, [])
    index.delete(generation, [])
    index.flush(generation)
    assert index.count(generation) == 0
    assert index.search_dense(generation, unit(1.0), scope=SCOPE, limit=5) == []
    assert index.search_text(generation, "words", scope=SCOPE, limit=5) == []


@pytest.mark.parametrize("flush", [False, True], ids=["not flushed", "flushed"])
def test_a_row_that_exists_is_replaced(index: VectorIndex, generation: CollectionGeneration, flush: bool) -> None:
    index.upsert(generation, [make_row(0, content="apples"), make_row(1, content="bananas")])
    if flush:
        index.flush(generation)
    index.upsert(generation, [make_row(0, content="cherries", dense=unit(0, 0, 1.0))])

    assert index.count(generation) == 2
    assert index.search_text(generation, "apples", scope=SCOPE, limit=5) == []
    assert [hit.chunk_id for hit in index.search_text(generation, "cherries", scope=SCOPE, limit=5)] == ["doc_1_0"]
    best = index.search_dense(generation, unit(0, 0, 1.0), scope=SCOPE, limit=1)[0]
    assert best.chunk_id == "doc_1_0"
    assert best.score == pytest.approx(1.0, abs=1e-3)


def test_of_rows_with_the_same_id_the_last_one_wins(index: VectorIndex, generation: CollectionGeneration) -> None:
    index.upsert(generation, [make_row(0, content="first"), make_row(0, content="second")])
    assert index.count(generation) == 1
    assert index.search_text(generation, "first", scope=SCOPE, limit=5) == []
    assert len(index.search_text(generation, "second", scope=SCOPE, limit=5)) == 1


@pytest.mark.parametrize("flush", [False, True], ids=["not flushed", "flushed"])
def test_deleted_rows_are_gone_at_once(index: VectorIndex, generation: CollectionGeneration, flush: bool) -> None:
    index.upsert(generation, [make_row(number) for number in range(5)])
    if flush:
        index.flush(generation)
    index.delete(generation, ["doc_1_1", "doc_1_3", "doc_1_99"])
    index.delete(generation, ["doc_1_1"])
    assert index.count(generation) == 3
    found = index.search_dense(generation, unit(1.0), scope=SCOPE, limit=10)
    assert {hit.chunk_id for hit in found} == {"doc_1_0", "doc_1_2", "doc_1_4"}


def test_the_nearest_rows_come_first(index: VectorIndex, generation: CollectionGeneration) -> None:
    index.upsert(generation, [make_row(number, dense=unit(1.0, number / 10)) for number in range(10)])
    index.flush(generation)
    found = index.search_dense(generation, unit(1.0), scope=SCOPE, limit=4)
    assert [hit.chunk_id for hit in found] == [f"doc_1_{number}" for number in range(4)]
    assert [hit.score for hit in found] == pytest.approx(
        [float(unit(1.0, number / 10)[0]) for number in range(4)], abs=1e-2
    )
    assert {(hit.document_id, hit.version) for hit in found} == {("doc", 1)}


def test_the_best_text_comes_first(index: VectorIndex, generation: CollectionGeneration) -> None:
    contents = ["the quarterly report", "the annual report of the annual meeting", "something else"]
    index.upsert(generation, [make_row(number, content=content) for number, content in enumerate(contents)])
    found = index.search_text(generation, "annual report", scope=SCOPE, limit=5)
    assert [hit.chunk_id for hit in found] == ["doc_1_1", "doc_1_0"]
    assert found[0].score > found[1].score > 0


def test_hits_tell_what_bm25_counts_of_their_rows(index: VectorIndex, generation: CollectionGeneration) -> None:
    index.upsert(generation, [make_row(0, content="The pumps are serviced, 水泵保养.")])
    expected = tuple(words("The pumps are serviced, 水泵保养."))
    assert [hit.words for hit in index.search_text(generation, "pump", scope=SCOPE, limit=5)] == [expected]
    assert [hit.words for hit in index.search_dense(generation, unit(1.0), scope=SCOPE, limit=5)] == [expected]


@pytest.mark.parametrize("analyzer", [ANALYZER, "jieba"])
def test_chinese_is_found_word_by_word(index: MilvusIndex, analyzer: str) -> None:
    generation = make_generation(analyzer=analyzer)
    index.ensure(generation)
    contents = ["机器学习是人工智能的一个分支", "北京是中国的首都", "machine learning in English"]
    index.upsert(generation, [make_row(number, content=content) for number, content in enumerate(contents)])
    for query, expected in {"人工智能": "doc_1_0", "首都": "doc_1_1", "English": "doc_1_2"}.items():
        assert [hit.chunk_id for hit in index.search_text(generation, query, scope=SCOPE, limit=1)] == [expected]
    index.drop(generation)


@pytest.mark.parametrize(
    ("query", "content"),
    [
        pytest.param("leaking pump", "The pumps leaked.", id="inflected English"),
        pytest.param("E4711", "Fault E-4711 was reported", id="identifier"),
        pytest.param("ＦＳ－２００", "the FS-200 valve", id="full width"),
        pytest.param("C++", "written in C++ and Rust", id="plus signs"),
        pytest.param("税", "税 是 国家 收入", id="one Chinese character"),
        pytest.param(
            "vertragsbedingungen", "die Vertragsbedingungen und die Kosten", id="German without function words"
        ),
        pytest.param("हिन्दी", "हिन्दी भाषा", id="letters with marks"),
    ],
)
def test_our_words_survive_the_tokenizer_of_the_server(
    index: VectorIndex, generation: CollectionGeneration, query: str, content: str
) -> None:
    index.upsert(generation, [make_row(0, content=content), make_row(1, content="something else 4 7 1 c")])
    found = index.search_text(generation, query, scope=SCOPE, limit=1)
    assert [hit.chunk_id for hit in found] == ["doc_1_0"]


def test_words_of_another_release_are_refused_with_a_remedy(index: VectorIndex) -> None:
    other = make_generation(analyzer="multilingual-0")
    with pytest.raises(ConfigurationError, match="RAG_ANALYZER"):
        index.ensure(other)
    with pytest.raises(ConfigurationError, match="RAG_ANALYZER"):
        index.search_text(other, "words", scope=SCOPE, limit=1)


@pytest.mark.parametrize("query", ["", "  ", "\0", "\ud800", "?!", '" or 1 == 1'], ids=repr)
def test_a_query_without_words_finds_nothing(index: VectorIndex, generation: CollectionGeneration, query: str) -> None:
    index.upsert(generation, [make_row(0, content="some words")])
    assert index.search_text(generation, query, scope=SCOPE, limit=5) == []


def test_a_very_long_query(index: VectorIndex, generation: CollectionGeneration) -> None:
    index.upsert(generation, [make_row(0, content="some words")])
    assert len(index.search_text(generation, "words " * 50_000, scope=SCOPE, limit=5)) == 1


def test_a_search_stays_in_its_scope(index: VectorIndex, generation: CollectionGeneration) -> None:
    index.upsert(
        generation,
        [make_row(0, kb_id=kb_id, document_id=f"{kb_id}-{name}") for kb_id in ("kb", "kb2") for name in "abc"],
    )
    scopes = {
        SearchScope(kb_id="kb"): {"kb-a", "kb-b", "kb-c"},
        SearchScope(kb_id="kb", document_ids=("kb-a", "kb-c", "kb-a")): {"kb-a", "kb-c"},
        SearchScope(kb_id="kb", document_ids=("kb2-a",)): set(),
        SearchScope(kb_id="kb", document_ids=()): set(),
        SearchScope(kb_id="unknown"): set(),
    }
    for scope, expected in scopes.items():
        dense = index.search_dense(generation, unit(1.0), scope=scope, limit=10)
        text = index.search_text(generation, "words", scope=scope, limit=10)
        assert {hit.document_id for hit in dense} == expected
        assert {hit.document_id for hit in text} == expected


@pytest.mark.parametrize("value", HOSTILE, ids=repr)
def test_values_are_never_read_as_part_of_an_expression(
    index: VectorIndex, generation: CollectionGeneration, value: str
) -> None:
    hostile = replace(make_row(0, kb_id=value, document_id=value), chunk_id=f"id {value}")
    index.upsert(generation, [hostile, make_row(1)])
    scope = SearchScope(kb_id=value, document_ids=(value,))
    for found in (
        index.search_dense(generation, unit(1.0), scope=scope, limit=10),
        index.search_text(generation, "words", scope=scope, limit=10),
    ):
        assert [(hit.chunk_id, hit.document_id) for hit in found] == [(hostile.chunk_id, value)]
    assert index.count(generation, kb_id=value) == 1
    assert index.existing(generation, [hostile.chunk_id]) == {hostile.chunk_id}
    index.delete(generation, [hostile.chunk_id])
    assert index.existing(generation, [hostile.chunk_id, "doc_1_1"]) == {"doc_1_1"}


def test_a_long_document_list(index: VectorIndex, generation: CollectionGeneration) -> None:
    index.upsert(generation, [make_row(0, document_id=f"doc{number}") for number in range(3)])
    absent = tuple(f"absent-{number:036d}" for number in range(24_000))
    scope = SearchScope(kb_id="kb", document_ids=("doc2", *absent[:12_000], "doc0", *absent[12_000:], "doc1"))
    dense = index.search_dense(generation, unit(1.0), scope=scope, limit=2)
    text = index.search_text(generation, "words", scope=scope, limit=5)
    assert len(dense) == 2
    assert {hit.document_id for hit in text} == {"doc0", "doc1", "doc2"}


def test_the_limit_is_kept(index: VectorIndex, generation: CollectionGeneration) -> None:
    index.upsert(generation, [make_row(number) for number in range(6)])
    for limit, expected in {0: 0, 1: 1, 5: 5, 1_000_000: 6}.items():
        assert len(index.search_dense(generation, unit(1.0), scope=SCOPE, limit=limit)) == expected
        assert len(index.search_text(generation, "words", scope=SCOPE, limit=limit)) == expected


def test_a_text_over_the_byte_limit_is_cut_not_refused(index: VectorIndex, generation: CollectionGeneration) -> None:
    index.upsert(generation, [make_row(0, content="begins " + "长" * 30_000 + " ends"), make_row(1, content="")])
    assert index.count(generation) == 2
    assert [hit.chunk_id for hit in index.search_text(generation, "begins", scope=SCOPE, limit=5)] == ["doc_1_0"]
    assert index.search_text(generation, "ends", scope=SCOPE, limit=5) == []


def test_more_rows_than_one_request(index: VectorIndex, generation: CollectionGeneration) -> None:
    rows = [make_row(number) for number in range(2_300)]
    ids = [row.chunk_id for row in rows]
    index.upsert(generation, rows)
    assert index.count(generation) == len(rows)
    assert index.existing(generation, [*ids, "absent"]) == set(ids)
    index.delete(generation, ids[1:])
    assert index.existing(generation, ids) == {ids[0]}


def test_many_bytes_in_few_rows(index: VectorIndex, generation: CollectionGeneration) -> None:
    index.upsert(generation, [make_row(number, content="word " * 12_000) for number in range(60)])
    assert index.count(generation) == 60


@pytest.mark.parametrize(
    "other",
    [{"dimensions": DIMENSIONS + 1}, {"analyzer": "jieba"}, {"analyzer": "standard"}],
    ids=["other dimensions", "other analyzer", "the server's analyzer of our words"],
)
def test_a_collection_that_does_not_fit_is_refused_with_a_remedy(
    index: VectorIndex, generation: CollectionGeneration, other: dict[str, int | str]
) -> None:
    index.ensure(generation)
    with pytest.raises(ConfigurationError, match=r"go back to the former setting, or fill a new generation"):
        index.ensure(replace(generation, **other))  # type: ignore[arg-type]


def test_an_analyzer_that_the_server_does_not_have(index: MilvusIndex) -> None:
    generation = make_generation(analyzer="no-such-analyzer")
    with pytest.raises(ConfigurationError, match="no-such-analyzer"):
        index.ensure(generation)


def test_a_vector_of_another_dimension_is_refused(index: VectorIndex, generation: CollectionGeneration) -> None:
    with pytest.raises(ConfigurationError, match="RAG_EMBEDDING_DIMENSIONS"):
        index.upsert(generation, [make_row(0, dense=np.ones(3, dtype=np.float32))])
    with pytest.raises(ConfigurationError, match="RAG_EMBEDDING_DIMENSIONS"):
        index.search_dense(generation, np.ones(3, dtype=np.float32), scope=SCOPE, limit=1)


def test_an_id_over_the_limit_is_refused(index: VectorIndex, generation: CollectionGeneration) -> None:
    index.upsert(generation, [make_row(0, document_id="长" * 40)])
    with pytest.raises(InternalError, match="128 bytes"):
        index.upsert(generation, [make_row(0, document_id="长" * 43)])


def test_several_processes_may_create_the_collection(servers: Settings) -> None:
    clients = [MilvusIndex.from_settings(servers) for _ in range(4)]
    generations = [make_generation() for _ in range(3)]
    barrier = threading.Barrier(len(clients))

    def create(client: MilvusIndex, generation: CollectionGeneration, number: int) -> None:
        barrier.wait()
        client.ensure(generation)
        client.upsert(generation, [make_row(number)])

    with ThreadPoolExecutor(len(clients)) as pool:
        for generation in generations:
            list(pool.map(create, clients, itertools.repeat(generation), range(len(clients))))
            assert clients[0].count(generation) == len(clients)
            clients[0].drop(generation)
    for client in clients:
        client.close()


def test_threads_write_and_search_at_once(index: VectorIndex, generation: CollectionGeneration) -> None:
    def write(number: int) -> None:
        rows = [make_row(place, document_id=f"doc{number}") for place in range(50)]
        index.upsert(generation, rows)
        index.search_text(generation, "words", scope=SCOPE, limit=5)
        index.delete(generation, [row.chunk_id for row in rows[:10]])

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(write, range(12)))
    assert index.count(generation) == 12 * 40


def test_a_closed_index_opens_again(servers: Settings, generation: CollectionGeneration) -> None:
    index = MilvusIndex.from_settings(servers)
    index.close()
    for _ in range(2):
        assert index.exists(generation)
        index.close()


def test_a_collection_exists_from_its_creation_on(index: MilvusIndex, generation: CollectionGeneration) -> None:
    assert index.exists(generation)
    assert not index.exists(make_generation())


def test_a_dropped_collection_is_gone_with_its_rows_and_no_other_one(
    index: VectorIndex, generation: CollectionGeneration
) -> None:
    dropped = make_generation()
    index.drop(dropped)  # a missing one is fine
    index.ensure(dropped)
    for each in (dropped, generation):
        index.upsert(each, [make_row(0, content="apples")])
        index.flush(each)
    index.drop(dropped)
    assert not index.exists(dropped)
    index.drop(dropped)
    with pytest.raises(VectorStoreUnavailableError):
        index.search_text(dropped, "apples", scope=SCOPE, limit=5)
    assert [hit.chunk_id for hit in index.search_text(generation, "apples", scope=SCOPE, limit=5)] == ["doc_1_0"]
    index.ensure(dropped)
    try:
        assert index.count(dropped) == 0, "under the same name it begins empty"
        assert index.search_text(dropped, "apples", scope=SCOPE, limit=5) == []
        index.upsert(dropped, [make_row(1, content="bananas")])
        assert index.count(dropped) == 1
    finally:
        index.drop(dropped)


def test_a_scan_gives_every_row_once_in_pages(index: MilvusIndex, generation: CollectionGeneration) -> None:
    rows = [make_row(number, document_id=f"doc{number % 7}", kb_id=f"kb{number % 2}") for number in range(2_500)]
    index.upsert(generation, rows)
    index.delete(generation, [rows[0].chunk_id])
    pages = list(index.scan(generation))
    assert max(map(len, pages)) <= 1_000
    found = [(row.chunk_id, row.kb_id, row.document_id, row.version) for page in pages for row in page]
    assert sorted(found) == sorted((row.chunk_id, row.kb_id, row.document_id, row.version) for row in rows[1:])
    of_one = [row.chunk_id for page in index.scan(generation, kb_id="kb1") for row in page]
    assert sorted(of_one) == sorted(row.chunk_id for row in rows if row.kb_id == "kb1")
    assert list(index.scan(generation, kb_id='x" or kb_id != "')) == []
