"""What is tried, step by step, with a file in which its parser finds no text.

text     the parser alone
ocr      the parser with OCR, page by page (PDF files and images do that themselves)
pictures OCR of the pictures in an office file, a book, a mail or a page
deep     PDF files: OCR at a higher resolution; office files: as PDF by LibreOffice where it is installed
none     nothing helped: the document has no content

The step is in the metadata as `ladder_step`; a warning says so where it is one of the last three.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory

from rag_pipeline.core.parsed_document import BlockType, DocumentBuilder, PageState, ParsedDocument, ParsedImage
from rag_pipeline.core.ports import ParseRequest
from rag_pipeline.errors import InvalidDocumentError, ParseTimeoutError
from rag_pipeline.parsing.parser import NO_TIME_FOR_OCR, Parser

_SILENT = frozenset({BlockType.PAGE_HEADER, BlockType.PAGE_FOOTER, BlockType.IMAGE})
"""Blocks that no chunk is made of."""
_OFFICE = frozenset({"docx", "pptx", "xlsx", "opendocument", "rtf", "legacy_office"})
_TIME_SHARE = 0.6
"""Share of the time limit after which no further step, page or picture is begun."""


def climb(parser: Parser, request: ParseRequest) -> ParsedDocument:
    """Parse a file, with ever more effort as long as nothing is found.

    Raises:
        ParseTimeoutError: nothing was found in the time that there was, and not everything was tried.
        InvalidDocumentError: as `Parser.parse`.
    """
    started = time.monotonic()
    deadline = started + _TIME_SHARE * request.limits.seconds
    document = parser.parse(request)
    if _says_something(document):
        return _at_step(document, str(document.metadata.get("ladder_step", "text")))
    steps: tuple[tuple[str, str, Callable[[], ParsedDocument | None]], ...] = (
        ("pictures", "by OCR of its pictures", lambda: _read_pictures(document, request, deadline)),
        ("deep", "by a deep parse", lambda: _parse_deep(document, _with_time_left(request, started))),
    )
    tried = []
    is_cut_short = any(page.reason is not None and page.reason.endswith(NO_TIME_FOR_OCR) for page in document.pages)
    for step, how, read in steps:
        if time.monotonic() >= deadline:
            is_cut_short = True
            break
        found = read()
        if found is None:
            continue
        tried.append(how)
        if _says_something(found):
            found = replace(
                found,
                parser=document.parser,
                parser_version=document.parser_version,
                images=document.images or found.images,
                metadata={**found.metadata, **document.metadata},
            )
            return _at_step(found, step, f"the text of the file was found only {how}")
    if is_cut_short:
        raise ParseTimeoutError(
            f"no text was found in {PurePath(request.file_name).name} within the time limit of "
            f"{request.limits.seconds:g} s, and not all of it was looked at: set RAG_PARSE_TIMEOUT_SECONDS higher"
        )
    also = f", also {' and '.join(tried)}" if tried else ""
    return _at_step(document, "none", f"no text was found in the file{also}: it is kept without content")


def _says_something(document: ParsedDocument) -> bool:
    return document.has_content and any(block.type not in _SILENT for block in document.blocks)


def _with_time_left(request: ParseRequest, started: float) -> ParseRequest:
    seconds = request.limits.seconds - (time.monotonic() - started)
    return replace(request, limits=replace(request.limits, seconds=seconds))


def _at_step(document: ParsedDocument, step: str, warning: str | None = None) -> ParsedDocument:
    warnings = (*document.warnings, warning) if warning else document.warnings
    return replace(document, metadata={**document.metadata, "ladder_step": step}, warnings=warnings)


def _read_pictures(document: ParsedDocument, request: ParseRequest, deadline: float) -> ParsedDocument | None:
    """The text of the pictures, each at its place in the page ledger; None without pictures."""
    if not document.images or document.parser in {"pdf", "image"}:
        return None
    builder = DocumentBuilder(parser=document.parser, parser_version=document.parser_version)
    for image in document.images if not document.pages else ():
        _add_picture(builder, image, request, deadline)
    for page in document.pages:
        start = builder.length
        for image in document.images:
            if image.page == page.number:
                _add_picture(builder, image, request, deadline)
        is_read = builder.length > start
        builder.add_page(
            state=PageState.OCR if is_read else page.state,
            start=start,
            label=page.label,
            reason="only pictures" if is_read else page.reason,
            width=page.width,
            height=page.height,
        )
    return builder.build()


def _add_picture(builder: DocumentBuilder, image: ParsedImage, request: ParseRequest, deadline: float) -> None:
    from rag_pipeline.parsing.image import read_picture
    from rag_pipeline.parsing.pdf.assembly import resolve_hyphens
    from rag_pipeline.parsing.tables import markdown_table

    if time.monotonic() > deadline:
        builder.warn("the time limit left no time for all pictures of the file")
        return
    pieces = read_picture(image.content, request)
    if pieces is None:
        builder.warn(f"picture {image.position + 1} is damaged or too large for OCR")
    for piece in pieces or ():
        builder.add_block(
            BlockType.TABLE if piece.rows else BlockType.PARAGRAPH,
            markdown_table(piece.rows) if piece.rows else resolve_hyphens(piece.text, frozenset()),
            page=image.page,
            bbox=image.bbox,
            rows=piece.rows,
            metadata={"picture": str(image.position)},
        )


def _parse_deep(document: ParsedDocument, request: ParseRequest) -> ParsedDocument | None:
    """What a deep parse finds; None where there is none for the format, or where it fails on this file."""
    from rag_pipeline.parsing import libreoffice
    from rag_pipeline.parsing.pdf.parser import PdfParser

    if document.parser == "pdf":
        has_pictures = any(
            page.state is not PageState.BLANK or page.reason != "the page is empty" for page in document.pages
        )
        return PdfParser(is_deep=True).parse(request) if has_pictures else None
    if document.parser not in _OFFICE or not libreoffice.is_installed():
        return None
    with TemporaryDirectory(prefix="rag-pipeline-convert-") as scratch:
        source = Path(scratch) / f"file{PurePath(request.file_name).suffix.lower()}"
        source.write_bytes(request.path.read_bytes())
        seconds = _TIME_SHARE * request.limits.seconds
        started = time.monotonic()
        try:
            converted = libreoffice.convert(source, extension="pdf", folder=Path(scratch), seconds=seconds)
            shown = replace(_with_time_left(request, started), path=converted, file_name="file.pdf")
            return PdfParser().parse(shown)
        except InvalidDocumentError:
            # The file itself is sound, only without text: that LibreOffice cannot show it is no error of the file.
            return None
