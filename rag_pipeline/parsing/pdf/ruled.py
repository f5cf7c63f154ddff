"""Tables with rules: cells are what horizontal and vertical rules enclose."""

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from rag_pipeline.parsing.pdf.geometry import Box
from rag_pipeline.parsing.pdf.lines import Table, build_rows, build_segments, join_words, row_words
from rag_pipeline.parsing.pdf.tables import drop_empty_columns
from rag_pipeline.parsing.pdf.words import Word

_TOUCH = 3.0
"""Rules closer than this meet, points."""
_MAX_RULES = 1_000
_SPLIT_FILL = 0.75
"""A row of cells with several lines is split into rows when this share of its lines has text in every column."""


def find_ruled_tables(horizontal: Sequence[Box], vertical: Sequence[Box], words: Sequence[Word]) -> list[Table]:
    """Tables of at least two rows and two columns, with the words inside their rules."""
    across = _merge([(box.top + box.bottom) / 2 for box in horizontal], [(box.left, box.right) for box in horizontal])
    down = _merge([(box.left + box.right) / 2 for box in vertical], [(box.top, box.bottom) for box in vertical])
    if len(across) < 2 or len(down) < 2 or len(across) + len(down) > _MAX_RULES:
        return []
    tables = [_build(*group, words) for group in _connected(across, down)]
    return [table for table in tables if table is not None]


Rule = tuple[float, float, float]
"""Position across, then begin and end along."""


def _merge(positions: Sequence[float], extents: Sequence[tuple[float, float]]) -> list[Rule]:
    """Join pieces of one rule: borders of cells are often drawn cell by cell."""
    merged: list[Rule] = []
    by_position = sorted(zip(positions, extents, strict=True))
    begin = 0
    for index in range(1, len(by_position) + 1):
        if index < len(by_position) and by_position[index][0] - by_position[index - 1][0] <= 1.0:
            continue
        level = by_position[begin:index]
        position = sum(item[0] for item in level) / len(level)
        first, last = None, 0.0
        for start, end in sorted(item[1] for item in level):
            if first is not None and start <= last + _TOUCH:
                last = max(last, end)
                continue
            if first is not None:
                merged.append((position, first, last))
            first, last = start, end
        if first is not None:
            merged.append((position, first, last))
        begin = index
    return merged


def _connected(across: Sequence[Rule], down: Sequence[Rule]) -> list[tuple[list[Rule], list[Rule]]]:
    """Groups of rules that cross or touch each other."""
    rows, columns = np.array(across), np.array(down)
    meets = (
        (columns[None, :, 0] >= rows[:, None, 1] - _TOUCH)
        & (columns[None, :, 0] <= rows[:, None, 2] + _TOUCH)
        & (rows[:, None, 0] >= columns[None, :, 1] - _TOUCH)
        & (rows[:, None, 0] <= columns[None, :, 2] + _TOUCH)
    )
    groups: list[tuple[list[Rule], list[Rule]]] = []
    waiting = set(range(len(across)))
    while waiting:
        row_ids, column_ids = {waiting.pop()}, set[int]()
        grown = True
        while grown:
            new_columns = {int(c) for c in np.flatnonzero(meets[list(row_ids)].any(axis=0))} - column_ids
            column_ids |= new_columns
            new_rows = (
                {int(r) for r in np.flatnonzero(meets[:, list(new_columns)].any(axis=1))} - row_ids
                if new_columns
                else set[int]()
            )
            row_ids |= new_rows
            grown = bool(new_rows)
        waiting -= row_ids
        if len(row_ids) >= 2 and len(column_ids) >= 2:
            groups.append(([across[index] for index in row_ids], [down[index] for index in column_ids]))
    return groups


def _levels(positions: Sequence[float]) -> list[float]:
    levels: list[float] = []
    for position in sorted(positions):
        if not levels or position - levels[-1] > _TOUCH:
            levels.append(position)
    return levels


def _build(across: list[Rule], down: list[Rule], words: Sequence[Word]) -> Table | None:
    ys, xs = _levels([rule[0] for rule in across]), _levels([rule[0] for rule in down])
    if len(xs) < 3 or len(ys) < 2:
        return None
    box = Box(xs[0], ys[0], xs[-1], ys[-1])
    inside: dict[tuple[int, int], list[Word]] = {}
    members: list[Word] = []
    starts = _CellStarts(across, down, xs, ys)
    for word in words:
        x, y = (word.left + word.right) / 2, (word.top + word.bottom) / 2
        if box.left < x < box.right and box.top < y < box.bottom:
            members.append(word)
            column = bisect_right(xs, min(word.left + 0.3 * word.style.size, x)) - 1
            inside.setdefault(starts.of(bisect_right(ys, y) - 1, max(column, 0)), []).append(word)
    if len(inside) < 3:
        return None
    rows: list[list[str]] = []
    for row in range(len(ys) - 1):
        rows.extend(_split_row([inside.get((row, column), []) for column in range(len(xs) - 1)]))
    rows = drop_empty_columns([row for row in rows if any(row)])
    if len(rows) < 2 or len(rows[0]) < 2:
        return None
    return Table(rows, box, members)


class _CellStarts:
    """Finds the top left field of the grid that belongs to the same cell, where rules between fields are missing."""

    def __init__(self, across: list[Rule], down: list[Rule], xs: list[float], ys: list[float]) -> None:
        self._left = [
            [column == 0 or _covers(down, xs[column], (ys[row] + ys[row + 1]) / 2) for column in range(len(xs) - 1)]
            for row in range(len(ys) - 1)
        ]
        self._top = [
            [row == 0 or _covers(across, ys[row], (xs[column] + xs[column + 1]) / 2) for column in range(len(xs) - 1)]
            for row in range(len(ys) - 1)
        ]

    def of(self, row: int, column: int) -> tuple[int, int]:
        """Row and column of the field in which the cell starts."""
        while not self._left[row][column]:
            column -= 1
        while not self._top[row][column]:
            row -= 1
        return row, column


def _covers(rules: list[Rule], position: float, along: float) -> bool:
    return any(abs(rule[0] - position) <= _TOUCH and rule[1] - 1 <= along <= rule[2] + 1 for rule in rules)


def _split_row(cells: Sequence[Sequence[Word]]) -> list[list[str]]:
    """One row of texts, or several where lines stand beside each other in nearly all columns."""
    lines = [[(row_words(row)) for row in build_rows(build_segments(cell))] if cell else [] for cell in cells]
    used = [column for column in lines if column]
    deepest = max((len(column) for column in used), default=0)
    if deepest >= 3 and len(used) >= 2:
        levels = _line_levels(used)
        if sum(len(column) for column in used) >= _SPLIT_FILL * len(levels) * len(used):
            return [[_line_at(column, level) for column in lines] for level in levels]
    return [["\n".join(join_words(line) for line in column) for column in lines]]


def _line_levels(columns: Sequence[Sequence[Sequence[Word]]]) -> list[float]:
    middles = sorted((line[0].top + line[0].bottom) / 2 for column in columns for line in column)
    height = columns[0][0][0].bottom - columns[0][0][0].top
    levels: list[float] = []
    for middle in middles:
        if not levels or middle - levels[-1] > 0.5 * height:
            levels.append(middle)
    return levels


def _line_at(column: Sequence[Sequence[Word]], level: float) -> str:
    for line in column:
        height = line[0].bottom - line[0].top
        if -0.1 * height <= (line[0].top + line[0].bottom) / 2 - level <= 0.5 * height:
            return join_words(line)
    return ""
