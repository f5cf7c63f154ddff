"""The PDF parser: opens the file, reads page after page, and puts the document together."""

import time
from typing import ClassVar

import pypdfium2 as pdfium

from rag_pipeline.core.parsed_document import DocumentBuilder, PageState, ParsedDocument
from rag_pipeline.core.ports import ParseRequest
from rag_pipeline.errors import DocumentTooLargeError
from rag_pipeline.parsing.ocr import process_engine
from rag_pipeline.parsing.parser import Parser
from rag_pipeline.parsing.pdf.assembly import assemble
from rag_pipeline.parsing.pdf.headings import normalise_title
from rag_pipeline.parsing.pdf.ledger import ledger_warnings
from rag_pipeline.parsing.pdf.opening import open_document
from rag_pipeline.parsing.pdf.pages import PageReader

_OCR_TIME_SHARE = 0.7
"""Share of a file's time limit after which its remaining scanned pages are given up."""
_MAX_OUTLINE = 2000
_METADATA = {
    "Title": "title",
    "Author": "author",
    "Subject": "subject",
    "Keywords": "keywords",
    "Creator": "creator",
    "Producer": "producer",
    "CreationDate": "created",
    "ModDate": "modified",
}


class PdfParser(Parser):
    """Text in reading order with headings, lists, tables, form fields, notes, links and images of PDF files."""

    name: ClassVar[str] = "pdf"
    version: ClassVar[str] = "2"

    def __init__(self, *, is_deep: bool = False) -> None:
        """Prepare a parser.

        Args:
            is_deep: OCR at a higher resolution, for files in which nothing was found otherwise.
        """
        self._is_deep = is_deep

    def parse(self, request: ParseRequest) -> ParsedDocument:
        """Parse the file.

        Raises:
            EmptyDocumentError: no bytes.
            EncryptedDocumentError: a password is missing or wrong.
            CorruptDocumentError: not a PDF, or damaged beyond repair.
            DocumentTooLargeError: more pages or more text than the limits allow.
        """
        deadline = time.monotonic() + _OCR_TIME_SHARE * request.limits.seconds
        builder = DocumentBuilder(parser=self.name, parser_version=self.version)
        with open_document(request.path, request.password) as (document, is_repaired):
            count = len(document)
            if count > request.limits.max_pages:
                raise DocumentTooLargeError(
                    f"the PDF has {count} pages, the limit is {request.limits.max_pages}: split it, or raise the limit"
                )
            if is_repaired:
                builder.warn("the PDF is damaged and was repaired: parts of it may be missing")
            document.init_forms()
            builder.metadata.update(_metadata(document))
            outline, per_page = _outline(document)
            if outline:
                builder.metadata["outline"] = outline
            engine = process_engine(request.limits.threads)
            reader = PageReader(document, engine=engine, ocr_deadline=deadline, is_deep=self._is_deep)
            pages = [reader.read(number) for number in range(1, count + 1)]
        assemble(builder, pages, per_page)
        builder.images.extend(reader.pictures.images)
        builder.metadata["ladder_step"] = "ocr" if any(page.state is PageState.OCR for page in pages) else "text"
        if not builder.block_count:
            builder.warn("no text was found on any page")
        for warning in ledger_warnings(pages):
            builder.warn(warning)
        if reader.pictures.left_out:
            builder.warn(f"{reader.pictures.left_out} images were left out: too many, too large or not readable")
        return builder.build()


def _metadata(document: pdfium.PdfDocument) -> dict[str, object]:
    found = {name: document.get_metadata_value(key).strip() for key, name in _METADATA.items()}
    return {name: value for name, value in found.items() if value}


def _outline(document: pdfium.PdfDocument) -> tuple[list[dict[str, object]], dict[int, dict[str, int]]]:
    """The outline as a list, and its titles with their depth (from 1) per physical page."""
    entries: list[dict[str, object]] = []
    per_page: dict[int, dict[str, int]] = {}
    for bookmark in document.get_toc(max_depth=8):
        title = " ".join(bookmark.get_title().split())
        destination = bookmark.get_dest()
        index = destination.get_index() if destination is not None else None
        if title:
            page = index + 1 if index is not None and 0 <= index < len(document) else None
            entries.append({"title": title, "level": bookmark.level + 1, "page": page})
            if page is not None:
                per_page.setdefault(page, {})[normalise_title(title)] = bookmark.level + 1
        if len(entries) >= _MAX_OUTLINE:
            break
    return entries, per_page
