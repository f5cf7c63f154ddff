"""Tables without rules: cells found by the alignment of their text; and tables as Markdown."""

import re
from collections.abc import Sequence

from rag_pipeline.parsing.pdf.lines import Row, Segment, Table, join_words
from rag_pipeline.parsing.pdf.words import Word

_BEFORE_NUMBER = re.compile(r"[$€£¥(]{1,2}|US\$|RMB")
_AFTER_NUMBER = re.compile(r"[)%]{1,2}")
_NUMBER_START = re.compile(r"[-–—(]?[\d.—–-]")
_SIGN_APART = re.compile(r"^([$€£¥]) (?=[\d(.])")
_SPANNING_SHARE = 0.12
"""Share of rows that may cross a column boundary: titles over several columns."""
_MIN_BOUNDARY = 2.0
"""Narrowest strip between two columns, points."""


def build_aligned_table(rows: Sequence[Row]) -> Table | None:
    """Cells of consecutive rows; None if fewer than two rows have two cells."""
    shared = [row for row in rows if len(row) > 1]
    if len(shared) < 2:
        return None
    boundaries = _boundaries(shared)
    if not boundaries:
        return None
    cells = drop_empty_columns([_merge_signs(_cells(row, boundaries)) for row in rows])
    if len(cells[0]) < 2 or sum(sum(bool(cell) for cell in row) > 1 for row in cells) < 2:
        return None
    box = rows[0][0].box
    for row in rows:
        for segment in row:
            box = box.union(segment.box)
    return Table(cells, box, [word for row in rows for segment in row for word in segment.words])


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A table as Markdown; the first row becomes the header."""
    lines = ["| " + " | ".join(_escape(cell) for cell in row) + " |" for row in rows]
    lines.insert(1, "|" + " --- |" * len(rows[0]))
    return "\n".join(lines)


def _escape(cell: str) -> str:
    return " ".join(cell.split()).replace("|", "\\|")


def _boundaries(rows: Sequence[Row]) -> list[float]:
    """Middle of each strip that (almost) no segment crosses."""
    events: list[tuple[float, int]] = []
    for row in rows:
        for segment in row:
            events.append((segment.left, 1))
            events.append((segment.right, -1))
    events.sort()
    allowed = int(_SPANNING_SHARE * len(rows))
    boundaries: list[float] = []
    depth = 0
    opened: float | None = None
    for position, change in events:
        depth += change
        if depth <= allowed and opened is None and change < 0:
            opened = position
        elif depth > allowed and opened is not None:
            if position - opened >= _MIN_BOUNDARY:
                boundaries.append((opened + position) / 2)
            opened = None
    return boundaries


def _cells(row: Row, boundaries: Sequence[float]) -> list[str]:
    words: list[list[Word]] = [[] for _ in range(len(boundaries) + 1)]
    for segment in row:
        for word, column in _columns_of(segment, boundaries):
            words[column].append(word)
    return [join_words(cell) if cell else "" for cell in words]


def _columns_of(segment: Segment, boundaries: Sequence[float]) -> list[tuple[Word, int]]:
    """The column of each word; a segment is divided only where a boundary falls between two of its words."""
    column = sum(boundary <= segment.words[0].left + 0.5 for boundary in boundaries)
    placed = [(segment.words[0], column)]
    for before, word in zip(segment.words, segment.words[1:], strict=False):
        inside = sum(before.right - 0.5 <= boundary <= word.left + 0.5 for boundary in boundaries)
        if inside:
            column = sum(boundary <= word.left + 0.5 for boundary in boundaries)
        placed.append((word, column))
    return placed


def _merge_signs(row: Sequence[str]) -> list[str]:
    """Put a "$" that stands in a column of its own to the number at its right, a "%" or ")" to the one at its left."""
    merged = [_SIGN_APART.sub(r"\1", cell) for cell in row]
    for column in range(len(merged) - 1):
        text, _, sign = merged[column].rpartition(" ")
        if _BEFORE_NUMBER.fullmatch(sign):
            target = next((index for index in range(column + 1, len(merged)) if merged[index]), None)
            if target is not None and _NUMBER_START.match(merged[target]):
                merged[column], merged[target] = text, sign + merged[target]
    for column in range(len(merged) - 1, 0, -1):
        if _AFTER_NUMBER.fullmatch(merged[column]):
            target = next((index for index in range(column - 1, -1, -1) if merged[index]), None)
            if target is not None and merged[target][-1].isdigit():
                merged[target], merged[column] = merged[target] + merged[column], ""
    return merged


def drop_empty_columns(rows: list[list[str]]) -> list[list[str]]:
    """Drop columns without any text."""
    if not rows:
        return rows
    kept = [column for column in range(len(rows[0])) if any(row[column] for row in rows)]
    return [[row[column] for column in kept] for row in rows]
