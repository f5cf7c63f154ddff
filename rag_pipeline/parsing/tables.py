"""Tables as values: merged cells resolved to a rectangle of texts, and the rectangle as Markdown."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

FILL_CHARACTERS = 100
"""A text merged over several rows is repeated in each when it is this short: then it is a label ("North")."""
MAX_COLUMNS = 16_384
"""Excel's own limit; a wider span is damage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCell:
    """A cell with its place (from 0) and how many rows and columns it covers."""

    row: int
    column: int
    text: str
    row_span: int = 1
    column_span: int = 1


def resolve_spans(cells: Iterable[TableCell]) -> list[list[str]]:
    """Cells as a rectangle of texts, with rows and columns that are empty throughout left out.

    A short text that is merged over rows stands in each of them, so that every row can be read alone. A text merged
    over columns stands once, except in the first row, where it heads each of its columns.
    """
    filled: dict[tuple[int, int], str] = {}
    for cell in cells:
        if not cell.text.strip() or cell.column >= MAX_COLUMNS:
            continue
        down = cell.row_span if len(cell.text) <= FILL_CHARACTERS else 1
        across = min(cell.column_span, MAX_COLUMNS - cell.column) if cell.row == 0 else 1
        for row in range(cell.row, cell.row + down):
            for column in range(cell.column, cell.column + across):
                filled.setdefault((row, column), cell.text)
    rows = sorted({row for row, _ in filled})
    columns = sorted({column for _, column in filled})
    return [[filled.get((row, column), "") for column in columns] for row in rows]


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """Rows as a Markdown table whose first row is the header; "" for no rows. White space inside cells is one blank."""
    if not rows:
        return ""
    width = max(len(row) for row in rows)
    lines = [_markdown_row([*row, *[""] * (width - len(row))]) for row in rows]
    lines.insert(1, "|" + " --- |" * width)
    return "\n".join(lines)


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"
