"""Reading order: which rows stand in columns that are read one after the other, and which form tables.

The rows of a page are walked from top to bottom. Where rows share a gap (a vertical strip without text), they form a
run; a run is either columns of prose (read each whole, recursively) or a table (read row by row). What tells them
apart: cells of numbers, how well lines fill their column, and the order in which the file draws them.
"""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from rag_pipeline.parsing.pdf.characters import visible_length
from rag_pipeline.parsing.pdf.lines import Row, Segment, Table, build_rows
from rag_pipeline.parsing.pdf.tables import build_aligned_table

Gap = tuple[float, float]
Region = list[Row] | Table
"""Rows of plain lines, or a table."""

_NUMERIC = re.compile(r"[-–—+(\[]?[$€£¥]?\s?[-–—(]?\d[\d.,:/\s]*[%)\]]*(?:\s?\(?\w{1,2}\)?)?|[-–—$€£¥%)(]+|N/?A")
_MIN_GAP = 0.75
"""Narrowest column gap in font sizes once several rows share it."""
_PROSE_LENGTH = 18
"""Mean length of a column's lines from which they may be prose."""
_PROSE_FILL = 0.6
_LONE_GAP = 1.8
"""Narrowest gap in font sizes that makes a table of only two rows and two columns."""
_MAX_TITLES = 3
_MAX_DEPTH = 6


@dataclass(slots=True)
class _Run:
    """Consecutive rows that share gaps."""

    first: int
    last: int
    gaps: list[Gap]


def arrange(segments: Sequence[Segment], *, depth: int = 0) -> list[Region]:
    """Put segments into reading order."""
    rows = build_rows(segments)
    regions: list[Region] = []
    plain: list[Row] = []
    index = 0
    while index < len(rows):
        if (table := rows[index][0].table) is not None:
            if plain:
                regions.append(plain)
            plain = []
            regions.append(table)
            index += 1
            continue
        run = _find_run(rows, index) if depth < _MAX_DEPTH else None
        if run is None:
            plain.append(rows[index])
            index += 1
            continue
        pieces, used = _read_run(rows, run, plain, depth)
        if used == 0:
            plain.append(rows[index])
            index += 1
            continue
        if plain:
            regions.append(plain)
        plain = []
        regions.extend(pieces)
        index += used
    if plain:
        regions.append(plain)
    return regions


def _read_run(rows: list[Row], run: _Run, plain: list[Row], depth: int) -> tuple[list[Region], int]:
    """Read the run at its first row; gives the regions and how many rows they used (0: it is not a run)."""
    parts = _split_at_blank_space(rows[run.first : run.last + 1])
    columns = 0
    taken = 0
    for part in parts:
        if not _is_columns(part, run.gaps):
            break
        columns += 1
        taken += len(part)
    if columns:
        start = run.first
        while plain and _fits_beside(plain[-1], run.gaps) and _is_near(plain[-1], rows[start]):
            plain.pop()
            start -= 1
        members = rows[start : run.first + taken]
        regions: list[Region] = []
        for column in _split_columns(members, run.gaps):
            regions.extend(arrange(column, depth=depth + 1))
        return regions, taken
    part = parts[0]
    ruled = next((index for index, row in enumerate(part) if row[0].table is not None), len(part))
    part = part[:ruled]
    while len(part) > 1 and len(part[-1]) < 2:
        part = part[:-1]
    table = build_aligned_table([*_take_titles(plain, part[0], run.gaps), *part])
    return ([table], len(part)) if table is not None else ([], 0)


def _take_titles(plain: list[Row], below: Row, gaps: list[Gap]) -> list[Row]:
    """Column titles right above a table: lone segments that stand right of its first column."""
    titles: list[Row] = []
    while plain and len(titles) < _MAX_TITLES:
        row = plain[-1]
        if len(row) > 1 or row[0].table is not None or row[0].left < gaps[0][0] or not _is_near(row, below):
            break
        titles.insert(0, plain.pop())
        below = row
    return titles


def _find_run(rows: list[Row], first: int) -> _Run | None:
    """The run that starts at this row, if two or more rows share a gap with it."""
    row = rows[first]
    if len(row) < 2:
        return None
    gaps = [
        (before.right, after.left)
        for before, after in itertools.pairwise(row)
        if after.left - before.right >= _MIN_GAP * before.size
    ]
    last = first
    last_shared = first
    while gaps and last + 1 < len(rows):
        narrowed = _narrow(gaps, rows[last + 1])
        if not narrowed:
            break
        gaps = narrowed
        last += 1
        if len(rows[last]) > 1 or not _is_one_sided(rows[first : last + 1], gaps):
            last_shared = last
    if last_shared == first or not gaps:
        return None
    if last_shared == first + 1 and len(gaps) == 1 and gaps[0][1] - gaps[0][0] < _LONE_GAP * row[0].size:
        return None
    return _Run(first, last, gaps)


def _narrow(gaps: list[Gap], row: Row) -> list[Gap]:
    """What is left of the gaps when this row's segments are taken out."""
    remaining = gaps
    for segment in row:
        minimum = _MIN_GAP * segment.size
        pieces: list[Gap] = []
        for left, right in remaining:
            if segment.right <= left or segment.left >= right:
                pieces.append((left, right))
                continue
            if segment.left - left >= minimum:
                pieces.append((left, segment.left))
            if right - segment.right >= minimum:
                pieces.append((segment.right, right))
        remaining = pieces
    return remaining


def _is_one_sided(rows: list[Row], gaps: list[Gap]) -> bool:
    sides = {segment.left < gaps[0][0] for row in rows for segment in row}
    return len(sides) == 1


def _split_at_blank_space(rows: list[Row]) -> list[list[Row]]:
    """Cut where the distance between rows is more than twice the usual one."""
    parts = [[rows[0]]]
    tops = [min(segment.top for segment in row) for row in rows]
    bottoms = [max(segment.bottom for segment in row) for row in rows]
    for index in range(1, len(rows)):
        height = bottoms[index] - tops[index]
        if tops[index] - max(bottoms[:index]) > 1.6 * height:
            parts.append([])
        parts[-1].append(rows[index])
    return parts


def _split_columns(rows: list[Row], gaps: list[Gap]) -> list[list[Segment]]:
    centers = sorted((left + right) / 2 for left, right in gaps)
    columns: list[list[Segment]] = [[] for _ in range(len(centers) + 1)]
    for row in rows:
        for segment in row:
            middle = (segment.left + segment.right) / 2
            columns[sum(middle > center for center in centers)].append(segment)
    return [column for column in columns if column]


def _is_columns(rows: list[Row], gaps: list[Gap]) -> bool:
    columns = [[segment for segment in column if segment.table is None] for column in _split_columns(rows, gaps)]
    if len(columns) < 2:
        return False
    if any(not column for column in columns):
        return True
    if any(_is_numeric(column) for column in columns):
        return False
    prose = [_is_prose(column) for column in columns]
    if all(prose):
        return True
    shared = sum(len(row) > 1 for row in rows)
    if shared < 0.35 * len(rows) and len(columns) == 2:
        return True
    return shared >= 2 and len(columns) <= 3 and _switches(columns) <= max(1, 0.25 * shared)


def _is_numeric(column: list[Segment]) -> bool:
    return sum(_NUMERIC.fullmatch(segment.text) is not None for segment in column) > 0.4 * len(column)


def _is_prose(column: list[Segment]) -> bool:
    rows = build_rows(column)
    left = min(segment.left for segment in column)
    width = max(segment.right for segment in column) - left
    length = sum(visible_length(segment.text) for segment in column) / len(rows)
    fill = sum(max(segment.right for segment in row) - min(segment.left for segment in row) for row in rows)
    return length >= _PROSE_LENGTH and fill >= _PROSE_FILL * width * len(rows) and len(rows) >= 2


def _switches(columns: list[list[Segment]]) -> int:
    """How often the file changes from one column to another while it draws them."""
    order = sorted((segment.words[0].start, number) for number, column in enumerate(columns) for segment in column)
    return sum(before[1] != after[1] for before, after in itertools.pairwise(order)) - len(columns) + 1


def _fits_beside(row: Row, gaps: list[Gap]) -> bool:
    return all(segment.right <= left or segment.left >= right for segment in row for left, right in gaps)


def _is_near(row: Row, below: Row) -> bool:
    bottom = max(segment.bottom for segment in row)
    return min(segment.top for segment in below) - bottom < 1.6 * (bottom - min(segment.top for segment in row))
