"""Segments (words next to each other) and rows (segments beside each other). All in one frame."""

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rag_pipeline.parsing.pdf.characters import is_right_to_left, is_unspaced
from rag_pipeline.parsing.pdf.geometry import Box
from rag_pipeline.parsing.pdf.words import FIELD_FONT, Word

SEGMENT_GAP = 0.9
"""A gap wider than this, in font sizes, may be a column boundary; justified text rarely stretches a blank so far."""
_BACK_STEP = 0.6
"""How far a word may start before the end of the one before it, in font sizes: kerning, italics."""
LIST_MARK = re.compile(r"[•‣⁃∙▪▫◦○●■□◆◇➢➤✓✔❖·\uf0b7\uf0a7\uf0d8\uf06e\-–—*o]|\(?(?:\d{1,2}|[a-zA-Z]|[ivxIVX]{1,5})[.)]")
_MARK_GAP = 4.0
"""A list mark belongs to the text at most this many font sizes to its right."""
_FIELD_GAP = 20.0
"""The value of a form field belongs to the label at most this many font sizes to its left."""


@dataclass(slots=True)
class Table:
    """Cells in rows of equal length."""

    rows: list[list[str]]
    box: Box
    words: list[Word]


@dataclass(slots=True)
class Segment:
    """Words of one line without a wide gap between them."""

    words: list[Word]
    left: float
    top: float
    right: float
    bottom: float
    table: Table | None = None
    """Set on the stand-in for a ruled table, whose words it holds."""
    _text: str | None = None

    @property
    def box(self) -> Box:
        """The box around the words."""
        return Box(self.left, self.top, self.right, self.bottom)

    @property
    def text(self) -> str:
        """The words with blanks where they belong."""
        if self._text is None:
            self._text = join_words(self.words)
        return self._text

    @property
    def size(self) -> float:
        """Font size of the longest word: a raised footnote mark does not count."""
        return max(self.words, key=lambda word: len(word.text)).style.size


Row = list[Segment]
"""Segments on one level, from left to right."""


def segment_of(words: list[Word]) -> Segment:
    """One segment of these words."""
    if len(words) == 1:
        word = words[0]
        return Segment(words, word.left, word.top, word.right, word.bottom)
    _, left, top, right, bottom, *_ = zip(*words, strict=True)
    return Segment(words, min(left), min(top), max(right), max(bottom))


def table_segment(table: Table) -> Segment:
    """The stand-in for a ruled table among the segments of a page."""
    return Segment(table.words, *table.box, table)


def build_segments(words: Iterable[Word]) -> list[Segment]:
    """Join words that follow each other in the content stream and on the page."""
    runs: list[list[Word]] = []
    top = bottom = right = size = 0.0
    for word in words:
        _, left, word_top, word_right, word_bottom, style, _, _, _ = word
        limit = size if size > style.size else style.size
        # Written without min() and max(): this runs for every word of a page.
        low = bottom if bottom < word_bottom else word_bottom
        high = top if top > word_top else word_top
        less = bottom - top if bottom - top < word_bottom - word_top else word_bottom - word_top
        if runs and -_BACK_STEP * limit <= left - right <= SEGMENT_GAP * limit and low - high >= 0.4 * less:
            runs[-1].append(word)
        else:
            runs.append([word])
        top, right, bottom, size = word_top, word_right, word_bottom, style.size
    return [segment_of(run) for run in runs]


def build_rows(segments: Sequence[Segment]) -> list[Row]:
    """Group segments by level, from top to bottom, and join those that are close to each other."""
    rows: list[Row] = []
    top = bottom = 0.0
    tables = [segment for segment in segments if segment.table is not None]
    for segment in sorted((item for item in segments if item.table is None), key=lambda item: item.top + item.bottom):
        overlap = min(bottom, segment.bottom) - max(top, segment.top)
        if rows and overlap >= 0.5 * min(bottom - top, segment.bottom - segment.top):
            rows[-1].append(segment)
            if segment.right - segment.left > 3 * (segment.bottom - segment.top):
                top, bottom = min(top, segment.top), max(bottom, segment.bottom)
        else:
            rows.append([segment])
            top, bottom = segment.top, segment.bottom
    rows = [_join_close(row) for row in rows]
    if tables:
        # A table is a row of its own, even where lines of another column stand beside it.
        rows.extend([table] for table in tables)
        rows.sort(key=lambda row: min(segment.top for segment in row))
    return rows


def join_words(words: Sequence[Word]) -> str:
    """The text of words on one line."""
    if len(words) == 1:
        return words[0].text
    pieces = [words[0].text]
    before = words[0]
    for word in itertools.islice(words, 1, None):
        # The usual case first: blanks between words in the file, and not Chinese or Japanese.
        if (before.end != word.start and word.text[0] < "\u2e80") or _needs_blank(before, word):
            pieces.append(" ")
        pieces.append(word.text)
        before = word
    return "".join(pieces)


def row_words(row: Row) -> list[Word]:
    """The words of a row in reading order: by position, or as written where the script runs right to left."""
    words = row[0].words if len(row) == 1 else [word for segment in row for word in segment.words]
    if is_right_to_left("".join([word.text for word in words])):
        return sorted(words, key=lambda word: word.start)
    return words


def _needs_blank(before: Word, word: Word) -> bool:
    if before.end == word.start:
        return word.left - before.right > 0.35 * word.style.size
    if is_unspaced(before.text[-1]) and is_unspaced(word.text[0]):
        return word.left - before.right > 0.6 * word.style.size
    return True


def _join_close(row: Row) -> Row:
    if len(row) == 1:
        return row
    row.sort(key=lambda segment: segment.left)
    joined = [row[0]]
    for segment in row[1:]:
        before = joined[-1]
        size = max(before.words[-1].style.size, segment.words[0].style.size)
        gap = segment.left - before.right
        is_mark = len(before.words) == 1 and LIST_MARK.fullmatch(before.words[0].text) is not None
        is_value = segment.words[0].style.font == FIELD_FONT and before.words[-1].style.font != FIELD_FONT
        limit = _FIELD_GAP if is_value else _MARK_GAP if is_mark else SEGMENT_GAP
        if gap <= limit * size:
            joined[-1] = segment_of(before.words + segment.words)
        else:
            joined.append(segment)
    return joined
