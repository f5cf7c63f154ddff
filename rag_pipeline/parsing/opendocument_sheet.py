"""Tables of OpenDocument files: spreadsheets as cells by row and column, tables in texts as rows of texts."""

from collections.abc import Callable, Iterator

from lxml import etree

from rag_pipeline.parsing.office.docx_styles import to_int
from rag_pipeline.parsing.office.drawing import local_name
from rag_pipeline.parsing.office.xlsx_cells import MAX_COLUMN, MAX_ROW, Cell, CellKind, Range, SheetCells, number_text
from rag_pipeline.parsing.tables import TableCell

OFFICE = "{urn:oasis:names:tc:opendocument:xmlns:office:1.0}"
TABLE = "{urn:oasis:names:tc:opendocument:xmlns:table:1.0}"
TEXT = "{urn:oasis:names:tc:opendocument:xmlns:text:1.0}"
MAX_REPEATS = 1_000
"""Copies of a filled row or cell that are written out; real sheets repeat filled cells a few dozen times."""

TextOf = Callable[[etree._Element], str]
"""Text of a cell's content."""


def sheet_cells(table: etree._Element, text_of: TextOf) -> SheetCells:
    """All cells of a sheet that hold something. Empty rows and cells are counted, not written out."""
    sheet = SheetCells()
    number = 1
    for row in table_rows(table):
        repeats = _repeats(row, "rows")
        cells = dict(_row_cells(row, text_of, number, sheet.merged))
        if cells:
            for copy in range(min(repeats, MAX_REPEATS)):
                sheet.rows[number + copy] = dict(cells)
        number += repeats
        if number > MAX_ROW:
            break
    return sheet


def text_cells(table: etree._Element, text_of: TextOf) -> Iterator[TableCell]:
    """Cells of a table in a text or on a slide."""
    for index, row in enumerate(table_rows(table)):
        column = 0
        for cell in row:
            repeats = min(_repeats(cell, "columns"), MAX_REPEATS)
            if local_name(cell) == "table-cell":
                text = text_of(cell)
                for copy in range(repeats if text else 0):
                    yield TableCell(
                        row=index,
                        column=column + copy,
                        text=text,
                        row_span=min(_span(cell, "rows"), MAX_REPEATS),
                        column_span=min(_span(cell, "columns"), MAX_REPEATS),
                    )
            column += repeats


def table_rows(table: etree._Element) -> Iterator[etree._Element]:
    """Rows of a table, also those in header and group elements, without rows of nested tables."""
    for child in table:
        name = local_name(child)
        if name == "table-row":
            yield child
        elif name in {"table-header-rows", "table-rows", "table-row-group"}:
            yield from table_rows(child)


def _row_cells(row: etree._Element, text_of: TextOf, number: int, merged: list[Range]) -> Iterator[tuple[int, Cell]]:
    column = 1
    for element in row:
        repeats = _repeats(element, "columns")
        cell = _cell(element, text_of) if local_name(element) == "table-cell" else None
        if cell is not None and column <= MAX_COLUMN:
            down, across = _span(element, "rows"), _span(element, "columns")
            if down > 1 or across > 1:
                merged.append(Range(top=number, left=column, bottom=number + down - 1, right=column + across - 1))
            for copy in range(min(repeats, MAX_REPEATS)):
                yield column + copy, cell
        column += repeats


def _cell(element: etree._Element, text_of: TextOf) -> Cell | None:
    kind = element.get(f"{OFFICE}value-type", "")
    value = element.get(f"{OFFICE}value", "")
    shown = text_of(element)
    match kind:
        case "date":
            return Cell(element.get(f"{OFFICE}date-value", shown).replace("T", " "), CellKind.DATE)
        case "float" | "currency" | "percentage" if value:
            return _number(value, is_percentage=kind == "percentage")
        case "boolean":
            return Cell(element.get(f"{OFFICE}boolean-value", shown).upper(), CellKind.NUMBER)
        case "time":
            return Cell(shown, CellKind.NUMBER) if shown else None
        case _:
            return Cell(shown, CellKind.TEXT) if shown else None


def _number(value: str, *, is_percentage: bool) -> Cell:
    try:
        number = float(value)
    except ValueError:
        return Cell(value, CellKind.TEXT)
    if is_percentage:
        return Cell(f"{number * 100:.12g}%", CellKind.NUMBER)
    is_year = number.is_integer() and 1900 <= number <= 2100
    return Cell(number_text(number), CellKind.YEAR if is_year else CellKind.NUMBER)


def _repeats(element: etree._Element, what: str) -> int:
    return max(to_int(element.get(f"{TABLE}number-{what}-repeated"), 1), 1)


def _span(cell: etree._Element, what: str) -> int:
    return max(to_int(cell.get(f"{TABLE}number-{what}-spanned"), 1), 1)
