from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from rag_pipeline.core.parsed_document import BlockType, ParsedDocument
from rag_pipeline.core.ports import ParseLimits, ParseRequest
from rag_pipeline.errors import CorruptDocumentError, DocumentTooLargeError, EncryptedDocumentError
from rag_pipeline.parsing.epub import EpubParser
from rag_pipeline_tests.parsing.office.packages import write_package

CONTAINER = (
    '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
    '<rootfile full-path="OPS/book.opf"/></rootfiles></container>'
)


def page(body: str, doctype: str = "") -> str:
    return (
        f'<?xml version="1.0" encoding="utf-8"?>{doctype}<html xmlns="http://www.w3.org/1999/xhtml">'
        f"<head><title>ignored</title></head><body>{body}</body></html>"
    )


def write_book(folder: Path, spine: list[str], files: dict[str, str | bytes], extra: str = "") -> ParseRequest:
    """A book whose files are items with their name without extension as id."""
    items = "".join(
        f'<item id="{name.split(".")[0]}" href="{name.replace(" ", "%20")}" media-type="application/xhtml+xml"/>'
        for name in files
        if name.endswith(".xhtml") and name != "nav.xhtml"
    )
    references = "".join(f'<itemref idref="{name}"/>' for name in spine)
    package = (
        '<package xmlns="http://www.idpf.org/2007/opf" xmlns:dc="http://purl.org/dc/elements/1.1/">'
        "<metadata><dc:title>The Book</dc:title><dc:creator>Ada</dc:creator><dc:language>en</dc:language></metadata>"
        f"<manifest>{items}{extra}</manifest><spine>{references}</spine></package>"
    )
    content: dict[str, str | bytes] = {
        "mimetype": "application/epub+zip",
        "META-INF/container.xml": CONTAINER,
        "OPS/book.opf": package,
    }
    content |= {name if name.startswith("META-INF") else f"OPS/{name}": data for name, data in files.items()}
    return write_package(folder / "book.epub", content)


def parse(request: ParseRequest) -> ParsedDocument:
    return EpubParser().parse(request)


def texts(document: ParsedDocument) -> list[str]:
    return [document.block_text(block) for block in document.blocks]


def test_chapters_come_in_spine_order_with_their_headings(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {
        "one two.xhtml": page("<h1>Second</h1><p>b</p>"),
        "a.xhtml": page("<h1>First</h1><p>caf&eacute;</p>", "<!DOCTYPE html>"),
    }
    document = parse(write_book(tmp_path, ["a", "one two"], files))
    assert texts(document) == ["First", "café", "Second", "b"]
    assert document.blocks[3].heading_path == ("Second",)
    assert document.metadata["title"] == "The Book"
    assert document.metadata["author"] == "Ada"


@pytest.mark.parametrize(
    ("name", "item", "contents"),
    [
        pytest.param(
            "nav.xhtml",
            '<item id="nav" href="nav.xhtml" media-type="application/xhtml+xml" properties="nav"/>',
            page('<nav><ol><li><a href="a.xhtml">Chapter <i>One</i></a></li></ol></nav>'),
            id="navigation-document",
        ),
        pytest.param(
            "toc.ncx",
            '<item id="ncx" href="toc.ncx" media-type="application/x-dtbncx+xml"/>',
            '<!DOCTYPE ncx PUBLIC "-//NISO//DTD ncx 2005-1//EN" "http://example.org/ncx.dtd">'
            '<ncx xmlns="http://www.daisy.org/z3986/2005/ncx/"><navMap><navPoint><navLabel><text>Chapter One</text>'
            '</navLabel><content src="a.xhtml#start"/></navPoint></navMap></ncx>',
            id="ncx",
        ),
    ],
)
def test_a_chapter_without_heading_takes_its_title_from_the_contents(
    tmp_path: Path, name: str, item: str, contents: str
) -> None:
    files: dict[str, str | bytes] = {"a.xhtml": page("<p>Text.</p>"), name: contents}
    document = parse(write_book(tmp_path, ["nav", "a"], files, item))
    assert texts(document) == ["Chapter One", "Text."]
    assert document.blocks[0].type is BlockType.HEADING


def test_pictures_are_kept(tmp_path: Path) -> None:
    picture = BytesIO()
    Image.new("RGB", (6, 2)).save(picture, "JPEG")
    item = '<item id="p" href="p.jpg" media-type="image/jpeg"/>'
    (image,) = parse(write_book(tmp_path, [], {"p.jpg": picture.getvalue()}, item)).images
    assert (image.media_type, image.width, image.height) == ("image/jpeg", 6, 2)


def encryption(target: str) -> dict[str, str | bytes]:
    xml = (
        '<encryption xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><EncryptedData><CipherData>'
        f'<CipherReference URI="{target}"/></CipherData></EncryptedData></encryption>'
    )
    return {"META-INF/encryption.xml": xml, "a.xhtml": page("<p>Text.</p>")}


def test_a_protected_chapter_is_encrypted(tmp_path: Path) -> None:
    with pytest.raises(EncryptedDocumentError, match="protect"):
        parse(write_book(tmp_path, ["a"], encryption("OPS/a.xhtml")))


def test_obfuscated_fonts_do_not_matter(tmp_path: Path) -> None:
    assert texts(parse(write_book(tmp_path, ["a"], encryption("OPS/font.otf")))) == ["Text."]


def test_a_missing_chapter_is_reported(tmp_path: Path) -> None:
    item = '<item id="gone" href="gone.xhtml" media-type="application/xhtml+xml"/>'
    document = parse(write_book(tmp_path, ["gone", "a"], {"a.xhtml": page("<p>Text.</p>")}, item))
    assert texts(document) == ["Text."]
    assert document.warnings == ("the chapter OPS/gone.xhtml is missing from the file",)


def test_a_zip_without_container_is_corrupt(tmp_path: Path) -> None:
    with pytest.raises(CorruptDocumentError, match="no complete epub"):
        parse(write_package(tmp_path / "book.epub", {"mimetype": "application/epub+zip"}))


def test_a_book_that_expands_too_far_is_refused(tmp_path: Path) -> None:
    request = write_book(tmp_path, ["a"], {"a.xhtml": page("<p>" + "x" * 2_000_000 + "</p>")})
    limits = ParseLimits(max_expanded_bytes=1_000_000)
    with pytest.raises(DocumentTooLargeError):
        parse(ParseRequest(path=request.path, file_name="book.epub", limits=limits))
