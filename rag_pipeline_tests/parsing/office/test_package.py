import struct
import tracemalloc
import zipfile
from pathlib import Path

import pytest

from rag_pipeline.core.ports import ParseLimits, ParseRequest
from rag_pipeline.errors import (
    CorruptDocumentError,
    DocumentTooLargeError,
    EmptyDocumentError,
    EncryptedDocumentError,
    InvalidDocumentError,
    UnsupportedFormatError,
)
from rag_pipeline.parsing.office.docx import DocxParser
from rag_pipeline.parsing.office.package import OLE_MAGIC, OfficePackage
from rag_pipeline_tests.parsing.office.packages import paragraph, relationships, write_docx, write_package


def compound_file(*streams: str) -> bytes:
    """The header and directory of an OLE compound file with these streams."""
    entries = b""
    for name in ("Root Entry", *streams):
        encoded = name.encode("utf-16-le")
        entries += encoded.ljust(64, b"\0") + struct.pack("<HB", len(encoded) + 2, 2) + bytes(61)
    return OLE_MAGIC.ljust(512, b"\0") + entries


def written(folder: Path, content: bytes, name: str = "file.docx") -> ParseRequest:
    path = folder / name
    path.write_bytes(content)
    return ParseRequest(path=path, file_name=name)


@pytest.mark.parametrize(
    ("content", "error", "hint"),
    [
        pytest.param(b"", EmptyDocumentError, "empty", id="no-bytes"),
        pytest.param(b"PK\x03\x04 cut off", CorruptDocumentError, "save it again", id="cut-off"),
        pytest.param(b"\x00\x01 noise" * 40, CorruptDocumentError, "save it again", id="noise"),
        pytest.param(b"%PDF-1.7", UnsupportedFormatError, "rename it to .pdf", id="a-pdf"),
        pytest.param(compound_file("EncryptedPackage"), EncryptedDocumentError, "password", id="encrypted"),
        pytest.param(compound_file("WordDocument"), UnsupportedFormatError, "convert it to .docx", id="doc"),
        pytest.param(compound_file("Workbook"), UnsupportedFormatError, "convert it to .xlsx", id="xls"),
        pytest.param(compound_file("PowerPoint Document"), UnsupportedFormatError, "convert it to .pptx", id="ppt"),
        pytest.param(compound_file("Other"), UnsupportedFormatError, "convert it", id="other-compound-file"),
    ],
)
def test_what_is_no_package_is_refused_with_the_remedy(
    tmp_path: Path, content: bytes, error: type[InvalidDocumentError], hint: str
) -> None:
    with pytest.raises(error, match=hint) as caught:
        DocxParser().parse(written(tmp_path, content))
    assert "file.docx" in str(caught.value)


def test_an_encrypted_entry_is_encrypted(tmp_path: Path) -> None:
    request = write_docx(tmp_path, paragraph("x"))
    content = bytearray(request.path.read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1
    with pytest.raises(EncryptedDocumentError, match="password"):
        DocxParser().parse(written(tmp_path, bytes(content)))


def test_a_flipped_byte_inside_a_part_is_corrupt(tmp_path: Path) -> None:
    request = write_docx(tmp_path, paragraph("text " * 500))
    content = bytearray(request.path.read_bytes())
    content[content.index(b"word/document.xml") + 40] ^= 0xFF
    with pytest.raises(CorruptDocumentError):
        DocxParser().parse(written(tmp_path, bytes(content)))


def test_a_damaged_entry_name_is_corrupt(tmp_path: Path) -> None:
    request = write_docx(tmp_path, paragraph("x"), parts={"é.xml": "<x/>"})
    content = request.path.read_bytes().replace("é.xml".encode(), b"\xf3\x28.xml")
    with pytest.raises(CorruptDocumentError):
        DocxParser().parse(written(tmp_path, content))


@pytest.mark.parametrize(
    ("main", "error", "hint"),
    [
        pytest.param("xl/workbook.xml", UnsupportedFormatError, "rename it to .xlsx", id="a-workbook"),
        pytest.param(None, UnsupportedFormatError, "zip archive", id="a-plain-zip"),
        pytest.param("word/gone.xml", CorruptDocumentError, "main part is missing", id="no-main-part"),
    ],
)
def test_another_kind_of_archive_is_named(
    tmp_path: Path, main: str | None, error: type[InvalidDocumentError], hint: str
) -> None:
    content = {"readme.txt": "hello"}
    if main:
        content = {"[Content_Types].xml": "<x/>", "_rels/.rels": relationships(("a", "officeDocument", main))}
    if main == "xl/workbook.xml":
        content[main] = "<x/>"
    with pytest.raises(error, match=hint):
        DocxParser().parse(write_package(tmp_path / "file.docx", content))


def test_an_archive_that_expands_too_far_is_refused_without_expanding_it(tmp_path: Path) -> None:
    request = write_docx(tmp_path, paragraph("x"), parts={"media/zeros.bin": bytes(60_000_000)})
    assert request.path.stat().st_size < 100_000
    limits = ParseLimits(max_expanded_bytes=50_000_000)
    tracemalloc.start()
    try:
        with pytest.raises(DocumentTooLargeError, match="RAG_PARSE_MAX_EXPANDED_BYTES"):
            DocxParser().parse(ParseRequest(path=request.path, file_name="bomb.docx", limits=limits))
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


def test_what_is_read_again_and_again_counts_each_time(tmp_path: Path) -> None:
    request = write_docx(tmp_path, paragraph("x"), parts={"media/zeros.bin": bytes(900)})
    limits = ParseLimits(max_expanded_bytes=4_000)
    with OfficePackage.open(ParseRequest(path=request.path, file_name="a.docx", limits=limits)) as package:
        for _ in range(4):
            package.read("word/media/zeros.bin")
        with pytest.raises(DocumentTooLargeError):
            package.read("word/media/zeros.bin")


@pytest.mark.parametrize(
    "doctype",
    [
        pytest.param('<!ENTITY e SYSTEM "file:///etc/passwd">', id="external-entity"),
        pytest.param('<!ENTITY a "lol"><!ENTITY b "&a;&a;&a;"><!ENTITY e "&b;&b;&b;">', id="entity-expansion"),
    ],
)
def test_entities_are_not_expanded(tmp_path: Path, doctype: str) -> None:
    body = (
        f'<!DOCTYPE x [{doctype}]><w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main">'
        "<w:body><w:p><w:r><w:t>&e;</w:t></w:r></w:p></w:body></w:document>"
    )
    with pytest.raises(CorruptDocumentError, match="entities"):
        DocxParser().parse(write_docx(tmp_path, "", parts={"document.xml": body}))


def test_characters_that_xml_forbids_are_skipped(tmp_path: Path) -> None:
    document = DocxParser().parse(write_docx(tmp_path, paragraph("before\x02&#x1F;after")))
    assert document.text == "beforeafter"


def test_nesting_without_end_is_corrupt(tmp_path: Path) -> None:
    body = "<w:sdt><w:sdtContent>" * 5_000 + paragraph("deep") + "</w:sdtContent></w:sdt>" * 5_000
    with pytest.raises(CorruptDocumentError):
        DocxParser().parse(write_docx(tmp_path, body))


def test_part_names_differ_in_case_and_slashes(tmp_path: Path) -> None:
    path = write_docx(tmp_path, paragraph("found")).path
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(tmp_path / "b.docx", "w") as target:
        for name in source.namelist():
            renamed = name.replace("word/document.xml", "WORD\\Document.xml")
            target.writestr(renamed, source.read(name))
    document = DocxParser().parse(ParseRequest(path=tmp_path / "b.docx", file_name="b.docx"))
    assert document.text == "found"


def test_a_directory_that_points_before_the_file_is_corrupt(tmp_path: Path) -> None:
    request = write_docx(tmp_path, paragraph("x"))
    content = bytearray(request.path.read_bytes())
    end = content.index(b"PK\x05\x06")
    size, offset = struct.unpack_from("<II", content, end + 12)
    struct.pack_into("<I", content, end + 16, offset + 5_000)
    assert size
    with pytest.raises(CorruptDocumentError):
        DocxParser().parse(written(tmp_path, bytes(content)))
