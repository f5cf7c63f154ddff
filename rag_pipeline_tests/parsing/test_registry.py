import io
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from rag_pipeline.core.ports import ParseRequest
from rag_pipeline.errors import EmptyDocumentError, UnsupportedFormatError
from rag_pipeline.parsing.registry import check_supported, parse_file, read_head, resolve, supported_extensions

OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\0" * 600
PDF = b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj\n"
RTF = rb"{\rtf1\ansi hello}"
HTML = b"<!DOCTYPE html><html><body>x</body></html>"
PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"


def archive(*names: str, mimetype: str | None = None) -> bytes:
    """A zip archive with these files, as office programs write it."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        if mimetype:
            file.writestr("mimetype", mimetype)
        for name in names:
            file.writestr(name, b"x")
    return content.getvalue()


DOCX = archive("[Content_Types].xml", "_rels/.rels", "word/document.xml")
XLSX = archive("[Content_Types].xml", "xl/workbook.xml")
ODT = archive("content.xml", mimetype="application/vnd.oasis.opendocument.text")
EPUB = archive("META-INF/container.xml", mimetype="application/epub+zip")
ZIP = archive("holiday.jpg", "notes.txt")


@pytest.mark.parametrize("extension", supported_extensions())
def test_every_extension_has_a_parser_with_name_and_version(extension: str) -> None:
    parser = resolve(f"Some File.{extension.upper()}")
    assert parser.name
    assert parser.version


@pytest.mark.parametrize(
    ("name", "head", "parser"),
    [
        ("a.txt", b"hello", "text"),
        ("a.TXT ", b"hello", "text"),
        ("README", b"plain words\n", "text"),
        ("a.unknown", "unbekannt: Größe".encode("cp1252"), "text"),
        ("a.unknown", "日志\n".encode("utf-16"), "text"),
        ("a.txt", PDF, "pdf"),
        ("a.pdf", b"junk before\n%PDF-1.4 \0", "pdf"),
        ("a.docx", PDF, "pdf"),
        ("noextension", PDF, "pdf"),
        ("a.txt", DOCX, "docx"),
        ("a.doc", DOCX, "docx"),
        ("a.docx", XLSX, "xlsx"),
        ("a.zip", XLSX, "xlsx"),
        ("a.bin", ODT, "opendocument"),
        ("a.docx", EPUB, "epub"),
        ("a.doc", RTF, "rtf"),
        ("a.xls", HTML, "html"),
        ("a.txt", HTML, "text"),
        ("a.md", HTML, "markdown"),
        ("a.txt", PNG, "image"),
        ("a.jpg", PNG, "image"),
        ("a.docx", OLE, "docx"),
        ("a.csv", b"a,b\n1,2\n", "delimited"),
        ("archive.tar.csv", b"a,b\n", "delimited"),
    ],
)
def test_extension_decides_and_signatures_correct_it(name: str, head: bytes, parser: str) -> None:
    assert resolve(name, head).name == parser


@pytest.mark.parametrize(
    ("name", "head", "message"),
    [
        ("a.doc", OLE, r"convert the file to \.docx"),
        ("a.xls", None, r"convert the file to \.xlsx"),
        ("a.ppt", b"", r"convert the file to \.pptx"),
        ("a.unknown", OLE, r"legacy Office"),
        ("a.txt", OLE, r"legacy or encrypted Office"),
        ("a.zip", ZIP, "unpack"),
        ("a.ZIP", None, "unpack"),
        ("a.tar.gz", b"\x1f\x8b\x08", "unpack"),
        ("a.txt", ZIP, "unpack"),
        ("a.csv", b"\x1f\x8b\x08\0", "unpack"),
        ("a.unknown", ZIP, "unpack"),
        ("a.bin", bytes(range(256)), "supported: bmp, csv, docm, docx, .* plain text"),
        ("a", None, "without an extension are not supported"),
        ("a.heic", b"\0\0\0 ftypheic", "convert the file to .jpg or .png"),
    ],
)
def test_refusal_says_what_to_do(monkeypatch: pytest.MonkeyPatch, name: str, head: bytes | None, message: str) -> None:
    monkeypatch.setenv("PATH", "")  # LibreOffice, where it is installed, reads some of these
    with pytest.raises(UnsupportedFormatError, match=message):
        resolve(name, head)
    with pytest.raises(UnsupportedFormatError, match=message):
        check_supported(name, head)


def test_binary_content_of_a_text_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes(range(256)) * 50)
    with pytest.raises(UnsupportedFormatError, match="binary"):
        parse_file(ParseRequest(path=path, file_name="a.txt"))


@pytest.mark.parametrize("name", ["a.txt", "a.pdf", "a.docx", "a.html", "a.json", "a.png"])
def test_file_without_bytes_is_empty(tmp_path: Path, name: str) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"")
    assert read_head(path) == b""
    with pytest.raises(EmptyDocumentError, match="no bytes"):
        parse_file(ParseRequest(path=path, file_name=name))


def test_asking_what_is_supported_imports_no_parser() -> None:
    script = (
        "import sys; from rag_pipeline.parsing import registry; registry.check_supported('a.pdf', b'%PDF-1.7');"
        "registry.check_supported('a.docx'); print(sorted({m.partition('.')[0] for m in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    for heavy in ("lxml", "pypdfium2", "docx", "openpyxl", "onnxruntime", "pyarrow", "yaml", "markdown_it"):
        assert f"'{heavy}'" not in done.stdout
