from pathlib import Path

import pytest

from rag_pipeline.core.parsed_document import BlockType, ParsedDocument
from rag_pipeline.core.ports import ParseRequest
from rag_pipeline.errors import CorruptDocumentError, EmptyDocumentError, UnsupportedFormatError
from rag_pipeline.parsing.rtf import RtfParser

HEAD = (
    rb"{\rtf1\ansi\ansicpg1252\deff0{\fonttbl{\f0\fcharset0 Arial;}{\f1\fcharset134 SimSun;}{\f2\fcharset204 Arial;}}"
)


def parse(folder: Path, body: bytes, *, head: bytes = HEAD, end: bytes = b"}") -> ParsedDocument:
    path = folder / "a.rtf"
    path.write_bytes(head + body + end)
    return RtfParser().parse(ParseRequest(path=path, file_name="a.rtf"))


def texts(document: ParsedDocument) -> list[str]:
    return [document.block_text(block) for block in document.blocks]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        pytest.param(rb"plain {\b bold} caf\'e9", "plain bold café", id="escaped-byte"),
        pytest.param(rb"\u20320?\u22909? fine", "你好 fine", id="unicode-with-fallback"),
        pytest.param(rb"\u-10179?\u-8704?", "\U0001f600", id="surrogate-pair"),
        pytest.param(rb"{\uc2 \u21512\'ba\'cf}\uc0\u21516 x", "合同x", id="fallback-length"),
        pytest.param(rb"{\f1\'ba\'cf\'cd\'ac}", "合同", id="chinese-by-font"),
        pytest.param(rb"{\f2\'cf\'f0\'e8\'e2\'e5\'f2} ok", "Привет ok", id="cyrillic-by-font"),
        pytest.param(rb"a\tab b\line c\~d\_e\-f \{x\}", "a\tb\nc\xa0d-ef {x}", id="symbols"),
        pytest.param(rb"kept {\v hidden}{\deleted gone}too", "kept too", id="hidden-and-deleted"),
        pytest.param(rb'{\field{\*\fldinst HYPERLINK "http://x.org"}{\fldrslt link}} text', "link text", id="field"),
        pytest.param(rb"a{\*\unknown skipped {\b deep}}b{\pict\pngblip 89504e47}c", "abc", id="destinations"),
        pytest.param(b"a\r\nb\n c", "ab c", id="line-breaks-of-the-file"),
        pytest.param(b"x{\\pict\\bin4 }{}\\}y", "xy", id="binary-data-with-braces"),
    ],
)
def test_the_text_of_a_paragraph(tmp_path: Path, body: bytes, text: str) -> None:
    assert texts(parse(tmp_path, body + rb"\par")) == [text]


def test_headings_by_outline_level_and_by_style(tmp_path: Path) -> None:
    document = parse(
        tmp_path,
        rb"{\stylesheet{\s0 Normal;}{\s7\b heading 2;}}\pard\outlinelevel0 First\par\pard text\par\pard\s7 Second\par",
    )
    assert [(block.type, block.level) for block in document.blocks] == [
        (BlockType.HEADING, 1),
        (BlockType.PARAGRAPH, None),
        (BlockType.HEADING, 2),
    ]
    assert document.blocks[2].heading_path == ("First", "Second")


def test_tables_keep_their_rows(tmp_path: Path) -> None:
    row = rb"\trowd\cellx100\cellx200\pard\intbl %s\cell %s\cell\row "
    document = parse(
        tmp_path,
        rb"\pard before\par" + row % (b"Item", b"Price") + row % (rb"Desk\par oak", b"120") + rb"\pard after\par",
    )
    assert texts(document)[0] == "before"
    assert document.blocks[1].rows == (("Item", "Price"), ("Desk\noak", "120"))
    assert texts(document)[2] == "after"


def test_list_items_keep_their_shown_number(tmp_path: Path) -> None:
    document = parse(
        tmp_path,
        rb"\pard{\listtext 1.\tab}\ls1 one\par\pard{\listtext\'b7\tab}\ls2\ilvl1 bullet\par\pard plain\par",
    )
    assert [(block.type, block.level, document.block_text(block)) for block in document.blocks] == [
        (BlockType.LIST_ITEM, 1, "1. one"),
        (BlockType.LIST_ITEM, 2, "bullet"),
        (BlockType.PARAGRAPH, None, "plain"),
    ]


def test_notes_boxes_and_margins(tmp_path: Path) -> None:
    document = parse(
        tmp_path,
        rb"{\header Confidential\par}{\footer 7\par}Revenue{\footnote Audited.\par} rose."
        rb"{\shp{\*\shpinst{\sp{\sn x}{\sv y}}{\shptxt In the box\par}}}\par",
    )
    assert [(block.type, document.block_text(block)) for block in document.blocks] == [
        (BlockType.PARAGRAPH, "Revenue rose."),
        (BlockType.FOOTNOTE, "Audited."),
        (BlockType.PARAGRAPH, "In the box"),
        (BlockType.PAGE_HEADER, "Confidential"),
    ]


def test_information_becomes_metadata(tmp_path: Path) -> None:
    document = parse(tmp_path, rb"{\info{\title My Report}{\author Ada}{\creatim\yr2024}}text\par")
    assert (document.metadata["title"], document.metadata["author"]) == ("My Report", "Ada")
    assert document.text == "text"


def test_a_file_that_is_cut_off_is_read_with_a_warning(tmp_path: Path) -> None:
    document = parse(tmp_path, rb"{\b kept", end=b"")
    assert document.text == "kept"
    assert document.warnings == ("the file is cut off; what was there is read",)


def test_an_unknown_code_page_is_read_as_western(tmp_path: Path) -> None:
    assert parse(tmp_path, rb"caf\'e9\par", head=rb"{\rtf1\ansi\ansicpg125 ").text == "café"


def test_groups_without_end_are_corrupt(tmp_path: Path) -> None:
    with pytest.raises(CorruptDocumentError):
        parse(tmp_path, b"{" * 20_000)


def test_other_content_and_empty_files(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedFormatError):
        parse(tmp_path, b"", head=b"just text", end=b"")
    with pytest.raises(EmptyDocumentError):
        parse(tmp_path, b"", head=b"", end=b"")


def test_a_document_without_text_has_no_content_and_says_so(tmp_path: Path) -> None:
    document = parse(tmp_path, b"")
    assert not document.has_content
    assert document.warnings == ("the document holds no text",)
