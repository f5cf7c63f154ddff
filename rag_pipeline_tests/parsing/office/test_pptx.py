from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from pptx import Presentation
from pptx.chart.data import CategoryChartData
from pptx.enum.chart import XL_CHART_TYPE
from pptx.util import Inches

from rag_pipeline.core.parsed_document import BlockType, PageState, ParsedDocument
from rag_pipeline.core.ports import ParseLimits, ParseRequest
from rag_pipeline.errors import DocumentTooLargeError
from rag_pipeline.parsing.office.pptx import PptxParser
from rag_pipeline_tests.parsing.office.packages import rewrite

TITLE_ONLY, BULLETS, BLANK = 5, 1, 6


class Deck:
    """A presentation under construction; sizes in inches."""

    def __init__(self) -> None:
        self.presentation: Any = Presentation()

    def slide(self, layout: int, title: str | None = None) -> Any:
        slide = self.presentation.slides.add_slide(self.presentation.slide_layouts[layout])
        if title is not None:
            slide.shapes.title.text = title
        return slide

    def save(self, folder: Path) -> ParseRequest:
        path = folder / "deck.pptx"
        self.presentation.save(path)
        return ParseRequest(path=path, file_name="deck.pptx")


def text_box(shapes: Any, text: str, left: float, top: float, width: float = 2, height: float = 0.5) -> None:
    box = shapes.add_textbox(Inches(left), Inches(top), Inches(width), Inches(height))
    box.text_frame.text = text


def parse(request: ParseRequest) -> ParsedDocument:
    return PptxParser().parse(request)


def texts(document: ParsedDocument, page: int | None = None) -> list[str]:
    return [document.block_text(block) for block in document.blocks if page in {None, block.page}]


def test_every_slide_is_a_page_even_the_empty_one(tmp_path: Path) -> None:
    deck = Deck()
    deck.slide(TITLE_ONLY, "First")
    deck.slide(BLANK)
    deck.slide(TITLE_ONLY, "Third")
    document = parse(deck.save(tmp_path))

    assert [(page.number, page.state) for page in document.pages] == [
        (1, PageState.TEXT),
        (2, PageState.BLANK),
        (3, PageState.TEXT),
    ]
    assert [(block.page, document.block_text(block)) for block in document.blocks] == [(1, "First"), (3, "Third")]
    assert document.text[document.pages[2].start : document.pages[2].end].strip() == "Third"
    assert (document.pages[0].width, document.pages[0].height) == (720.0, 540.0)


def test_a_slide_without_title_is_not_under_the_title_before(tmp_path: Path) -> None:
    deck = Deck()
    text_box(deck.slide(TITLE_ONLY, "Costs").shapes, "under it", 1, 2)
    text_box(deck.slide(BLANK).shapes, "alone", 1, 2)
    document = parse(deck.save(tmp_path))
    assert [block.heading_path for block in document.blocks] == [("Costs",), ("Costs",), ()]


def test_shapes_are_read_by_position_with_the_title_first(tmp_path: Path) -> None:
    deck = Deck()
    shapes = deck.slide(TITLE_ONLY, "Title").shapes
    text_box(shapes, "bottom", 1, 6)
    text_box(shapes, "right below", 5, 3.2)
    text_box(shapes, "right", 5, 2)
    text_box(shapes, "left", 1, 2)
    text_box(shapes, "left below", 1, 3)
    text_box(shapes, "above the title", 1, 0)
    assert texts(parse(deck.save(tmp_path))) == [
        "Title", "above the title", "left", "right", "left below", "right below", "bottom",
    ]  # fmt: skip


def test_columns_that_are_not_in_rows_are_read_whole(tmp_path: Path) -> None:
    deck = Deck()
    shapes = deck.slide(BLANK).shapes
    text_box(shapes, "left 1", 1, 1, height=2)
    text_box(shapes, "right 1", 5, 1, height=0.8)
    text_box(shapes, "right 2", 5, 2.2, height=2)
    text_box(shapes, "left 2", 1, 3.5, height=1)
    assert texts(parse(deck.save(tmp_path))) == ["left 1", "left 2", "right 1", "right 2"]


def test_groups_are_read_to_the_bottom(tmp_path: Path) -> None:
    deck = Deck()
    slide = deck.slide(BLANK)
    group = slide.shapes.add_group_shape()
    text_box(group.shapes, "outer", 1, 1)
    inner = group.shapes.add_group_shape()
    text_box(inner.shapes, "inner", 1, 2)
    text_box(slide.shapes, "after", 1, 4)
    document = parse(deck.save(tmp_path))
    assert texts(document) == ["outer", "inner", "after"]
    box = document.blocks[1].bbox
    assert box is not None
    assert (box.left, box.top) == (72.0, 144.0)


def test_bullets_keep_their_level(tmp_path: Path) -> None:
    deck = Deck()
    frame = deck.slide(BULLETS, "List").placeholders[1].text_frame
    frame.text = "one"
    nested = frame.add_paragraph()
    nested.text, nested.level = "nested", 1
    document = parse(deck.save(tmp_path))
    assert [(block.type, block.level) for block in document.blocks[1:]] == [
        (BlockType.LIST_ITEM, 1),
        (BlockType.LIST_ITEM, 2),
    ]
    assert document.text == "List\n\none\nnested"


def test_tables_with_merged_cells(tmp_path: Path) -> None:
    deck = Deck()
    frame = deck.slide(BLANK).shapes.add_table(3, 3, Inches(1), Inches(1), Inches(6), Inches(2))
    table = frame.table
    for row in range(3):
        for column in range(3):
            table.cell(row, column).text = f"{row}{column}"
    table.cell(0, 1).text = table.cell(0, 2).text = table.cell(2, 0).text = ""
    table.cell(0, 1).text = "wide"
    table.cell(0, 1).merge(table.cell(0, 2))
    table.cell(1, 0).merge(table.cell(2, 0))
    (block,) = parse(deck.save(tmp_path)).blocks
    assert block.rows == (("00", "wide", "wide"), ("10", "11", "12"), ("10", "21", "22"))


def test_charts_pictures_and_notes(tmp_path: Path) -> None:
    deck = Deck()
    slide = deck.slide(BLANK)
    data: Any = CategoryChartData()  # type: ignore[no-untyped-call]
    data.categories = ["North", "South"]
    data.add_series("2024", (1.1, 2.2))
    slide.shapes.add_chart(XL_CHART_TYPE.BAR_CLUSTERED, Inches(1), Inches(1), Inches(4), Inches(3), data)
    picture = BytesIO()
    Image.new("RGB", (4, 3)).save(picture, "PNG")
    shape = slide.shapes.add_picture(picture, Inches(1), Inches(5))
    shape._element.nvPicPr.cNvPr.set("descr", "A red bridge")
    slide.notes_slide.notes_text_frame.text = "Say it slowly"
    document = parse(deck.save(tmp_path))

    table, image, notes = document.blocks
    assert table.rows == (("", "2024"), ("North", "1.1"), ("South", "2.2"))
    assert (image.type, document.block_text(image), image.metadata) == (BlockType.IMAGE, "A red bridge", {"image": "0"})
    assert (notes.type, document.block_text(notes)) == (BlockType.ANNOTATION, "Say it slowly")
    assert notes.metadata == {"role": "notes"}
    assert (document.images[0].page, document.images[0].width, document.images[0].height) == (1, 4, 3)


def test_hidden_slides_are_read_and_flagged(tmp_path: Path) -> None:
    deck = Deck()
    deck.slide(TITLE_ONLY, "Shown")
    hidden = deck.slide(TITLE_ONLY, "Backup")
    hidden._element.set("show", "0")
    document = parse(deck.save(tmp_path))
    assert document.metadata["hidden_slides"] == [2]
    assert "slide 2 is hidden in the presentation; its text is included" in document.warnings
    assert [block.metadata.get("hidden") for block in document.blocks] == [None, "true"]


def test_a_damaged_slide_fails_alone(tmp_path: Path) -> None:
    deck = Deck()
    for title in ("First", "Second", "Third"):
        deck.slide(TITLE_ONLY, title)
    request = rewrite(deck.save(tmp_path), {"ppt/slides/slide2.xml": b"<p:sld><unclosed>"})
    document = parse(request)
    assert [page.state for page in document.pages] == [PageState.TEXT, PageState.FAILED, PageState.TEXT]
    assert texts(document, page=3) == ["Third"]
    assert document.warnings == ("slide 2 is damaged and could not be read",)


def test_text_in_alternate_content_is_read_once(tmp_path: Path) -> None:
    deck = Deck()
    text_box(deck.slide(BLANK).shapes, "formula", 1, 1)
    request = deck.save(tmp_path)

    def wrap(xml: bytes) -> bytes:
        start, end = xml.index(b"<p:sp>"), xml.index(b"</p:sp>") + len(b"</p:sp>")
        shape = xml[start:end]
        namespace = b'xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006"'
        versions = b"<mc:Choice>" + shape + b"</mc:Choice><mc:Fallback>" + shape + b"</mc:Fallback>"
        return (
            xml[:start] + b"<mc:AlternateContent " + namespace + b">" + versions + b"</mc:AlternateContent>" + xml[end:]
        )

    assert texts(parse(rewrite(request, {"ppt/slides/slide1.xml": wrap}))) == ["formula"]


def test_a_slide_show_is_read_like_a_presentation(tmp_path: Path) -> None:
    deck = Deck()
    deck.slide(TITLE_ONLY, "Show")
    request = rewrite(
        deck.save(tmp_path),
        {"[Content_Types].xml": lambda xml: xml.replace(b"presentation.main+xml", b"slideshow.main+xml")},
    )
    assert texts(parse(request)) == ["Show"]


def test_too_many_slides_are_refused(tmp_path: Path) -> None:
    deck = Deck()
    for _ in range(3):
        deck.slide(BLANK)
    request = deck.save(tmp_path)
    with pytest.raises(DocumentTooLargeError, match="3 slides"):
        parse(ParseRequest(path=request.path, file_name="deck.pptx", limits=ParseLimits(max_pages=2)))


def test_a_deck_without_text_has_no_content_and_says_so(tmp_path: Path) -> None:
    deck = Deck()
    deck.slide(BLANK)
    document = parse(deck.save(tmp_path))
    assert not document.has_content
    assert document.warnings == ("the slides hold no text",)
