"""Case cit-01: cited pages are physical pages of the cited document, and the quotation stands on them."""

from collections.abc import Iterator

import pytest

from rag_pipeline.core.answers import Citation
from rag_pipeline.core.quotes import holds
from rag_pipeline.query.client import RagClient
from rag_pipeline.query.options import RetrievalOptions
from rag_pipeline.settings import Settings
from rag_pipeline_tests.cases.conftest import reading
from rag_pipeline_tests.model_server import ModelServer
from rag_pipeline_tests.parsing.pdf.pdf_files import Page, at, pdf
from rag_pipeline_tests.stages.runner import KB, Runner


def filler(sheet: int) -> str:
    return "".join(at(72, 660 - 16 * row, f"filler row {row} on sheet {sheet} about dredging") for row in range(20))


THREE_PAGES = pdf(
    Page(content=at(72, 700, "first-page-marker") + filler(1)),
    Page(content=at(72, 700, "second-page-marker") + filler(2) + at(72, 60, "This is a sentence running over")),
    Page(content=at(72, 740, "to the next sheet.") + at(72, 700, "third-page-marker") + filler(3)),
)
LABELS = pdf(
    Page(content=at(72, 700, "roman page text")),
    Page(content=at(72, 700, "second roman")),
    Page(content=at(72, 700, "arabic page text")),
    catalog="/PageLabels<</Nums[0<</S/r>>2<</S/D/St 1>>]>>",
)
FILES = {
    "three_pages.pdf": THREE_PAGES,
    "labels.pdf": LABELS,
    "no_pages.txt": b"plain text without pages, page-less-marker\n",
}


@pytest.fixture(scope="module")
def runner(servers: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    with reading(servers, tmp_path_factory, FILES) as found:
        yield found


def cited(client: RagClient, models: ModelServer, quotation: str, name: str) -> Citation:
    """The citation of the file that has the words, when the model quotes them from it; all files are searched."""

    def quote(messages: list[dict[str, str]]) -> str:
        for section in messages[-1]["content"].split("[source ")[1:]:
            if f"document: {name}" in section and holds(section.replace("\n> ", "\n"), quotation):
                return f'It says "{quotation}" [source {section.partition("]")[0]}].'
        return "Nothing is said about it."

    models.answer = quote
    answer = client.ask(KB, quotation, options=RetrievalOptions(mode="bm25", top_k=10))
    (found,) = [citation for citation in answer.citations if citation.is_cited]
    assert found.source_path == name
    return found


@pytest.mark.parametrize(
    ("quotation", "name", "page"),
    [
        ("first-page-marker", "three_pages.pdf", 1),
        ("second-page-marker", "three_pages.pdf", 2),
        ("third-page-marker", "three_pages.pdf", 3),
        ("roman page text", "labels.pdf", 1),
        ("arabic page text", "labels.pdf", 3),
        ("filler row 19 on sheet 2 about dredging", "three_pages.pdf", 2),
    ],
)
def test_a_quotation_stands_on_the_page_that_is_cited(
    client: RagClient, models: ModelServer, quotation: str, name: str, page: int
) -> None:
    citation = cited(client, models, quotation, name)
    (quote,) = citation.quotes
    assert (quote.text, quote.is_verified, quote.page) == (quotation, True, page)
    assert citation.page is not None
    assert citation.page_end is not None
    assert 1 <= citation.page <= page <= citation.page_end <= 3
    assert client.evidence(citation).startswith(b"\x89PNG")


def test_a_sentence_over_two_pages_is_cited_with_both(client: RagClient, models: ModelServer) -> None:
    citation = cited(client, models, "This is a sentence running over to the next sheet", "three_pages.pdf")
    (quote,) = citation.quotes
    assert quote.is_verified
    assert citation.page is not None
    assert citation.page_end is not None
    assert citation.page <= 2
    assert citation.page_end == 3
    assert quote.page in {2, 3}


def test_a_file_without_pages_takes_none_from_its_neighbours(client: RagClient, models: ModelServer) -> None:
    citation = cited(client, models, "page-less-marker", "no_pages.txt")
    assert (citation.page, citation.page_end) == (None, None)
    assert [quote.page for quote in citation.quotes] == [None]
    assert "page" not in citation.location


def test_every_page_lies_in_its_document(client: RagClient) -> None:
    results = client.retrieve(KB, "page text marker filler", options=RetrievalOptions(mode="bm25", top_k=50)).results
    assert {result.source_path for result in results} == FILES.keys()
    for result in results:
        if result.source_path == "no_pages.txt":
            assert result.page is None
        else:
            assert result.page is not None
            assert 1 <= result.page <= (result.page_end or 0) <= 3
