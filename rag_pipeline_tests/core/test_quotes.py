import pytest

from rag_pipeline.core.parsed_document import BlockType, BoundingBox, DocumentBuilder, PageState, ParsedDocument
from rag_pipeline.core.quotes import LONGEST_QUOTE, holds, locate, quotations

ONE = "[source 1](citation://1)"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (f'It says "replace it every 75 days" {ONE}.', [("replace it every 75 days", 1)]),
        (f"It says “replace it every 75 days” {ONE}.", [("replace it every 75 days", 1)]),
        ("规定是「每 3 个月校准一次」[source 2](citation://2)。", [("每 3 个月校准一次", 2)]),
        (f"> replace it every 75 days {ONE}", [("replace it every 75 days", 1)]),
        (f'He wrote "replace it every 75 days".\n\nLater {ONE}.', [("replace it every 75 days", None)]),
        ('The "FS-200" and 「术语」 are names.', []),
        ('"' + "x" * (LONGEST_QUOTE + 1) + '"', []),
        ('"first quotation here" [source 2](citation://2) "second quotation here" [source 1](citation://1)',
         [("first quotation here", 2), ("second quotation here", 1)]),
    ],
    ids=["straight", "curly", "chinese", "block", "no marker in the paragraph", "names", "too long", "two"],
)  # fmt: skip
def test_quotations_and_their_sources(answer: str, expected: list[tuple[str, int | None]]) -> None:
    assert list(quotations(answer)) == expected


@pytest.mark.parametrize(
    ("text", "quote", "expected"),
    [
        ("Replace the blade every\n75 days.", "replace the blade every 75 days", True),
        ("Replace the blade every 75 days.", "Replace the blade every 57 days", False),
        ("Replace the blade — always — every 75 days.", "the blade - always - every 75 days.", True),
        ("Replace the **blade** every 75 days, in summer too.", "Replace the blade ... in summer too", True),
        ("In summer too. Replace the blade.", "Replace the blade ... in summer too", False),
        ("It's “new”", "It’s 'new'", True),
        ("if a < b", "if a &lt; b", True),
        ("每３个月校准一次", "每 3 个月校准一次", True),
        ("anything", "...", False),
    ],
)
def test_whether_a_text_holds_a_quotation(text: str, quote: str, expected: bool) -> None:
    assert holds(text, quote) is expected


@pytest.fixture
def document() -> ParsedDocument:
    """Three pages with one block each; the quotation `runs over` begins on page 2."""
    builder = DocumentBuilder(parser="pdf", parser_version="1")
    for number, text in enumerate(["The first page.", "This sentence runs", "over to page three."], start=1):
        start = builder.length
        box = BoundingBox(left=1, top=number, right=3, bottom=4)
        builder.add_block(BlockType.PARAGRAPH, text, page=number, bbox=box)
        builder.add_page(state=PageState.TEXT, start=start)
    return builder.build()


@pytest.mark.parametrize(
    ("quote", "first", "last", "expected_page"),
    [
        ("first page", 1, 1, 1),
        ("first page", 2, 3, None),
        ("sentence runs over to", 2, 3, 2),
        ("sentence runs over to", 2, 2, None),
        ("sentence runs over to", None, None, 2),
    ],
)
def test_a_quotation_is_looked_for_on_the_cited_pages(
    document: ParsedDocument, quote: str, first: int | None, last: int | None, expected_page: int | None
) -> None:
    is_held, page, bbox = locate(document, quote, first=first, last=last)
    assert is_held is (expected_page is not None)
    assert page == expected_page
    assert bbox == (None if page is None else BoundingBox(left=1, top=page, right=3, bottom=4))
