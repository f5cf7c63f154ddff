from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from rag_pipeline.core.parsed_document import BlockType, PageState, ParsedDocument
from rag_pipeline.core.ports import ParseRequest
from rag_pipeline.errors import CorruptDocumentError, EncryptedDocumentError
from rag_pipeline.parsing.opendocument import OpenDocumentParser
from rag_pipeline_tests.parsing.office.packages import write_package

PREFIXES = {
    "office": "office", "text": "text", "table": "table", "draw": "drawing", "presentation": "presentation",
    "style": "style", "svg": "svg-compatible", "meta": "meta", "manifest": "manifest",
}  # fmt: skip
NAMESPACES = (
    " ".join(f'xmlns:{prefix}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"' for prefix, name in PREFIXES.items())
    + ' xmlns:xlink="http://www.w3.org/1999/xlink" xmlns:dc="http://purl.org/dc/elements/1.1/"'
)


def parse(
    folder: Path, kind: str, body: str, *, styles: str = "", files: dict[str, str | bytes] | None = None
) -> ParsedDocument:
    content = (
        f"<office:document-content {NAMESPACES}><office:automatic-styles>{styles}</office:automatic-styles>"
        f"<office:body><office:{kind}>{body}</office:{kind}></office:body></office:document-content>"
    )
    parts: dict[str, str | bytes] = {"mimetype": "application/vnd.oasis.opendocument.text", "content.xml": content}
    request = write_package(folder / "file.odt", parts | (files or {}))
    return OpenDocumentParser().parse(request)


def texts(document: ParsedDocument) -> list[str]:
    return [document.block_text(block) for block in document.blocks]


def test_headings_lists_and_inline_marks_of_a_text(tmp_path: Path) -> None:
    document = parse(
        tmp_path,
        "text",
        "<text:tracked-changes><text:changed-region><text:deletion><text:p>gone</text:p></text:deletion>"
        "</text:changed-region></text:tracked-changes>"
        '<text:h text:outline-level="2">Scope</text:h>'
        '<text:p>one<text:s text:c="2"/>two<text:tab/>three<text:line-break/><text:span>four</text:span> end</text:p>'
        "<text:list><text:list-item><text:p>item</text:p><text:list><text:list-item><text:p>nested</text:p>"
        "</text:list-item></text:list></text:list-item></text:list>",
    )
    assert texts(document) == ["Scope", "one  two\tthree\nfour end", "item", "nested"]
    assert [(block.type, block.level) for block in document.blocks] == [
        (BlockType.HEADING, 2),
        (BlockType.PARAGRAPH, None),
        (BlockType.LIST_ITEM, 1),
        (BlockType.LIST_ITEM, 2),
    ]


def test_notes_comments_and_text_boxes_follow_their_paragraph(tmp_path: Path) -> None:
    document = parse(
        tmp_path,
        "text",
        "<text:p>Revenue<text:note><text:note-citation>1</text:note-citation><text:note-body><text:p>Audited.</text:p>"
        "</text:note-body></text:note> rose.<office:annotation><dc:creator>Ada</dc:creator><text:p>Check!</text:p>"
        "</office:annotation><draw:frame><draw:text-box><text:p>In the box</text:p></draw:text-box></draw:frame>"
        "</text:p>",
    )
    assert texts(document) == ["Revenue rose.", "In the box", "Audited.", "Check!"]
    assert [block.type for block in document.blocks[2:]] == [BlockType.FOOTNOTE, BlockType.ANNOTATION]


def test_tables_with_merged_cells(tmp_path: Path) -> None:
    def cell(text: str, attributes: str = "") -> str:
        return f"<table:table-cell {attributes}><text:p>{text}</text:p></table:table-cell>"

    covered = "<table:covered-table-cell/>"
    document = parse(
        tmp_path,
        "text",
        "<table:table><table:table-header-rows><table:table-row>"
        + cell("Region")
        + cell("Quarter", 'table:number-columns-spanned="2"')
        + covered
        + "</table:table-row></table:table-header-rows>"
        + "<table:table-row>"
        + cell("North", 'table:number-rows-spanned="2"')
        + cell("Q1")
        + cell("10")
        + "</table:table-row><table:table-row>"
        + covered
        + cell("Q2")
        + cell("20")
        + "</table:table-row></table:table>",
    )
    assert document.blocks[0].rows == (
        ("Region", "Quarter", "Quarter"), ("North", "Q1", "10"), ("North", "Q2", "20"),
    )  # fmt: skip


def test_headers_footers_metadata_and_pictures(tmp_path: Path) -> None:
    picture = BytesIO()
    Image.new("RGB", (3, 2)).save(picture, "PNG")
    styles = (
        f"<office:document-styles {NAMESPACES}><style:master-page><style:header><text:p>Confidential</text:p>"
        "</style:header><style:footer><text:p>7</text:p></style:footer></style:master-page></office:document-styles>"
    )
    title = "<office:meta><dc:title>Report</dc:title></office:meta>"
    meta = f"<office:document-meta {NAMESPACES}>{title}</office:document-meta>"
    body = (
        '<text:p>Body<draw:frame><draw:image xlink:href="Pictures/p.png"/>'
        "<svg:desc>A red bridge</svg:desc></draw:frame></text:p>"
    )
    files: dict[str, str | bytes] = {"styles.xml": styles, "meta.xml": meta, "Pictures/p.png": picture.getvalue()}
    document = parse(tmp_path, "text", body, files=files)
    assert [(block.type, document.block_text(block)) for block in document.blocks] == [
        (BlockType.PAGE_HEADER, "Confidential"),
        (BlockType.PARAGRAPH, "Body"),
        (BlockType.IMAGE, "A red bridge"),
    ]
    assert document.metadata["title"] == "Report"
    assert document.images[0].width == 3


def value(kind: str, attribute: str, shown: str) -> str:
    return (
        f'<table:table-cell office:value-type="{kind}" office:{attribute}><text:p>{shown}</text:p></table:table-cell>'
    )


def string(text: str) -> str:
    return f'<table:table-cell office:value-type="string"><text:p>{text}</text:p></table:table-cell>'


def test_values_of_a_spreadsheet_and_hidden_sheets(tmp_path: Path) -> None:
    header = "".join(string(name) for name in ("Item", "Price", "Share", "When", "Ok"))
    row = (
        string("Desk")
        + value("currency", 'value="1200.5"', "1.200,50 €")
        + value("percentage", 'value="0.256"', "26%")
        + value("date", 'date-value="2024-03-01T10:00:00"', "1.3.24")
        + value("boolean", 'boolean-value="true"', "WAHR")
    )
    gap = '<table:table-row table:number-rows-repeated="1048000"><table:table-cell/></table:table-row>'
    document = parse(
        tmp_path,
        "spreadsheet",
        f'<table:table table:name="Prices"><table:table-row>{header}</table:table-row>'
        f"<table:table-row>{row}</table:table-row>{gap}</table:table>"
        f'<table:table table:name="Secret" table:style-name="ta2"><table:table-row>{string("x")}</table:table-row>'
        "</table:table>",
        styles='<style:style style:name="ta2"><style:table-properties table:display="false"/></style:style>',
    )
    assert document.blocks[1].rows == (
        ("Item", "Price", "Share", "When", "Ok"),
        ("Desk", "1200.5", "25.6%", "2024-03-01 10:00:00", "TRUE"),
    )
    assert document.blocks[1].heading_path == ("Prices",)
    assert document.metadata["sheets"] == ["Prices", "Secret"]
    assert document.metadata["hidden_sheets"] == ["Secret"]
    assert document.blocks[2].metadata["hidden"] == "true"


def test_repeated_cells_do_not_fill_the_memory(tmp_path: Path) -> None:
    cell = '<table:table-cell table:number-columns-repeated="16384"><text:p>x</text:p></table:table-cell>'
    row = f'<table:table-row table:number-rows-repeated="1048576">{cell}</table:table-row>'
    small = cell.replace("16384", "3")
    document = parse(tmp_path, "spreadsheet", f'<table:table table:name="S">{row.replace(cell, small)}</table:table>')
    assert len(document.blocks[1].rows) == 1_000


def frame(text: str, x: float, y: float, kind: str = "") -> str:
    return (
        f'<draw:frame svg:x="{x}cm" svg:y="{y}cm" svg:width="5cm" svg:height="1cm" {kind}><draw:text-box>'
        f"<text:p>{text}</text:p></draw:text-box></draw:frame>"
    )


def test_slides_are_pages_in_reading_order_with_notes(tmp_path: Path) -> None:
    first = (
        frame("below", 1, 8)
        + frame("right", 10, 4)
        + frame("left", 1, 4)
        + frame("Title", 1, 1, 'presentation:class="title"')
        + f"<presentation:notes>{frame('Say it slowly', 1, 1)}</presentation:notes>"
    )
    document = parse(
        tmp_path,
        "presentation",
        f"<draw:page>{first}</draw:page><draw:page/><draw:page>{frame('last', 1, 1)}</draw:page>",
    )
    assert [(block.page, document.block_text(block)) for block in document.blocks] == [
        (1, "Title"), (1, "left"), (1, "right"), (1, "below"), (1, "Say it slowly"), (3, "last"),
    ]  # fmt: skip
    assert [page.state for page in document.pages] == [PageState.TEXT, PageState.BLANK, PageState.TEXT]
    assert document.blocks[-1].heading_path == ()


def test_an_encrypted_file(tmp_path: Path) -> None:
    manifest = (
        f"<manifest:manifest {NAMESPACES}><manifest:file-entry><manifest:encryption-data/></manifest:file-entry>"
        "</manifest:manifest>"
    )
    with pytest.raises(EncryptedDocumentError, match="password"):
        parse(tmp_path, "text", "", files={"META-INF/manifest.xml": manifest})


def test_a_file_without_content_is_corrupt(tmp_path: Path) -> None:
    request: ParseRequest = write_package(tmp_path / "a.odt", {"mimetype": "x"})
    with pytest.raises(CorruptDocumentError):
        OpenDocumentParser().parse(request)


def test_a_text_without_words_has_no_content_and_says_so(tmp_path: Path) -> None:
    document = parse(tmp_path, "text", "<text:p/>")
    assert not document.has_content
    assert document.warnings == ("the document holds no text",)
