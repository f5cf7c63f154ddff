"""Cases ret-01 (names that look like filters), ret-02 (BM25 in Chinese and others), ret-03 (the reranker is down)."""

from collections.abc import Iterator

import pytest

from rag_pipeline.core.documents import Document, Status
from rag_pipeline.errors import ConfigurationError, InvalidFileNameError
from rag_pipeline.query.client import RagClient
from rag_pipeline.query.options import RetrievalOptions
from rag_pipeline.settings import Settings
from rag_pipeline_tests.cases.book import Book
from rag_pipeline_tests.conftest import clean_settings, own_settings
from rag_pipeline_tests.contents import NOTHING, contents
from rag_pipeline_tests.files import ODD_NAMES
from rag_pipeline_tests.model_server import ModelServer, Scripted
from rag_pipeline_tests.stages.runner import running

NAMES = [
    "plain.txt",
    *ODD_NAMES,
    "new\nline.txt",
]
REFUSED = "new\nline.txt"
"""Holds a control character."""
WORDS_OF_CHINESE_AND_OTHERS = {
    "d1.txt": "认证系统使用JWT令牌，令牌每小时轮换。",
    "d2.txt": "每天凌晨用GitHub备份脚本上传到仓库。",
    "d3.txt": "合同第七条规定，逾期付款应支付违约金。",
    "d4.txt": "退货流程：先提交申请，办理退货需要订单号。",
    "d5.txt": "東京タワーは1958年に完成した。",
    "d6.txt": "프로젝트 기억 저장소를 정리했다.",
    "d7.txt": "商品运费由买家承担，满百包邮。",
    "d8.txt": "设备报错ERR-4031时请重启网关。",
}
FIRST_BY_WORDS = {
    "认证": "d1.txt",
    "JWT令牌": "d1.txt",
    "GitHub备份脚本": "d2.txt",
    "违约金": "d3.txt",
    "怎么办理退货": "d4.txt",
    "東京タワー": "d5.txt",
    "프로젝트 기억": "d6.txt",
    "运费": "d7.txt",
    "ERR-4031": "d8.txt",
    "err-4031": "d8.txt",
}
HARBOUR = {
    "p1.txt": "The harbour crane lifts forty tonnes.",
    "p2.txt": "Crane service dates for the harbour.",
    "p3.txt": "The harbour master signs the log.",
    "p4.txt": "A crane is also a bird.",
    "p5.txt": "Harbour fees rose in spring.",
}


def body_of(number: int) -> str:
    return f"body number {number:02d} speaks of topic{number:02d} only"


def upload_named(book: Book) -> dict[str, Document]:
    """The names as paths and as metadata; the one that is refused as metadata of a file with a plain name."""
    found = {}
    for number, name in enumerate(NAMES):
        content, tag = body_of(number).encode(), {"tag": name}
        if name == REFUSED:
            with pytest.raises(InvalidFileNameError, match="control characters"):
                book.client.submit(book.name, content, source_path=name, metadata=tag)
        path = f"entry {number}.txt" if name == REFUSED else name
        found[name] = book.client.submit(book.name, content, source_path=path, metadata=tag)
    book.runner.run_queued()
    return found


def texts(book: Book, question: str, **options: object) -> list[str]:
    wanted = RetrievalOptions(top_k=50, mode="bm25", **options)  # type: ignore[arg-type]
    return [hit.text for hit in book.client.retrieve(book.name, question, options=wanted).results]


def test_a_search_in_exactly_one_document_finds_it_alone_whatever_it_is_called(book: Book) -> None:
    documents = upload_named(book)
    assert len({document.id for document in documents.values()}) == len(NAMES)
    for number, (name, document) in enumerate(documents.items()):
        kept = book.client.document(document.id)
        assert kept.status is Status.READY, kept.error
        for options in (
            {"document_ids": (document.id,)},
            {"filters": {"source_path": kept.source_path}},
            {"filters": {"tag": name}},
            {"filters": {"tag": [name, "no such"]}},
        ):
            assert texts(book, "body topic", **options) == [body_of(number)], (name, options)
        if name != REFUSED:
            assert texts(book, "body topic", document_ids=(name,)) == [], "a name is no id"
    assert len(texts(book, "body topic")) == len(NAMES)


def test_each_deletion_removes_exactly_one_document_whatever_it_is_called(book: Book) -> None:
    left = dict(upload_named(book))
    for name in NAMES:
        document = left.pop(name)
        book.client.delete(document.id)
        assert sorted(texts(book, "body topic")) == sorted(body_of(NAMES.index(each)) for each in left), (
            f"after {name!r}"
        )
        book.runner.make_due()
        book.runner.remove()
        now = contents(book.runner.services)
        assert now.of(document.id) == NOTHING
        assert [len(now.of(each.id).vectors) for each in left.values()] == [1] * len(left)
        assert [len(now.of(each.id).chunk_rows) for each in left.values()] == [1] * len(left)
        assert sum(book.client.count_by_status(book.name).values()) == len(left)


@pytest.mark.parametrize("name", [name for name in NAMES if "\n" not in name and "/" not in name])
def test_a_knowledge_base_may_be_called_so_and_answers_for_itself_alone(book: Book, name: str) -> None:
    other = Book(runner=book.runner, name=name)
    book.client.create_knowledge_base(name)
    try:
        book.ingest("a.txt", "The words of the first.")
        other.ingest("a.txt", "The words of the second.")
        assert texts(other, "words") == ["The words of the second."]
        assert texts(book, "words") == ["The words of the first."]
    finally:
        book.client.delete_knowledge_base(name)
        book.runner.make_due()
        book.runner.remove()
    assert texts(book, "words") == ["The words of the first."]


def test_an_id_with_a_control_character_is_refused(book: Book) -> None:
    for bad in ("new\nline.txt", "tab\there", "nul\0"):
        with pytest.raises(ConfigurationError, match="control characters"):
            book.client.search(book.name, "words", document_ids=[bad])


@pytest.fixture(scope="module")
def words(servers: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Book]:
    """A knowledge base with our own analysis, the default, and texts in several scripts."""
    with (
        own_settings(servers, tmp_path_factory.mktemp("words")) as own,
        running(own, analyzer=clean_settings().analyzer) as runner,
    ):
        book = Book(runner=runner, name="words")
        book.client.create_knowledge_base(book.name)
        for name, text in WORDS_OF_CHINESE_AND_OTHERS.items():
            book.upload(name, text + "\n")
        runner.run_queued()
        assert book.client.count_by_status(book.name) == {Status.READY: len(WORDS_OF_CHINESE_AND_OTHERS)}
        yield book


@pytest.mark.parametrize(("question", "expected"), FIRST_BY_WORDS.items())
def test_words_alone_find_chinese_japanese_korean_and_codes(words: Book, question: str, expected: str) -> None:
    hits = words.hits(question)
    assert hits[0].source_path == expected
    assert hits[0].score > 0
    assert hits[0].channels.keys() == {"bm25"}


@pytest.mark.parametrize("question", ["量子引力", "的 是 了", "的", "？！。"])
def test_words_that_nothing_has_and_words_that_say_nothing_find_nothing(words: Book, question: str) -> None:
    assert words.hits(question) == []


RERANKERS = {
    "401": Scripted(status=401),
    "500": Scripted(status=500),
    "hang": Scripted(wait_seconds=30),
    "malformed": Scripted(body="{not json"),
    "not a number": Scripted(body='{"results": [{"index": 0, "relevance_score": NaN}]}'),
}


@pytest.fixture(scope="module")
def harbour(servers: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Book]:
    with own_settings(servers, tmp_path_factory.mktemp("harbour")) as own, running(own) as runner:
        book = Book(runner=runner, name="harbour")
        book.client.create_knowledge_base(book.name)
        for name, text in HARBOUR.items():
            book.upload(name, text + "\n")
        runner.run_queued()
        yield book


@pytest.fixture
def reranked(harbour: Book, models: ModelServer) -> Iterator[RagClient]:
    settings = harbour.runner.system.settings
    with RagClient(settings.model_copy(update={"rerank_url": models.url, "rerank_timeout_seconds": 0.5})) as client:
        yield client


@pytest.mark.parametrize("failure", RERANKERS.values(), ids=RERANKERS.keys())
def test_without_the_reranker_the_fused_order_is_given_and_the_trace_says_why(
    harbour: Book, reranked: RagClient, models: ModelServer, failure: Scripted
) -> None:
    plain = harbour.client.retrieve(harbour.name, "harbour crane")
    assert len(plain.results) == len(HARBOUR)
    models.script_rerank(failure, failure)
    run = reranked.retrieve(harbour.name, "harbour crane")
    assert run.results == plain.results
    assert not run.trace.is_reranked
    assert [each.step for each in run.trace.degradations] == ["rerank"]
    assert run.trace.degradations[0].message


def test_an_index_that_was_not_sent_is_passed_over(harbour: Book, reranked: RagClient, models: ModelServer) -> None:
    plain = [hit.source_path for hit in harbour.client.retrieve(harbour.name, "harbour crane").results]
    scores = [(99, 0.99), (4, 0.9), (0, 0.5), (1, 0.4), (2, 0.3), (3, 0.2)]
    found = ", ".join(f'{{"index": {place}, "relevance_score": {score}}}' for place, score in scores)
    models.script_rerank(Scripted(body=f'{{"results": [{found}]}}'))
    run = reranked.retrieve(harbour.name, "harbour crane")
    assert [hit.source_path for hit in run.results] == [plain[4], *plain[:4]]
    assert [hit.rerank_score for hit in run.results] == [0.9, 0.5, 0.4, 0.3, 0.2]
    assert run.trace.is_reranked


def test_hits_without_a_score_stay_behind_those_with_one(
    harbour: Book, reranked: RagClient, models: ModelServer
) -> None:
    plain = [hit.source_path for hit in harbour.client.retrieve(harbour.name, "harbour crane").results]
    models.script_rerank(Scripted(body='{"results": [{"index": 2, "relevance_score": 0.1}]}'))
    run = reranked.retrieve(harbour.name, "harbour crane")
    assert [hit.source_path for hit in run.results] == [plain[2], *(each for each in plain if each != plain[2])]
    assert run.trace.is_reranked


def test_a_reranker_that_works_decides_the_order(harbour: Book, reranked: RagClient) -> None:
    run = reranked.retrieve(harbour.name, "harbour crane")
    assert len(run.results) == len(HARBOUR)
    assert run.trace.is_reranked
    assert run.trace.degradations == ()
    scores = [hit.rerank_score or 0.0 for hit in run.results]
    assert scores == sorted(scores, reverse=True)


def test_nobody_waits_long_for_a_reranker_that_hangs() -> None:
    assert clean_settings().rerank_timeout_seconds < 15
