"""Reads one page after the other: words, layout, pieces; keeps nothing of PDFium once a page is done."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import pypdfium2 as pdfium
import pypdfium2.raw as pdfium_c

from rag_pipeline.core.parsed_document import BlockType, BoundingBox, PageState
from rag_pipeline.parsing.ocr import OcrEngine
from rag_pipeline.parsing.parser import NO_TIME_FOR_OCR
from rag_pipeline.parsing.pdf.fields import Link, read_annotations
from rag_pipeline.parsing.pdf.geometry import Affine, Box, display_transform, frame_to_display, frame_transform
from rag_pipeline.parsing.pdf.layout import Region, arrange
from rag_pipeline.parsing.pdf.lines import Table, build_segments, table_segment
from rag_pipeline.parsing.pdf.objects import PageObjects, Rules, read_objects
from rag_pipeline.parsing.pdf.paragraphs import Piece, read_pieces
from rag_pipeline.parsing.pdf.pictures import PictureCollector
from rag_pipeline.parsing.pdf.ruled import find_ruled_tables
from rag_pipeline.parsing.pdf.scans import read_scan, why_ocr
from rag_pipeline.parsing.pdf.words import Word, drop_repeated, read_words

_CAPTION_DISTANCE = 30.0
"""Points between an image and its caption."""
_OCR_WINS = 0.5
"""OCR replaces a poor text layer unless it finds less than this share of its characters."""
UNSEEN = (
    "vertical text in a font that neither the file nor this machine has; with one installed (Debian: fonts-noto-cjk) "
    "it can be read"
)


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


class PageReader:
    """Reads the pages of one document in order."""

    def __init__(self, document: pdfium.PdfDocument, *, engine: OcrEngine, ocr_deadline: float, is_deep: bool) -> None:
        """Prepare for a document.

        Args:
            document: open, with `init_forms` called.
            engine: for pages without a usable text layer.
            ocr_deadline: `time.monotonic()` after which no page is read by OCR any more, so that the text of the
                others is not lost to the time limit of the file.
            is_deep: OCR at a higher resolution from the start.
        """
        self.pictures = PictureCollector()
        self._document = document
        self._engine = engine
        self._ocr_deadline = ocr_deadline
        self._is_deep = is_deep

    def read(self, number: int) -> PageContent:
        """Read page `number`, counted from 1; a page that cannot be loaded is FAILED with a reason."""
        label = _label(self._document, number)
        try:
            page = self._document[number - 1]
        except pdfium.PdfiumError:
            return PageContent(state=PageState.FAILED, label=label, reason="the page is damaged")
        try:
            width, height = page.get_size()
            content = PageContent(state=PageState.TEXT, width=round(width, 1), height=round(height, 1), label=label)
            self._read_loaded(page, number, content, _View(_to_display(page), width, height))
        finally:
            page.close()
        return content

    def _read_loaded(self, page: pdfium.PdfPage, number: int, content: PageContent, view: "_View") -> None:
        try:
            textpage = page.get_textpage()
        except pdfium.PdfiumError:
            content.state, content.reason = PageState.FAILED, "the page is damaged"
            return
        try:
            found = read_words(textpage.raw, to_display=view.to_display, width=view.width, height=view.height)
        finally:
            textpage.close()
        objects = read_objects(page)
        annotations = read_annotations(self._document, page, view.to_display)
        words = drop_repeated(found.words)
        reason = why_ocr(words, objects, view.width, view.height, is_deep=self._is_deep)
        if reason is not None:
            words = self._read_scan(page, objects, words, content, reason)
        elif found.unmapped:
            content.warnings.append(f"page {number} has {found.unmapped} glyphs without a character (shown as U+FFFD)")
        if objects.unseen:
            content.state = content.state if words else PageState.FAILED
            content.reason = content.reason or UNSEEN
        content.pieces = list(_lay_out(words + annotations.fields, objects.rules, view))
        content.pieces.extend(
            Piece(text=note.text, box=frame_to_display(note.box, 0, view.width, view.height), type=BlockType.ANNOTATION)
            for note in annotations.notes
        )
        for link in annotations.links:
            _attach(link, content.pieces)
        if not content.pieces and content.state is not PageState.FAILED:
            content.state = PageState.BLANK
            content.reason = content.reason or (
                "only pictures too small for text are on the page" if objects.images else "the page is empty"
            )
        elif content.state is PageState.BLANK:
            content.state = PageState.TEXT
        for image in objects.images:
            box = frame_to_display(view.to_display.box(*image.box), 0, view.width, view.height)
            self.pictures.add(self._document, page, image, number, box, caption=_caption(box, content.pieces))

    def _read_scan(
        self, page: pdfium.PdfPage, objects: PageObjects, words: list[Word], content: PageContent, reason: str
    ) -> list[Word]:
        """The words that OCR finds, or those of the text layer where they are more; sets state and reason."""
        content.state = PageState.TEXT if words else PageState.FAILED
        if time.monotonic() > self._ocr_deadline:
            content.reason = f"{reason}, and {NO_TIME_FOR_OCR}"
            return words
        scan = read_scan(page, objects, self._engine, is_deep=self._is_deep)
        if scan is None:
            content.reason = f"{reason}, and its images are too large for OCR"
            return words
        if sum(len(word.text) for word in scan.words) <= sum(len(word.text) for word in words) * _OCR_WINS:
            content.state = PageState.TEXT if words else PageState.BLANK
            content.reason = f"{reason}, and OCR found no text"
            return words
        content.state, content.reason = PageState.OCR, reason
        if scan.turned:
            content.reason += f"; turned by {scan.turned} degrees"
        return scan.words


class _View(NamedTuple):
    """How a page is shown."""

    to_display: Affine
    width: float
    height: float


def _lay_out(words: list[Word], rules: Rules, view: _View) -> Iterator[Piece]:
    """Lay out the words, those of the main direction first, slanted ones (watermarks) last."""
    by_direction: dict[tuple[bool, int], list[Word]] = {}
    for direction in {word.direction for word in words}:
        group = [word for word in words if word.direction == direction]
        by_direction[direction == -1, max(direction, 0)] = group
    groups = sorted(by_direction.items(), key=lambda item: (item[0][0], -len(item[1]), item[0][1]))
    for position, ((slanted, direction), group) in enumerate(groups):
        if slanted:
            regions: list[Region] = [[[segment] for segment in build_segments(group)]]
        else:
            tables: list[Table] = []
            if position == 0 and rules.boxes:
                frame = view.to_display.then(frame_transform(direction, view.width, view.height))
                tables = find_ruled_tables(*rules.transformed(frame), group)
            inside = {id(word) for table in tables for word in table.words}
            segments = build_segments([word for word in group if id(word) not in inside] if inside else group)
            regions = arrange([*segments, *map(table_segment, tables)])
        yield from read_pieces(regions, direction, view.width, view.height)


def _attach(link: Link, pieces: list[Piece]) -> None:
    """Keep the address with the piece that the link covers most."""
    covered = [(_overlap(link.box, piece.box), index) for index, piece in enumerate(pieces)]
    most, index = max(covered, default=(0.0, 0))
    if most > 0 and link.address not in pieces[index].hrefs:
        pieces[index].hrefs.append(link.address)


def _overlap(link: Box, box: BoundingBox) -> float:
    wide = min(link.right, box.right) - max(link.left, box.left)
    high = min(link.bottom, box.bottom) - max(link.top, box.top)
    return wide * high if wide > 0 and high > 0 else 0.0


def _caption(box: BoundingBox, pieces: list[Piece]) -> str:
    """The caption right below an image, or right above it."""
    for piece in pieces:
        if piece.type is not BlockType.CAPTION or piece.box.right < box.left or piece.box.left > box.right:
            continue
        if (
            -5 <= piece.box.top - box.bottom <= _CAPTION_DISTANCE
            or -5 <= box.top - piece.box.bottom <= _CAPTION_DISTANCE
        ):
            return " ".join(piece.text.split())
    return ""


def _to_display(page: pdfium.PdfPage) -> Affine:
    box = pdfium_c.FS_RECTF()
    pdfium_c.FPDF_GetPageBoundingBox(page.raw, box)
    return display_transform(page.get_rotation(), (box.left, box.bottom, box.right, box.top))


def _label(document: pdfium.PdfDocument, number: int) -> str | None:
    label = document.get_page_label(number - 1)
    return label if label and label != str(number) else None
