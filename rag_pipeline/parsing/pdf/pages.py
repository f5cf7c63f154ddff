"""Reads one page after the other: words, layout, pieces; keeps nothing of PDFium once a page is done."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pypdfium2 as pdfium
import pypdfium2.raw as pdfium_c

from rag_pipeline.core.parsed_document import PageState
from rag_pipeline.parsing.pdf.geometry import Affine, display_transform
from rag_pipeline.parsing.pdf.layout import arrange
from rag_pipeline.parsing.pdf.lines import build_segments
from rag_pipeline.parsing.pdf.paragraphs import Piece, read_pieces
from rag_pipeline.parsing.pdf.words import Word, drop_repeated, read_words


@dataclass(slots=True, kw_only=True)
class PageContent:
    """What one page holds."""

    state: PageState
    width: float | None = None
    height: float | None = None
    label: str | None = None
    reason: str | None = None
    pieces: list[Piece] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def read_page(document: pdfium.PdfDocument, number: int) -> PageContent:
    """Read page `number`, counted from 1; a page that cannot be loaded is FAILED with a reason."""
    label = _label(document, number)
    try:
        page = document[number - 1]
    except pdfium.PdfiumError:
        return PageContent(
            state=PageState.FAILED,
            label=label,
            reason="the page is damaged and could not be loaded",
            warnings=[f"page {number} is damaged and could not be read"],
        )
    try:
        return _read_loaded(page, number, label)
    finally:
        page.close()


def _read_loaded(page: pdfium.PdfPage, number: int, label: str | None) -> PageContent:
    width, height = page.get_size()
    content = PageContent(state=PageState.TEXT, width=round(width, 1), height=round(height, 1), label=label)
    try:
        textpage = page.get_textpage()
    except pdfium.PdfiumError:
        content.state = PageState.FAILED
        content.reason = "the text of the page could not be read"
        content.warnings.append(f"page {number} is damaged: its text could not be read")
        return content
    try:
        found = read_words(textpage.raw, to_display=_to_display(page), width=width, height=height)
    finally:
        textpage.close()
    if found.unmapped:
        content.warnings.append(f"page {number} has {found.unmapped} glyphs without a character (shown as U+FFFD)")
    content.pieces = list(_read_words(drop_repeated(found.words), width, height))
    if not content.pieces:
        content.state = PageState.BLANK
        if pdfium_c.FPDFPage_CountObjects(page.raw):
            content.reason = "no text layer"
            content.warnings.append(f"page {number} has no text layer")
        else:
            content.reason = "the page is empty"
    return content


def _read_words(words: list[Word], width: float, height: float) -> Iterator[Piece]:
    """Lay out the words, those of the main direction first."""
    by_direction: dict[tuple[int, bool], list[Word]] = {}
    for word in words:
        by_direction.setdefault((max(word.direction, 0), word.direction == -1), []).append(word)
    for (direction, slanted), group in sorted(by_direction.items(), key=lambda item: (item[0][1], -len(item[1]))):
        segments = build_segments(group)
        regions = [[[segment] for segment in segments]] if slanted else arrange(segments)
        yield from read_pieces(regions, direction, width, height)


def _to_display(page: pdfium.PdfPage) -> Affine:
    box = pdfium_c.FS_RECTF()
    pdfium_c.FPDF_GetPageBoundingBox(page.raw, box)
    return display_transform(page.get_rotation(), (box.left, box.bottom, box.right, box.top))


def _label(document: pdfium.PdfDocument, number: int) -> str | None:
    label = document.get_page_label(number - 1)
    return label if label and label != str(number) else None
