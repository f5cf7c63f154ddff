"""Tables without rules: cells found by the alignment of their text; and tables as Markdown."""

import re
from collections.abc import Sequence

from rag_pipeline.parsing.pdf.lines import Row, Segment, Table, join_words
from rag_pipeline.parsing.pdf.words import Word

_BEFORE_NUMBER = re.compile(r"[$€£¥(]{1,2}|US\$|RMB")
_AFTER_NUMBER = re.compile(r"[)%]{1,2}")
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
    cells = [_cells(row, boundaries) for row in rows]
    cells = _merge_signs(_move_trailing_signs(cells))
    cells = drop_empty_columns(cells)
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


def _merge_signs(rows: list[list[str]]) -> list[list[str]]:
    """Move columns of "$" to the number at their right, and of "%" or ")" to the one at their left."""
    merged = [row[:] for row in rows]
    width = len(rows[0])
    for column in range(width):
        filled = [row[column] for row in rows if row[column]]
        if not filled:
            continue
        if column + 1 < width and all(_BEFORE_NUMBER.fullmatch(cell) for cell in filled):
            _move(merged, column, column + 1, before=True)
        elif column and all(_AFTER_NUMBER.fullmatch(cell) for cell in filled):
            _move(merged, column, column - 1, before=False)
    return merged


def _move_trailing_signs(rows: list[list[str]]) -> list[list[str]]:
    """A "$" that stands close to the number before it belongs to the one after it."""
    moved = [row[:] for row in rows]
    for row in moved:
        for column in range(len(row) - 1):
            text, _, sign = row[column].rpartition(" ")
            if text and _BEFORE_NUMBER.fullmatch(sign) and row[column + 1][:1].isdigit():
                row[column], row[column + 1] = text, sign + row[column + 1]
    return moved


def _move(rows: list[list[str]], source: int, target: int, *, before: bool) -> None:
    for row in rows:
        if row[source]:
            row[target] = row[source] + row[target] if before else row[target] + row[source]
            row[source] = ""


def drop_empty_columns(rows: list[list[str]]) -> list[list[str]]:
    """Drop columns without any text."""
    if not rows:
        return rows
    kept = [column for column in range(len(rows[0])) if any(row[column] for row in rows)]
    return [[row[column] for column in kept] for row in rows]
