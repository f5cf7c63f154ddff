"""Quotations in an answer, and whether a text really holds them. Pure, no I/O."""

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import regex

from rag_pipeline.core.parsed_document import BoundingBox, ParsedDocument

SHORTEST_QUOTE = 12
"""Characters, a Chinese one counts three: shorter quotations are names and terms, not evidence."""
LONGEST_QUOTE = 1_000

_QUOTED = regex.compile(
    r"\"([^\"\n]+)\"|“([^”\n]+)”|„([^“”\n]+)[“”]|«([^»\n]+)»|「([^」\n]+)」|『([^』\n]+)』|(?m:^>[ \t]*(.+)$)"
)
_MARKER = regex.compile(r"\[source (\d+)\]\(citation://\d+\)")
_ELLIPSIS = regex.compile(r"\s*(?:\[?\.{3,}\]?|\[?…+\]?)\s*")
_DROPPED = regex.compile(r"[\s*_`|\\\p{Cf}]+")
_DASHES = regex.compile(r"\p{Pd}+")
_QUOTES = regex.compile(r"[\"'’‘“”„«»「」『』`]+")
_WIDE = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """A quotation, checked against the source it is cited from."""

    text: str
    number: int
    """Of the source."""
    is_verified: bool
    """Whether the source's text holds it, as it was sent and on the cited pages."""
    page: int | None = None
    """Where it begins."""
    bbox: BoundingBox | None = None
    """Of the block that holds it."""


def quotations(answer: str) -> Iterator[tuple[str, int | None]]:
    """Quoted spans of an answer with the number of the citation that follows in the same paragraph, if one does."""
    for found in _QUOTED.finditer(answer):
        text = _MARKER.sub("", next(group for group in found.groups() if group is not None)).strip()
        if len(text) + 2 * len(_WIDE.findall(text)) < SHORTEST_QUOTE or len(text) > LONGEST_QUOTE:
            continue
        paragraph_end = answer.find("\n\n", found.end())
        marker = _MARKER.search(answer, found.start(), len(answer) if paragraph_end < 0 else paragraph_end)
        yield text, None if marker is None else int(marker[1])


def holds(text: str, quote: str) -> bool:
    """Whether a text holds a quotation; white space, case, width, dashes, emphasis and what `...` leaves out aside."""
    return _find(_normal(text), quote) is not None


def locate(
    document: ParsedDocument, quote: str, *, first: int | None, last: int | None
) -> tuple[bool, int | None, BoundingBox | None]:
    """Whether the blocks on the pages `first` to `last` (None: anywhere) hold a quotation, and where it begins.

    Returns:
        Whether it is held, its page and the box of its block (None where the format has none).
    """
    blocks = [
        block
        for block in document.blocks
        if first is None
        or block.page is None
        or (block.page <= (last or first) and (block.page_end or block.page) >= first)
    ]
    starts: list[int] = []
    pieces: list[str] = []
    length = 0
    for block in blocks:
        starts.append(length)
        pieces.append(_normal(document.block_text(block)))
        length += len(pieces[-1])
    position = _find("".join(pieces), quote)
    if position is None:
        return False, None, None
    block = blocks[max(place for place, start in enumerate(starts) if start <= position)]
    return True, block.page, block.bbox


def _find(normal_text: str, quote: str) -> int | None:
    """Where the first part of the quotation begins, if all its parts follow one another in the text."""
    begin: int | None = None
    position = 0
    for part in _parts(quote):
        found = normal_text.find(part, position)
        if found < 0:
            return None
        begin = found if begin is None else begin
        position = found + len(part)
    return begin


def _parts(quote: str) -> Sequence[str]:
    return [normal for part in _ELLIPSIS.split(quote) if (normal := _normal(part).rstrip(".,;:!?。，；：！？"))]


def _normal(text: str) -> str:
    folded = unicodedata.normalize("NFKC", text.replace("&lt;", "<")).casefold()
    return str(_DASHES.sub("-", _QUOTES.sub("'", _DROPPED.sub("", folded))))
