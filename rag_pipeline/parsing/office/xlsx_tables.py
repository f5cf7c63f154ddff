"""Finds the tables of a worksheet: areas of filled rows, their titles, and which rows are the header."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from rag_pipeline.parsing.office.xlsx_cells import Cell, CellKind, Range, SheetCells, column_letters

HEADER_SEPARATOR = " / "
"""Between the levels of a header of two rows: `Q1 / Jan`."""

Row = tuple[int, dict[int, Cell]]
"""Row number and its cells by column."""


@dataclass(slots=True, kw_only=True)
class SheetTable:
    """A table of texts, without empty columns."""

    rows: list[list[str]] = field(default_factory=list)
    has_header: bool = False
    """Whether the first row is the header."""
    titles: list[tuple[int, str]] = field(default_factory=list)
    """Row number and text of lines with a single cell above the table."""
    first_row: int = 0
    """Row of the sheet where the table begins, from 1."""
    range: str = ""
    """The area on the sheet, e.g. `B3:F20`."""


def find_tables(sheet: SheetCells, *, header_rows: set[int]) -> Iterator[SheetTable]:
    """Tables from top to bottom. Empty rows separate them, unless what follows plainly goes on below the same header.

    Tables side by side stay one: a label and its value must not be torn apart by an empty column between them.

    Args:
        sheet: the cells, with texts that are merged over rows already repeated.
        header_rows: rows known to be headers.
    """
    band: list[Row] = []
    titles: list[tuple[int, str]] = []
    for rows in _bands(sheet):
        own_titles, body = _split_titles(rows)
        if band and not own_titles and _continues(band, body, header_rows):
            band += body
            continue
        if band or titles:
            yield _table(band, titles, sheet.merged, header_rows)
        band, titles = body, own_titles
    if band or titles:
        yield _table(band, titles, sheet.merged, header_rows)


def _bands(sheet: SheetCells) -> Iterator[list[Row]]:
    band: list[Row] = []
    for number in sorted(sheet.rows):
        if band and number > band[-1][0] + 1:
            yield band
            band = []
        band.append((number, sheet.rows[number]))
    if band:
        yield band


def _split_titles(rows: list[Row]) -> tuple[list[tuple[int, str]], list[Row]]:
    """Lines with one cell above rows with several are titles."""
    if all(len(cells) == 1 for _, cells in rows):
        return [], rows
    titles = []
    start = 0
    while len(rows[start][1]) == 1:
        number, cells = rows[start]
        titles.append((number, next(iter(cells.values())).text))
        start += 1
    return titles, rows[start:]


def _continues(band: list[Row], following: list[Row], header_rows: set[int]) -> bool:
    """Whether rows after a gap belong to the table above: its columns, and values where a header would have words."""
    number, cells = following[0]
    if len(cells) < 2 or number in header_rows or not _is_header(band, header_rows):
        return False
    columns = {column for _, row in band for column in row}
    return columns.issuperset(cells) and any(cell.kind is not CellKind.TEXT for cell in cells.values())


def _table(band: list[Row], titles: list[tuple[int, str]], merged: list[Range], header_rows: set[int]) -> SheetTable:
    if not band:
        return SheetTable(titles=titles, first_row=titles[0][0])
    columns = sorted({column for _, cells in band for column in cells})
    rows = [[cells[column].text if column in cells else "" for column in columns] for _, cells in band]
    has_header = _is_header(band, header_rows)
    if has_header:
        wide = [area for area in merged if area.top == band[0][0] and area.right > area.left]
        rows = _folded_header(rows, band, columns, wide)
    top, bottom = band[0][0], band[-1][0]
    return SheetTable(
        rows=rows,
        has_header=has_header,
        titles=titles,
        first_row=top,
        range=f"{column_letters(columns[0])}{top}:{column_letters(columns[-1])}{bottom}",
    )


def _is_header(band: list[Row], header_rows: set[int]) -> bool:
    """Whether the first row names the columns: words, years, or dates that do not go on below."""
    if len(band) < 2:
        return False
    (number, cells), (_, below) = band[0], band[1]
    if number in header_rows:
        return True
    if not any(cell.kind is CellKind.TEXT for cell in cells.values()):
        return False
    return all(_names_a_column(cell, below.get(column)) for column, cell in cells.items())


def _names_a_column(cell: Cell, below: Cell | None) -> bool:
    if cell.kind is CellKind.DATE:
        return below is None or below.kind is not CellKind.DATE
    return cell.kind in {CellKind.TEXT, CellKind.YEAR}


def _folded_header(rows: list[list[str]], band: list[Row], columns: list[int], wide: list[Range]) -> list[list[str]]:
    """Make one header of two rows where a title in the first is merged over several columns of the second."""
    top = rows[0]
    for area in wide:
        covered = [index for index, column in enumerate(columns) if area.left <= column <= area.right]
        for index in covered[1:]:
            top[index] = top[index] or top[covered[0]]
    second_names = all(
        _names_a_column(cell, band[2][1].get(column) if len(band) > 2 else None) for column, cell in band[1][1].items()
    )
    covered_below = any(area.left <= column <= area.right for area in wide for column in band[1][1])
    if not wide or len(band) < 3 or not second_names or not covered_below:
        return rows
    folded = [
        HEADER_SEPARATOR.join(dict.fromkeys(text for text in pair if text)) for pair in zip(top, rows[1], strict=True)
    ]
    return [folded, *rows[2:]]
