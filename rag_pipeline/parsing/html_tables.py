"""Tables of HTML pages: their cells with spans, the tables inside cells, and tables that only arrange a page."""

import re
from collections.abc import Iterator

from lxml import etree

from rag_pipeline.parsing.html_elements import (
    BLOCKS,
    HEADINGS,
    collapse,
    count_in,
    field_text,
    is_hidden,
    parts_of,
    squeeze,
)
from rag_pipeline.parsing.tables import TableCell

LAYOUT_CELL_CHARACTERS = 400
"""A table with a cell of several paragraphs longer than this arranges a page and holds no data."""


def cells_of(table: "etree._Element") -> tuple[list[TableCell], list["etree._Element"]]:
    """Cells of a table with their places, and the tables inside them."""
    cells: list[TableCell] = []
    nested: list[etree._Element] = []
    taken: set[tuple[int, int]] = set()
    rows = list(_rows(table))
    for number, row in enumerate(rows):
        column = 0
        for cell in row.iterchildren("td", "th"):
            if is_hidden(cell):
                continue
            while (number, column) in taken:
                column += 1
            down = min(count_in(cell.get("rowspan"), 1) or len(rows), len(rows) - number)
            across = min(max(count_in(cell.get("colspan"), 1), 1), 1000)
            if down > 1:
                taken.update((number + y, column + x) for y in range(1, down) for x in range(across))
            text, inner = cell_text(cell)
            nested.extend(inner)
            cells.append(TableCell(row=number, column=column, text=text, row_span=down, column_span=across))
            column += across
    return cells, nested


def _rows(table: "etree._Element") -> Iterator["etree._Element"]:
    for child in table.iterchildren("tr", "thead", "tbody", "tfoot"):
        if is_hidden(child):
            continue
        for row in [child] if child.tag == "tr" else child.iterchildren("tr"):
            if not is_hidden(row):
                yield row


def cell_text(cell: "etree._Element") -> tuple[str, list["etree._Element"]]:
    """The visible text of a cell, a line per block in it, without the tables in it, and these."""
    if not len(cell):
        return squeeze(cell.text or "").strip(), []
    pieces: list[str] = []
    tables: list[etree._Element] = []
    waiting: list[etree._Element | str] = [cell]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            pieces.append(item)
        elif not isinstance(item.tag, str) or (item is not cell and is_hidden(item)):
            continue
        elif item.tag == "table":
            tables.append(item)
        elif item.tag in {"br", "img", "input", "textarea"}:
            pieces.append("\n" if item.tag == "br" else item.get("alt") or field_text(item))
        else:
            edge = "\n" if item.tag in BLOCKS else ""
            parts: list[etree._Element | str] = [edge]
            parts.extend(part if not isinstance(part, str) else squeeze(part) for part in parts_of(item))
            waiting.extend(reversed([*parts, edge]))
    return re.sub(r"\n+", "\n", collapse("".join(pieces))), tables


def is_layout(table: "etree._Element") -> bool:
    """Whether a table arranges passages instead of holding data."""
    if table.get("role") in {"presentation", "none"}:
        return True
    for row in _rows(table):
        for cell in row.iterchildren("td", "th"):
            passages = sum(1 for _ in cell.iter("p", "ul", "ol", "pre", "form", *HEADINGS))
            if passages > 2 and sum(map(len, cell.itertext())) > LAYOUT_CELL_CHARACTERS:
                return True
    return False
