"""Reading order and roles: columns, tables, headings, lists, running text."""

import pytest

from rag_pipeline.core.parsed_document import Block, BlockType, ParsedDocument
from rag_pipeline_tests.parsing.pdf.conftest import Parse
from rag_pipeline_tests.parsing.pdf.pdf_files import Page, at, lines, pdf

PROSE = [
    "This sentence fills the line of a",
    "column as prose usually does and",
    "goes on over several lines until",
    "it has reached the very last one.",
]


def of_type(document: ParsedDocument, type: BlockType) -> list[str]:
    return [document.block_text(block) for block in document.blocks if block.type is type]


def only(document: ParsedDocument, type: BlockType) -> Block:
    [block] = [block for block in document.blocks if block.type is type]
    return block


def test_columns_are_read_one_after_the_other(parse: Parse) -> None:
    left = [f"left {number} {text}" for number, text in enumerate(PROSE)]
    right = [f"right {number} {text}" for number, text in enumerate(PROSE)]
    rows = "".join(
        at(60, 700 - 14 * n, one, size=10) + at(330, 700 - 14 * n, two, size=10)
        for n, (one, two) in enumerate(zip(left, right, strict=True))
    )
    text = parse(pdf(Page(content=rows))).text
    found = [text.find(f"{side} {number}") for side in ("left", "right") for number in range(4)]
    assert -1 not in found
    assert found == sorted(found)


def test_short_text_boxes_are_read_in_the_order_they_are_drawn(parse: Parse) -> None:
    drawn = lines(60, 700, ["Left one", "Left two", "Left three"]) + lines(
        330, 700, ["Right one", "Right two", "Right three"]
    )
    text = " ".join(parse(pdf(Page(content=drawn))).text.split())
    assert text == "Left one Left two Left three Right one Right two Right three"


def test_a_table_without_rules_is_read_row_by_row(parse: Parse) -> None:
    rows = [("(In millions)", "2021", "2020"), ("Net sales", "4,463", "2,749"), ("Income tax | other", "306", "156")]
    drawn = "".join(
        at(x, 700 - 16 * n, cell) for n, row in enumerate(rows) for x, cell in zip((60, 300, 400), row, strict=True)
    )
    drawn += at(288, 684, "$") + at(388, 684, "$")
    document = parse(pdf(Page(content=at(60, 740, "A line of text above the table that is long.") + drawn)))
    table = only(document, BlockType.TABLE)
    assert table.rows == (rows[0], ("Net sales", "$4,463", "$2,749"), rows[2])
    assert document.block_text(table).splitlines() == [
        "| (In millions) | 2021 | 2020 |",
        "| --- | --- | --- |",
        "| Net sales | $4,463 | $2,749 |",
        "| Income tax \\| other | 306 | 156 |",
    ]


def grid(xs: list[int], ys: list[int]) -> str:
    across = "".join(f"{xs[0]} {y} m {xs[-1]} {y} l S\n" for y in ys)
    return across + "".join(f"{x} {ys[0]} m {x} {ys[-1]} l S\n" for x in xs)


def test_a_ruled_table_keeps_the_lines_of_a_cell_together(parse: Parse) -> None:
    content = grid([60, 200, 340], [720, 690, 640])
    content += at(66, 700, "Clause") + at(206, 700, "Meaning")
    content += at(66, 675, "Notice") + at(206, 675, "thirty days in") + at(206, 660, "writing to both")
    document = parse(pdf(Page(content=content + at(60, 600, "Below the table."))))
    assert only(document, BlockType.TABLE).rows == (
        ("Clause", "Meaning"),
        ("Notice", "thirty days in\nwriting to both"),
    )
    assert document.text.endswith("Below the table.")


def test_a_cell_over_two_columns_of_a_ruled_table_is_one_cell(parse: Parse) -> None:
    content = "60 720 280 -60 re S 60 690 m 340 690 l S 200 690 m 200 660 l S 60 660 m 340 660 l S\n"
    content += at(66, 700, "A title over both columns") + at(66, 670, "one") + at(206, 670, "two")
    document = parse(pdf(Page(content=content)))
    assert only(document, BlockType.TABLE).rows == (("A title over both columns", ""), ("one", "two"))


def test_headings_are_told_by_size_and_weight(parse: Parse) -> None:
    content = (
        at(60, 740, "Annual report", size=20)
        + at(60, 700, "Risks", font="B1")
        + lines(60, 680, ["Plain text of the first section,", "over two lines of the same size."])
        + at(60, 630, "Markets", font="B1")
        + lines(60, 610, ["Plain text of the second section,", "again over two lines."])
    )
    document = parse(pdf(Page(content=content)))
    headings = [block for block in document.blocks if block.type is BlockType.HEADING]
    assert [(document.block_text(block), block.level) for block in headings] == [
        ("Annual report", 1),
        ("Risks", 2),
        ("Markets", 2),
    ]
    assert document.blocks[-1].heading_path == ("Annual report", "Markets")
    assert "## Risks\n" in document.text


def test_titles_of_the_outline_are_headings_though_they_look_like_text(parse: Parse) -> None:
    outline = "/Outlines 4 0 R"
    objects = [
        "<</Type/Outlines/First 5 0 R/Last 5 0 R/Count 1>>",
        "<</Title(Scope of work)/Parent 4 0 R/Dest[7 0 R/XYZ 0 792 0]>>",
    ]
    content = at(60, 740, "Scope of work") + lines(60, 700, ["The text of the section", "in the same size."])
    document = parse(pdf(Page(content=content), catalog=outline, objects=objects))
    assert of_type(document, BlockType.HEADING) == ["Scope of work"]
    assert document.metadata["outline"] == [{"title": "Scope of work", "level": 1, "page": 1}]


def test_list_items_are_blocks_of_their_own(parse: Parse) -> None:
    items = at(60, 700, "\x95") + at(80, 700, "first item") + at(60, 684, "\x95") + at(80, 684, "second item")
    document = parse(pdf(Page(content=items + lines(60, 668, ["1. numbered item"]))))
    assert of_type(document, BlockType.LIST_ITEM) == ["• first item", "• second item", "1. numbered item"]


def test_running_headers_and_page_numbers_are_set_apart(parse: Parse) -> None:
    pages = [
        Page(
            content=at(60, 760, f"Handbook, chapter {number}")
            + lines(60, 500, [f"Text that only page {word} has,", "on two lines."])
            + at(300, 30, f"Page {number} of 4")
        )
        for number, word in enumerate(["one", "two", "three", "four"], start=1)
    ]
    document = parse(pdf(*pages))
    assert of_type(document, BlockType.PAGE_HEADER) == [f"Handbook, chapter {number}" for number in range(1, 5)]
    assert of_type(document, BlockType.PAGE_FOOTER) == [f"Page {number} of 4" for number in range(1, 5)]
    assert len(of_type(document, BlockType.PARAGRAPH)) == 4


def test_a_footer_that_counts_the_pages_is_known_from_two_pages_on(parse: Parse) -> None:
    pages = [
        Page(content=at(60, 500, f"Text {word}.") + at(60, 30, f"Pump manual {number}") + at(60, 75, f"Annex {annex}"))
        for number, word, annex in ((1, "one", 7), (2, "two", 8))
    ]
    document = parse(pdf(*pages))
    assert of_type(document, BlockType.PAGE_FOOTER) == ["Pump manual 1", "Pump manual 2"]


def test_a_title_that_stands_on_one_page_is_no_running_header(parse: Parse) -> None:
    pages = [Page(content=at(60, 760, title) + at(60, 500, "Text.")) for title in ("Apples", "Pears", "Plums", "Figs")]
    assert of_type(parse(pdf(*pages)), BlockType.PAGE_HEADER) == []


def test_lines_that_end_early_stay_apart(parse: Parse) -> None:
    content = lines(60, 700, ["Marta Quill", "Harbour Street 7", "1050 Northwind and a longer last line"])
    assert parse(pdf(Page(content=content))).text.splitlines()[:2] == ["Marta Quill", "Harbour Street 7"]


def test_blocks_are_spans_of_the_text_with_their_page(parse: Parse) -> None:
    pages = [Page(content=at(60, 700, f"Words of page {number}.")) for number in range(1, 4)]
    document = parse(pdf(*pages))
    assert [(document.block_text(block), block.page) for block in document.blocks] == [
        (f"Words of page {number}.", number) for number in range(1, 4)
    ]
    assert [document.text[page.start : page.end].strip() for page in document.pages] == [
        f"Words of page {number}." for number in range(1, 4)
    ]


@pytest.mark.parametrize("caption", ["Table 1: Prices", "Figure 2. The plant", "图 3 结构"])
def test_captions_are_recognised(caption: str) -> None:
    from rag_pipeline.parsing.pdf.paragraphs import is_caption

    assert is_caption(caption)
    assert not is_caption("The table shows prices")
