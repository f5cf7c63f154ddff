"""Which parser reads a file: the extension decides, the first bytes correct it. Asking imports no parser.

To add a format: write a `Parser`, give its extensions a line in `_PARSERS`, and its signature one in `_sniff` if it
has any.
"""

from importlib import import_module
from pathlib import Path, PurePath
from typing import cast

from rag_pipeline.core.parsed_document import ParsedDocument
from rag_pipeline.core.ports import ParseRequest
from rag_pipeline.errors import DocumentTooLargeError, EmptyDocumentError, UnsupportedFormatError
from rag_pipeline.parsing import libreoffice
from rag_pipeline.parsing.ladder import climb
from rag_pipeline.parsing.parser import Parser

HEAD_BYTES = 8192
"""How much of a file `resolve` wants to see: a PDF header may stand 1,024 bytes in, an office archive names its parts
in the first entries."""

_PDF = "rag_pipeline.parsing.pdf.parser:PdfParser"
_DOCX = "rag_pipeline.parsing.office.docx:DocxParser"
_PPTX = "rag_pipeline.parsing.office.pptx:PptxParser"
_XLSX = "rag_pipeline.parsing.office.xlsx:XlsxParser"
_IMAGE = "rag_pipeline.parsing.image:ImageParser"
_EMAIL = "rag_pipeline.parsing.email:EmailParser"
_EPUB = "rag_pipeline.parsing.epub:EpubParser"
_OPEN_DOCUMENT = "rag_pipeline.parsing.opendocument:OpenDocumentParser"
_RTF = "rag_pipeline.parsing.rtf:RtfParser"
_TEXT = "rag_pipeline.parsing.text:TextParser"
_MARKDOWN = "rag_pipeline.parsing.markdown:MarkdownParser"
_HTML = "rag_pipeline.parsing.html:HtmlParser"
_DELIMITED = "rag_pipeline.parsing.delimited:DelimitedParser"
_JSON = "rag_pipeline.parsing.structured:JsonParser"
_YAML = "rag_pipeline.parsing.structured:YamlParser"
_XML = "rag_pipeline.parsing.xml:XmlParser"

_PARSERS: dict[str, tuple[str, ...]] = {
    _PDF: ("pdf",),
    _DOCX: ("docx", "docm", "dotx"),
    _PPTX: ("pptx", "pptm", "ppsx"),
    _XLSX: ("xlsx", "xlsm"),
    _IMAGE: ("png", "jpg", "jpeg", "tif", "tiff", "webp", "bmp"),
    _EMAIL: ("eml",),
    _EPUB: ("epub",),
    _OPEN_DOCUMENT: ("odt", "ods", "odp"),
    _RTF: ("rtf",),
    _MARKDOWN: ("md", "markdown", "mdx"),
    _HTML: ("html", "htm", "xhtml"),
    _DELIMITED: ("csv", "tsv", "tab"),
    _JSON: ("json", "jsonl", "ndjson", "geojson"),
    _YAML: ("yaml", "yml"),
    _XML: ("xml",),
    _TEXT: (
        "txt", "text", "rst", "log", "srt", "vtt", "tex", "ini", "cfg", "conf", "env", "properties", "adoc", "org",
        "bash", "bat", "c", "cc", "cpp", "cs", "css", "go", "h", "hpp", "ipynb", "java", "js", "jsx", "kt", "lua",
        "php", "pl", "proto", "ps1", "py", "r", "rb", "rs", "scala", "sh", "sql", "swift", "tf", "toml", "ts", "tsx",
        "vue",
    ),
}  # fmt: skip
_BY_EXTENSION = {extension: target for target, extensions in _PARSERS.items() for extension in extensions}

_TEXT_LIKE = frozenset({_TEXT, _MARKDOWN, _HTML, _DELIMITED, _JSON, _YAML, _XML, _EMAIL})
_ARCHIVE_LIKE = frozenset({_DOCX, _PPTX, _XLSX, _EPUB, _OPEN_DOCUMENT})

_LEGACY_OFFICE = "rag_pipeline.parsing.office.legacy:LegacyOfficeParser"
_LEGACY = frozenset({"doc", "dot", "xls", "ppt", "pps"})
"""Formats that are read where LibreOffice is installed."""
_CONVERT = {
    "doc": ".docx", "dot": ".docx", "wps": ".docx", "wpd": ".docx", "pages": ".docx or .pdf",
    "xls": ".xlsx", "xlsb": ".xlsx", "numbers": ".xlsx", "ppt": ".pptx", "pps": ".pptx", "key": ".pptx or .pdf",
    "msg": ".eml", "mobi": ".epub", "azw3": ".epub", "djvu": ".pdf", "ps": ".pdf", "xps": ".pdf",
    "heic": ".jpg or .png", "avif": ".jpg or .png", "gif": ".png", "svg": ".png or .pdf", "mht": ".html",
    "mhtml": ".html",
}  # fmt: skip
"""Extensions without a parser, and what to convert them to."""

_ARCHIVES = frozenset({"zip", "7z", "rar", "gz", "tgz", "bz2", "xz", "zst", "tar", "jar"})
_ARCHIVE_HEADS = (b"7z\xbc\xaf\x27\x1c", b"Rar!\x1a\x07", b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd")
_OLE_HEAD = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
"""Compound file: legacy Office, and encrypted docx, xlsx and pptx."""
_IMAGE_HEADS = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"II*\x00", b"MM\x00*")
_OPEN_DOCUMENT_TYPE = b"mimetypeapplication/vnd.oasis.opendocument."
_EPUB_TYPE = b"mimetypeapplication/epub+zip"


def supported_extensions() -> tuple[str, ...]:
    """Extensions with a parser, without the dot, sorted."""
    return tuple(sorted(_BY_EXTENSION))


def resolve(file_name: str, head: bytes | None = None) -> Parser:
    """The parser for a file.

    Args:
        file_name: the user's name for it; the extension decides.
        head: the first bytes (`HEAD_BYTES` are enough). A signature of another format wins over the extension; a file
            of unknown extension that holds plain text is read as text. None: by the name alone.

    Raises:
        UnsupportedFormatError: no parser takes it; the message says what to convert it to.
    """
    module, name = _target(file_name, head).split(":")
    return cast("Parser", getattr(import_module(module), name)())


def check_supported(file_name: str, head: bytes | None = None) -> None:
    """Raise `UnsupportedFormatError` as `resolve` would, without importing the parser."""
    _target(file_name, head)


def parse_file(request: ParseRequest) -> ParsedDocument:
    """Parse one file with the parser that fits it.

    Raises:
        EmptyDocumentError: no bytes.
        ParseTimeoutError: LibreOffice took too long for a legacy file.
        UnsupportedFormatError, CorruptDocumentError, EncryptedDocumentError, DocumentTooLargeError: see `Parser`.
    """
    head = read_head(request.path)
    if not head:
        raise EmptyDocumentError("the file has no bytes: upload it again from its source")
    document = climb(resolve(request.file_name, head), request)
    if len(document.text) > request.limits.max_text_characters:
        raise DocumentTooLargeError(
            f"the text has {len(document.text):,} characters, the limit is {request.limits.max_text_characters:,}: "
            "split the file, or raise RAG_PARSE_MAX_TEXT_CHARACTERS"
        )
    return document


def read_head(path: Path) -> bytes:
    """The first bytes of a file, as `resolve` wants them."""
    with path.open("rb") as file:
        return file.read(HEAD_BYTES)


def _target(file_name: str, head: bytes | None) -> str:
    extension = PurePath(file_name.strip()).suffix.lower().removeprefix(".")
    named = _BY_EXTENSION.get(extension)
    found = _sniff(head) if head else None
    if found and _contradicts(named, found):
        return found
    if named:
        if head:
            _refuse_wrong_content(extension, named, head)
        return named
    if extension in _LEGACY and (head is None or head.startswith(_OLE_HEAD)) and libreoffice.is_installed():
        return _LEGACY_OFFICE
    if head and extension not in _ARCHIVES and extension not in _CONVERT and _is_plain_text(head):
        return _TEXT
    raise UnsupportedFormatError(_refusal(extension, head))


def _contradicts(named: str | None, found: str) -> bool:
    """Whether the signature wins: not for text kept in another text format, not for the parser that was named."""
    if named == found:
        return False
    return not (named in _TEXT_LIKE and found in _TEXT_LIKE)


def _sniff(head: bytes) -> str | None:
    """The parser whose format has this signature, None without one."""
    if head.startswith(b"PK\x03\x04"):
        return _sniff_archive(head)
    if head.startswith(_IMAGE_HEADS) or (head.startswith(b"RIFF") and head[8:12] == b"WEBP"):
        return _IMAGE
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text.startswith(b"%PDF-") or (b"%PDF-1." in head[:1024] and b"\0" in head):
        return _PDF
    if text.startswith(rb"{\rtf"):
        return _RTF
    beginning = text[:256].lower()
    if beginning.startswith((b"<!doctype html", b"<html")):
        return _HTML
    return None


def _sniff_archive(head: bytes) -> str | None:
    if head[30:].startswith(_EPUB_TYPE):
        return _EPUB
    if head[30:].startswith(_OPEN_DOCUMENT_TYPE):
        return _OPEN_DOCUMENT
    for folder, target in ((b"word/", _DOCX), (b"ppt/", _PPTX), (b"xl/", _XLSX)):
        if folder in head:
            return target
    return None


def _refuse_wrong_content(extension: str, named: str, head: bytes) -> None:
    """Refuse what no parser reads although the extension has one: a zip named .txt must not be indexed as text."""
    if named in _ARCHIVE_LIKE or named in {_PDF, _IMAGE, _RTF}:
        return
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06", *_ARCHIVE_HEADS)):
        raise UnsupportedFormatError(
            f"the file is named .{extension} but is an archive: unpack it and submit the files in it"
        )
    if head.startswith(_OLE_HEAD):
        raise UnsupportedFormatError(
            f"the file is named .{extension} but is a legacy or encrypted Office file: "
            "save it without a password as .docx, .xlsx or .pptx"
        )


def _refusal(extension: str, head: bytes | None) -> str:
    is_archive = extension in _ARCHIVES or (head or b"").startswith((b"PK\x03\x04", *_ARCHIVE_HEADS))
    if is_archive:
        return "archives are not read: unpack the file and submit the files in it"
    if extension in _CONVERT:
        install = ", or install LibreOffice where files are submitted and parsed" if extension in _LEGACY else ""
        return f".{extension} is not supported: convert the file to {_CONVERT[extension]}{install}"
    if (head or b"").startswith(_OLE_HEAD):
        return "legacy Office files are not supported: convert the file to .docx, .xlsx or .pptx"
    named = f"files with the extension .{extension}" if extension else "files without an extension"
    listed = sorted(extension for extension, target in _BY_EXTENSION.items() if target != _TEXT)
    return f"{named} are not supported; supported: {', '.join(listed)}, and plain text (txt, log, rst, source code)"


def _is_plain_text(head: bytes) -> bool:
    from rag_pipeline.parsing.encoding import is_plain_text

    return is_plain_text(head)
