"""Running headers and footers: what stands at the same place at the edge of many pages."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rag_pipeline.core.parsed_document import BlockType
from rag_pipeline.parsing.pdf.pages import PageContent
from rag_pipeline.parsing.pdf.paragraphs import Piece

_NEVER_RUNNING = frozenset({BlockType.FORM_FIELD, BlockType.ANNOTATION})
_EDGE = 0.12
"""Share of the page height at the top and at the bottom where running text stands."""
_MARGIN = 0.08
"""Share of the page width at the sides, for turned text in the margin."""
_MIN_PAGES = 3
_MIN_COUNTED = 2
"""Pages on which a line at the foot must carry the number of its page to be a footer, in documents of two pages too."""
_NUMBERED_SHARE = 0.2
"""Text that differs from page to page in its digits must stand on this share of the pages."""
_MAX_LENGTH = 300
_MAX_LAST = 80
"""Longest text that is taken for a footer though it stands in the middle of a short page."""
_DIGITS = re.compile(r"\d+")
_PAGE_NUMBER = re.compile(
    r"[-–—\s|]*(?:page|seite|p\.|第)?\s*(?:[A-Z]{1,2}-)?(?:\d{1,4}|[ivxlcdm]{1,7})"
    r"(?:\s*(?:/|of|von|sur|de)\s*\d{1,4})?\s*[页頁]?[-–—\s|]*",
    re.IGNORECASE,
)


class _Candidate(NamedTuple):
    piece: Piece
    kind: BlockType
    key: tuple[str, int]
    """Text with digits made equal, and height on the page in percent (-1: at the end of the page's text)."""
    is_counter: bool
    """A line at the foot of the page that begins or ends with the number of the page."""


def find_running(pages: Sequence[PageContent]) -> dict[int, BlockType]:
    """Types of the pieces that are running headers and footers, by `id` of the piece."""
    if len(pages) < 2:
        return {}
    candidates = [candidate for number, page in enumerate(pages, start=1) for candidate in _candidates(page, number)]
    places = Counter(candidate.key for candidate in candidates)
    counters = Counter(candidate.key for candidate in candidates if candidate.is_counter)
    same = Counter(candidate.piece.text for candidate in candidates)
    found: dict[int, BlockType] = {}
    for piece, kind, (text, level), is_counter in candidates:
        near = (level,) if level < 0 else (level - 1, level, level + 1)
        # Titles such as "Exhibit 31.1" and "Exhibit 31.2" differ in digits too, but stand on few pages.
        needed = _MIN_PAGES if same[piece.text] >= _MIN_PAGES else max(_MIN_PAGES, _NUMBERED_SHARE * len(pages))
        counting = is_counter and sum(counters[text, place] for place in near) >= _MIN_COUNTED
        if counting or sum(places[text, place] for place in near) >= needed or _is_page_number(piece):
            found.setdefault(id(piece), kind)
    return found


def _candidates(page: PageContent, number: int) -> Iterator[_Candidate]:
    if not page.height or not page.width:
        return
    pieces = [
        piece
        for piece in page.pieces
        if not piece.rows and len(piece.text) <= _MAX_LENGTH and piece.type not in _NEVER_RUNNING
    ]
    lowest = max((piece.box.bottom for piece in page.pieces), default=0.0)
    for piece in pieces:
        box = piece.box
        text = _DIGITS.sub("0", piece.text.casefold())
        level = round(50 * (box.top + box.bottom) / page.height)
        if box.bottom <= _EDGE * page.height:
            yield _Candidate(piece, BlockType.PAGE_HEADER, (text, level), False)
        elif (
            box.top >= (1 - _EDGE) * page.height
            or box.right <= _MARGIN * page.width
            or box.left >= (1 - _MARGIN) * page.width
        ):
            yield _Candidate(piece, BlockType.PAGE_FOOTER, (text, level), _counts(piece, page, number))
        if box.bottom >= lowest - 1 and len(text) <= _MAX_LAST and piece.lines == 1:
            yield _Candidate(piece, BlockType.PAGE_FOOTER, (text, -1), False)


def _counts(piece: Piece, page: PageContent, number: int) -> bool:
    words = piece.text.split()
    return piece.lines == 1 and not {words[0], words[-1]}.isdisjoint({str(number), page.label})


def _is_page_number(piece: Piece) -> bool:
    return len(piece.text) <= 24 and _PAGE_NUMBER.fullmatch(piece.text) is not None
