"""Files in which the parser alone finds nothing: what is tried, and what the document says about it."""

from io import BytesIO
from pathlib import Path
from typing import Any

import pptx
import pytest
from docx import Document
from openpyxl import Workbook
from PIL import Image

from rag_pipeline.core.parsed_document import BlockType, PageState, ParsedDocument
from rag_pipeline.core.ports import ParseLimits, ParseRequest
from rag_pipeline.errors import CorruptDocumentError, ParseTimeoutError, UnsupportedFormatError
from rag_pipeline.parsing import libreoffice
from rag_pipeline.parsing.registry import parse_file
from rag_pipeline_tests.parsing.documents import check_offsets, only_block, outline, parse_bytes
from rag_pipeline_tests.parsing.pdf.pdf_files import Page, gray_image, pdf
from rag_pipeline_tests.parsing.seeds import picture, png
from rag_pipeline_tests.parsing.test_image import similar

SENTENCE = "Close the inlet valve first"
needs_libreoffice = pytest.mark.skipif(not libreoffice.is_installed(), reason="LibreOffice is not installed")


def sentence_png() -> BytesIO:
    image = picture(SENTENCE, size=(420, 60))
    buffer = BytesIO()
    image.save(buffer, "PNG")
    buffer.seek(0)
    return buffer


def parse(path: Path, *, limits: ParseLimits | None = None) -> ParsedDocument:
    document = parse_file(ParseRequest(path=path, file_name=path.name, limits=limits or ParseLimits()))
    check_offsets(document)
    return document


@pytest.fixture(autouse=True)
def without_libreoffice(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Only the tests that ask for LibreOffice find it, also where it is installed."""
    if not request.node.get_closest_marker("skipif"):
        monkeypatch.setenv("PATH", str(tmp_path))


def test_a_text_file_stays_on_the_first_step(tmp_path: Path) -> None:
    document = parse_bytes(tmp_path, "A sentence.", "a.txt")
    assert document.metadata["ladder_step"] == "text"
    assert document.warnings == ()


def test_a_word_file_of_pictures_is_read_by_ocr(tmp_path: Path) -> None:
    word = Document()
    word.add_picture(sentence_png())
    word.sections[0].header.paragraphs[0].text = "Company"
    word.save(str(tmp_path / "a.docx"))
    document = parse(tmp_path / "a.docx")
    assert similar(document.text, SENTENCE)
    assert document.metadata["ladder_step"] == "pictures"
    assert (document.parser, len(document.images)) == ("docx", 1)
    assert any("only by OCR of its pictures" in warning for warning in document.warnings)


def test_slides_of_pictures_are_read_by_ocr_page_by_page(tmp_path: Path) -> None:
    deck: Any = pptx.Presentation()
    for content in (None, sentence_png()):
        slide = deck.slides.add_slide(deck.slide_layouts[6])
        if content:
            slide.shapes.add_picture(content, 0, 0)
    deck.save(tmp_path / "a.pptx")
    document = parse(tmp_path / "a.pptx")
    assert [page.state for page in document.pages] == [PageState.BLANK, PageState.OCR]
    (block,) = document.blocks
    assert block.page == 2
    assert block.bbox is not None
    assert similar(document.block_text(block), SENTENCE)


def test_nothing_on_any_step_is_no_content_and_says_what_was_tried(tmp_path: Path) -> None:
    word = Document()
    buffer = BytesIO()
    Image.new("RGB", (300, 100), "white").save(buffer, "PNG")
    word.add_picture(buffer)
    word.save(str(tmp_path / "a.docx"))
    document = parse(tmp_path / "a.docx")
    assert not document.has_content
    assert document.metadata["ladder_step"] == "none"
    assert document.warnings[-1] == (
        "no text was found in the file, also by OCR of its pictures: it is kept without content"
    )


def test_a_scan_without_letters_is_looked_at_more_closely(tmp_path: Path) -> None:
    gray = Page(content="q 612 0 0 792 0 0 cm /I1 Do Q\n", xobjects={"I1": gray_image(60, 80, bytes([230]) * 4_800)})
    document = parse_bytes(tmp_path, pdf(gray), "a.pdf")
    assert document.metadata["ladder_step"] == "none"
    assert document.warnings[-1] == "no text was found in the file, also by a deep parse: it is kept without content"


def test_an_empty_page_needs_no_deep_parse(tmp_path: Path) -> None:
    document = parse_bytes(tmp_path, pdf(Page()), "a.pdf")
    assert document.metadata["ladder_step"] == "none"
    assert document.warnings[-1] == "no text was found in the file: it is kept without content"


def test_a_file_that_time_did_not_suffice_for_is_no_file_without_content(tmp_path: Path) -> None:
    word = Document()
    word.add_picture(BytesIO(png("Valve")))
    word.save(str(tmp_path / "a.docx"))
    scan = gray_image(60, 80, bytes([230]) * 4_800)
    (tmp_path / "a.pdf").write_bytes(pdf(Page(content="q 612 0 0 792 0 0 cm /I1 Do Q\n", xobjects={"I1": scan})))
    for name in ("a.docx", "a.pdf"):
        with pytest.raises(ParseTimeoutError, match=r"no text was found in a\..*RAG_PARSE_TIMEOUT_SECONDS"):
            parse(tmp_path / name, limits=ParseLimits(seconds=0.0))


@pytest.mark.parametrize("name", ["a.doc", "a.xls", "a.ppt"])
def test_legacy_files_need_libreoffice(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(2_000))
    with pytest.raises(UnsupportedFormatError, match=rf"convert the file to {name[1:]}x, or install LibreOffice"):
        parse(tmp_path / name)


@needs_libreoffice
def test_legacy_files_keep_their_headings_and_cells(tmp_path: Path) -> None:
    word = Document()
    word.add_heading("Scope", 1)
    word.add_paragraph("All pumps of the site.")
    word.save(str(tmp_path / "a.docx"))
    book = Workbook()
    page: Any = book.active
    page.append(["Site", "kPa"])
    page.append(["North", 12])
    book.save(tmp_path / "b.xlsx")
    text, sheet = (parse(to_legacy(tmp_path, name)) for name in ("a.docx", "b.xlsx"))
    assert outline(text) == [("heading", "Scope"), ("paragraph", "All pumps of the site.")]
    assert only_block(sheet, BlockType.TABLE).rows == (("Site", "kPa"), ("North", "12"))
    assert (text.parser, sheet.parser) == ("legacy_office", "legacy_office")
    assert sheet.warnings == ("the file was converted to .xlsx by LibreOffice",)


def to_legacy(folder: Path, name: str) -> Path:
    scratch = folder / f"{name}-converted"
    scratch.mkdir()
    return libreoffice.convert(folder / name, extension=name[-4:-1], folder=scratch, seconds=300)


@needs_libreoffice
def test_a_damaged_legacy_file_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "a.ppt").write_bytes(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(2_000))
    with pytest.raises(CorruptDocumentError, match=r"could not convert the file to \.pptx"):
        parse(tmp_path / "a.ppt")


@needs_libreoffice
def test_an_office_file_without_text_is_looked_at_as_libreoffice_shows_it(tmp_path: Path) -> None:
    word = Document()
    word.save(str(tmp_path / "a.docx"))
    document = parse(tmp_path / "a.docx")
    assert document.metadata["ladder_step"] == "none"
    assert "a deep parse" in document.warnings[-1]
