"""From regions to pieces: paragraphs, list items, form lines and tables, with the boxes on the page as shown."""

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rag_pipeline.core.parsed_document import BlockType, BoundingBox
from rag_pipeline.parsing.pdf.characters import LINE_END_HYPHEN, is_unspaced, visible_length
from rag_pipeline.parsing.pdf.geometry import Box, frame_to_display
from rag_pipeline.parsing.pdf.layout import Region
from rag_pipeline.parsing.pdf.lines import LIST_MARK, Row, Table, join_words, row_words
from rag_pipeline.parsing.pdf.words import FIELD_FONT, Word

_HYPHENS = "-\u2010\u00ad"
_SENTENCE_END = tuple(".!?:;。！？：；…")
_CAPTION = re.compile(r"(?:table|figure|fig\.|exhibit|chart|tableau|abbildung|tabelle|表|图|圖|図)\s*\d", re.IGNORECASE)
_MAX_CAPTION = 300


@dataclass(slots=True, kw_only=True)
class Piece:
    """A future block, in reading order, before the whole document is known."""

    text: str
    box: BoundingBox
    lines: int = 1
    size: float = 0.0
    bold: bool = False
    type: BlockType = BlockType.PARAGRAPH
    """As far as the page alone tells; headings and running text are found later."""
    indent: float = 0.0
    """Left edge in the frame, points."""
    rows: list[list[str]] = field(default_factory=list)
    hrefs: list[str] = field(default_factory=list)
    invisible: bool = False


@dataclass(slots=True)
class _Line:
    words: list[Word]
    text: str
    box: Box
    size: float
    bold: bool
    has_field: bool

    @property
    def has_mark(self) -> bool:
        first = self.words[0].text
        return len(self.words) > 1 and LIST_MARK.fullmatch(first) is not None


def read_pieces(regions: Sequence[Region], direction: int, width: float, height: float) -> Iterator[Piece]:
    """Turn the regions of one frame into pieces."""
    for region in regions:
        if isinstance(region, Table):
            yield Piece(
                text="",
                type=BlockType.TABLE,
                box=frame_to_display(region.box, direction, width, height),
                rows=region.rows,
                lines=len(region.rows),
                size=region.words[0].style.size,
                indent=region.box.left,
            )
            continue
        lines = [_line(row) for row in region]
        for group in _paragraphs(lines):
            yield _piece(group, direction, width, height)


def is_caption(text: str) -> bool:
    """Whether the text begins like the caption of a table or figure."""
    return len(text) <= _MAX_CAPTION and _CAPTION.match(text) is not None


def join_lines(before: str, after: str, *, deliberate: bool = False) -> str:
    """Join two lines of a paragraph.

    A hyphen at the end stays as `LINE_END_HYPHEN` between the two halves when the word goes on with a small letter;
    `resolve_hyphens` decides about it when all words of the document are known.
    """
    if before.endswith(tuple(_HYPHENS)) and len(before) > 1 and before[-2].isalpha() and after[:1].isalpha():
        if after[0].islower():
            return before[:-1] + LINE_END_HYPHEN + after
        return before[:-1] + "-" + after
    if before.endswith(LINE_END_HYPHEN):
        return before[:-1] + "-" + after
    if before.endswith(("–", "@")) and before[-2:-1].isalnum():
        return before + after
    if before.endswith("/") and "://" in before.rsplit(maxsplit=1)[-1]:
        return before + after
    if deliberate:
        return before + "\n" + after
    if is_unspaced(before[-1]) and (is_unspaced(after[0]) or not after[0].isascii()):
        return before + after
    return before + " " + after


def _line(row: Row) -> _Line:
    words = row_words(row)
    box = row[0].box
    for segment in row[1:]:
        box = box.union(segment.box)
    text = row[0].text if len(row) == 1 and words is row[0].words else join_words(words)
    style = words[0].style
    if all(word.style is style for word in words):
        return _Line(words, text, box, style.size, style.bold, style.font == FIELD_FONT)
    sizes: Counter[float] = Counter()
    bold = 0
    has_field = False
    for word in words:
        has_field = has_field or word.style.font == FIELD_FONT
        sizes[word.style.size] += len(word.text)
        bold += len(word.text) * word.style.bold
    return _Line(words, text, box, sizes.most_common(1)[0][0], bold > 0.8 * sizes.total(), has_field)


def _paragraphs(lines: Sequence[_Line]) -> Iterator[list[_Line]]:
    if not lines:
        return
    usual = _usual_distance(lines)
    right = max(line.box.right for line in lines)
    group = [lines[0]]
    for line in lines[1:]:
        if _starts_paragraph(group, line, usual, right):
            yield group
            group = []
        group.append(line)
    yield group


def _usual_distance(lines: Sequence[_Line]) -> float:
    """Space between lines that occurs most often, as a share of the font size."""
    counts = Counter(
        round((after.box.top - before.box.bottom) / after.size, 1)
        for before, after in itertools.pairwise(lines)
        if after.size == before.size
    )
    return counts.most_common(1)[0][0] if counts else 0.2


def _starts_paragraph(group: Sequence[_Line], line: _Line, usual: float, right: float) -> bool:
    before = group[-1]
    size = max(before.size, line.size)
    distance = (line.box.top - before.box.bottom) / size
    usual = min(usual, 1.0)
    if distance > max(usual + 0.35, 0.3) and distance > usual * 1.3:
        return True
    if abs(before.size - line.size) > 0.08 * size or before.bold != line.bold or line.has_mark:
        return True
    if line.has_field or before.has_field:
        return True
    indented = line.box.left - min(item.box.left for item in group[1:] or group) > 0.8 * size
    short = before.box.right < right - 0.15 * (right - group[0].box.left)
    ends = before.words[-1].text.endswith(_SENTENCE_END)
    if group[0].has_mark:
        return short and ends
    return (indented and (ends or short) and len(group) > 0) or (short and ends)


def _type(group: Sequence[_Line], text: str) -> BlockType:
    if any(line.has_field for line in group):
        return BlockType.FORM_FIELD
    if group[0].has_mark:
        return BlockType.LIST_ITEM
    if is_caption(text):
        return BlockType.CAPTION
    return BlockType.PARAGRAPH


def _piece(group: Sequence[_Line], direction: int, width: float, height: float) -> Piece:
    text = group[0].text
    box = group[0].box
    right = max(line.box.right for line in group)
    for before, line in itertools.pairwise(group):
        first = line.words[0]
        fits = before.box.right + (first.right - first.left) + 0.5 * line.size < right - 0.5 * line.size
        text = join_lines(text, line.text, deliberate=fits and len(first.text) > 0)
        box = box.union(line.box)
    return Piece(
        text=text,
        box=frame_to_display(box, direction, width, height),
        lines=len(group),
        size=max(group, key=lambda line: visible_length(line.text)).size if len(group) > 1 else group[0].size,
        bold=all(line.bold for line in group),
        type=_type(group, text),
        indent=group[0].box.left,
        invisible=all(word.style.invisible for line in group for word in line.words),
    )
