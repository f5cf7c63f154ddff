"""Which pieces are headings, and of which level: by size and weight against the body text, and by the outline."""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from rag_pipeline.core.parsed_document import BlockType
from rag_pipeline.parsing.pdf.characters import visible_length
from rag_pipeline.parsing.pdf.pages import PageContent
from rag_pipeline.parsing.pdf.paragraphs import Piece

_LARGER = 1.12
"""A heading is at least this much larger than body text, or bold."""
_MAX_LENGTH = 200
_MAX_LINES = 4
_MAX_LEVEL = 6
_BOLD_MAX_LENGTH = 120
_HAS_LETTERS = re.compile(r"[^\W\d_]{2}|[\u2e80-\u9fff]")
_NO_HEADING_END = (",", ";", "。", "，", "；", "、")

Look = tuple[float, bool]
"""Size in points and weight: what a reader tells headings apart by."""


def find_headings(
    pages: Sequence[PageContent], running: Collection[int], outline: Mapping[int, Mapping[str, int]]
) -> dict[int, int]:
    """Heading levels (1 to 6) by `id` of the piece.

    Args:
        pages: of the whole document.
        running: ids of pieces that are running headers and footers.
        outline: per page (from 1) the titles of the outline, normalised by `normalise_title`, with their depth.
    """
    pieces = [piece for page in pages for piece in page.pieces if id(piece) not in running]
    body = _body_size(pieces)
    candidates = [piece for piece in pieces if _may_be_heading(piece, body)]
    levels = _levels([_look(piece) for piece in candidates])
    found = {id(piece): levels[_look(piece)] for piece in candidates}
    for number, titles in outline.items():
        for piece in pages[number - 1].pieces:
            depth = titles.get(normalise_title(piece.text)) if piece.lines <= _MAX_LINES else None
            if depth is not None and not piece.rows and id(piece) not in running:
                found[id(piece)] = min(depth, _MAX_LEVEL)
    return found


def normalise_title(text: str) -> str:
    """Letters and digits only, small, to compare outline titles with lines."""
    return re.sub(r"[\W_]+", "", text).casefold()


def _body_size(pieces: Sequence[Piece]) -> float:
    """The size most characters are set in."""
    sizes: Counter[float] = Counter()
    for piece in pieces:
        if not piece.rows:
            sizes[piece.size] += len(piece.text)
    return sizes.most_common(1)[0][0] if sizes else 10.0


def _look(piece: Piece) -> Look:
    return round(piece.size * 2) / 2, piece.bold


def _may_be_heading(piece: Piece, body: float) -> bool:
    if piece.rows or piece.type is BlockType.FORM_FIELD or piece.invisible or piece.lines > _MAX_LINES:
        return False
    text = piece.text.strip()
    if len(text) > _MAX_LENGTH or text.endswith(_NO_HEADING_END) or not _HAS_LETTERS.search(text):
        return False
    if piece.size >= _LARGER * body:
        return not (piece.type is BlockType.LIST_ITEM and not text[0].isalnum())
    if not piece.bold or piece.size < 0.95 * body:
        return False
    return (visible_length(text) <= _BOLD_MAX_LENGTH and not text.endswith((".", ":"))) or _is_numbered(text)


def _is_numbered(text: str) -> bool:
    return (
        re.match(r"(?:\d+(?:\.\d+)*\.?|[A-Z]\.|[IVX]+\.|(?:Item|Part|Section|Chapter|Article)\b)\s", text) is not None
    )


def _levels(looks: Sequence[Look]) -> dict[Look, int]:
    """Rank the looks: larger first, bold before plain."""
    order = sorted(set(looks), key=lambda look: (-look[0], not look[1]))
    return {look: min(rank, _MAX_LEVEL) for rank, look in enumerate(order, start=1)}
