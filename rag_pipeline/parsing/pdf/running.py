"""Running headers and footers: what stands at the same place at the edge of many pages."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from rag_pipeline.core.parsed_document import BlockType
from rag_pipeline.parsing.pdf.pages import PageContent
from rag_pipeline.parsing.pdf.paragraphs import Piece

_EDGE = 0.12
"""Share of the page height at the top and at the bottom where running text stands."""
_MIN_PAGES = 3
_MAX_LENGTH = 300
_DIGITS = re.compile(r"\d+")
_PAGE_NUMBER = re.compile(
    r"[-–—\s|]*(?:page|seite|p\.|第)?\s*(?:[A-Z]{1,2}-)?(?:\d{1,4}|[ivxlcdm]{1,7})"
    r"(?:\s*(?:/|of|von|sur|de)\s*\d{1,4})?\s*[页頁]?[-–—\s|]*",
    re.IGNORECASE,
)


def find_running(pages: Sequence[PageContent]) -> dict[int, BlockType]:
    """Types of the pieces that are running headers and footers, by `id` of the piece."""
    places: Counter[tuple[str, int]] = Counter()
    for page in pages:
        places.update({_place(piece, page) for piece, _ in _edge_pieces(page)})
    numbers = _page_numbers(pages)
    found: dict[int, BlockType] = {}
    for page in pages:
        for piece, kind in _edge_pieces(page):
            text, level = _place(piece, page)
            repeated = sum(places[text, level + shift] for shift in (-1, 0, 1))
            if repeated >= _MIN_PAGES or id(piece) in numbers:
                found[id(piece)] = kind
    return found


def _edge_pieces(page: PageContent) -> Iterator[tuple[Piece, BlockType]]:
    if not page.height:
        return
    for piece in page.pieces:
        if piece.rows or len(piece.text) > _MAX_LENGTH or piece.type is BlockType.FORM_FIELD:
            continue
        if piece.box.bottom <= _EDGE * page.height:
            yield piece, BlockType.PAGE_HEADER
        elif piece.box.top >= (1 - _EDGE) * page.height:
            yield piece, BlockType.PAGE_FOOTER


def _place(piece: Piece, page: PageContent) -> tuple[str, int]:
    middle = (piece.box.top + piece.box.bottom) / 2
    return _DIGITS.sub("0", piece.text.casefold()), round(100 * middle / (page.height or 1))


def _page_numbers(pages: Sequence[PageContent]) -> set[int]:
    """Lone page numbers in documents of two pages and more."""
    if len(pages) < 2:
        return set()
    return {
        id(piece)
        for page in pages
        for piece, _ in _edge_pieces(page)
        if len(piece.text) <= 24 and _PAGE_NUMBER.fullmatch(piece.text)
    }
