"""Reads one page after the other: words, layout, pieces; keeps nothing of PDFium once a page is done."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pypdfium2 as pdfium
import pypdfium2.raw as pdfium_c

from rag_pipeline.core.parsed_document import BlockType, PageState
from rag_pipeline.parsing.pdf.fields import Link, read_annotations
from rag_pipeline.parsing.pdf.geometry import Affine, display_transform, frame_to_display, frame_transform
from rag_pipeline.parsing.pdf.layout import Region, arrange
from rag_pipeline.parsing.pdf.lines import Table, build_segments, table_segment
from rag_pipeline.parsing.pdf.paragraphs import Piece, read_pieces
from rag_pipeline.parsing.pdf.ruled import find_ruled_tables
from rag_pipeline.parsing.pdf.rules import Rules, read_rules
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
        return _read_loaded(document, page, number, label)
    finally:
        page.close()


def _read_loaded(document: pdfium.PdfDocument, page: pdfium.PdfPage, number: int, label: str | None) -> PageContent:
    width, height = page.get_size()
    content = PageContent(state=PageState.TEXT, width=round(width, 1), height=round(height, 1), label=label)
    to_display = _to_display(page)
    annotations = read_annotations(document, page, to_display)
    try:
        textpage = page.get_textpage()
    except pdfium.PdfiumError:
        content.state = PageState.FAILED
        content.reason = "the text of the page could not be read"
        content.warnings.append(f"page {number} is damaged: its text could not be read")
        return content
    try:
        found = read_words(textpage.raw, to_display=to_display, width=width, height=height)
    finally:
        textpage.close()
    if found.unmapped:
        content.warnings.append(f"page {number} has {found.unmapped} glyphs without a character (shown as U+FFFD)")
    words = drop_repeated(found.words) + annotations.fields
    content.pieces = list(_lay_out(words, read_rules(page), to_display, width, height))
    content.pieces.extend(
        Piece(text=note.text, box=frame_to_display(note.box, 0, width, height), type=BlockType.ANNOTATION)
        for note in annotations.notes
    )
    for link in annotations.links:
        _attach(link, content.pieces)
    if not content.pieces:
        content.state = PageState.BLANK
        if pdfium_c.FPDFPage_CountObjects(page.raw):
            content.reason = "no text layer"
            content.warnings.append(f"page {number} has no text layer")
        else:
            content.reason = "the page is empty"
    return content


def _lay_out(words: list[Word], rules: Rules, to_display: Affine, width: float, height: float) -> Iterator[Piece]:
    """Lay out the words, those of the main direction first, slanted ones (watermarks) last."""
    by_direction: dict[tuple[bool, int], list[Word]] = {}
    for word in words:
        slanted = word.direction == -1
        by_direction.setdefault((slanted, 0 if slanted else word.direction), []).append(word)
    groups = sorted(by_direction.items(), key=lambda item: (item[0][0], -len(item[1])))
    for position, ((slanted, direction), group) in enumerate(groups):
        if slanted:
            regions: list[Region] = [[[segment] for segment in build_segments(group)]]
        else:
            tables: list[Table] = []
            if position == 0 and rules.boxes:
                frame = to_display.then(frame_transform(direction, width, height))
                tables = find_ruled_tables(*rules.transformed(frame), group)
            inside = {id(word) for table in tables for word in table.words}
            segments = build_segments(word for word in group if id(word) not in inside)
            regions = arrange([*segments, *map(table_segment, tables)])
        yield from read_pieces(regions, direction, width, height)


def _attach(link: Link, pieces: list[Piece]) -> None:
    x, y = (link.box.left + link.box.right) / 2, (link.box.top + link.box.bottom) / 2
    for piece in pieces:
        box = piece.box
        if box.left <= x <= box.right and box.top <= y <= box.bottom:
            if link.address not in piece.hrefs:
                piece.hrefs.append(link.address)
            return


def _to_display(page: pdfium.PdfPage) -> Affine:
    box = pdfium_c.FS_RECTF()
    pdfium_c.FPDF_GetPageBoundingBox(page.raw, box)
    return display_transform(page.get_rotation(), (box.left, box.bottom, box.right, box.top))


def _label(document: pdfium.PdfDocument, number: int) -> str | None:
    label = document.get_page_label(number - 1)
    return label if label and label != str(number) else None
