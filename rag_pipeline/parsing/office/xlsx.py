"""Excel workbooks (xlsx, xlsm): a heading per sheet, and each area of filled rows as a table with a known header."""

from bisect import bisect_left, bisect_right
from typing import ClassVar

from lxml import etree

from rag_pipeline.core.parsed_document import BlockType, DocumentBuilder, ParsedDocument
from rag_pipeline.core.ports import ParseRequest
from rag_pipeline.errors import UnsupportedFormatError
from rag_pipeline.parsing.office.docx_text import R
from rag_pipeline.parsing.office.drawing import add_image, chart_rows, local_name
from rag_pipeline.parsing.office.package import OfficePackage
from rag_pipeline.parsing.office.xlsx_cells import Cell, CellReader, Range, SheetCells
from rag_pipeline.parsing.office.xlsx_tables import SheetTable, find_tables
from rag_pipeline.parsing.parser import Parser
from rag_pipeline.parsing.tables import FILL_CHARACTERS, markdown_table

SHOWN_REFERENCES = 5
"""Cells named in a warning."""


class XlsxParser(Parser):
    """Stored values of all sheets, hidden ones flagged; formulas are not computed."""

    name: ClassVar[str] = "xlsx"
    version: ClassVar[str] = "1"

    def parse(self, request: ParseRequest) -> ParsedDocument:
        """Parse the file at `request.path`. Errors as `Parser`."""
        builder = DocumentBuilder(parser=self.name, parser_version=self.version)
        with OfficePackage.open(request) as package:
            builder.metadata.update(package.core_properties())
            main = package.main_part(expected="xl")
            if main.lower().endswith(".bin"):
                raise UnsupportedFormatError(f"{request.file_name} is a binary workbook (.xlsb); save it as .xlsx")
            _Workbook(package, main, builder).read()
        if not builder.length:
            builder.warn("the workbook holds no text")
        return builder.build()


class _Workbook:
    def __init__(self, package: OfficePackage, main: str, builder: DocumentBuilder) -> None:
        self._package = package
        self._builder = builder
        root = package.xml(main)
        properties = root.find("{*}workbookPr")
        dates_from_1904 = properties is not None and properties.get("date1904") in {"1", "true"}
        self._cells = CellReader(package, main, dates_from_1904=dates_from_1904)
        links = package.relationships(main)
        self._sheets: list[tuple[str, str, bool]] = []
        for sheet in root.iterfind("{*}sheets/{*}sheet"):
            link = links.get(sheet.get(f"{R}id", ""))
            self._sheets.append(
                (
                    sheet.get("name", ""),
                    link.target if link else "",
                    sheet.get("state") is not None and sheet.get("state") != "visible",
                )
            )
        builder.metadata["sheets"] = [name for name, _, _ in self._sheets]
        hidden = [name for name, _, is_hidden in self._sheets if is_hidden]
        if hidden:
            builder.metadata["hidden_sheets"] = hidden
            builder.warn(f"hidden sheets are included: {', '.join(hidden)}")

    def read(self) -> None:
        """Add every sheet in the order of the workbook."""
        for name, part, hidden in self._sheets:
            if part in self._package:
                _Sheet(self._package, self._builder, name, part, hidden=hidden).read(self._cells)
            else:
                self._builder.warn(f"sheet {name} is missing from the file")


class _Sheet:
    def __init__(self, package: OfficePackage, builder: DocumentBuilder, name: str, part: str, *, hidden: bool) -> None:
        self._package = package
        self._builder = builder
        self._name = name
        self._part = part
        self._metadata = {"sheet": name, "hidden": "true"} if hidden else {"sheet": name}
        self._started = False

    def read(self, reader: CellReader) -> None:
        """Add the heading, the tables, then comments and drawings."""
        cells = reader.read(self._part)
        if cells.formulas_without_value:
            shown = cells.formulas_without_value[:SHOWN_REFERENCES]
            self._builder.warn(
                f"sheet {self._name}: {len(cells.formulas_without_value)} formula(s) have no stored result "
                f"(in {', '.join(shown)}); open the file in Excel, save it and submit it again"
            )
        fill_merged(cells)
        for table in find_tables(cells, header_rows=self._header_rows()):
            self._table(table)
        for part in self._package.related(self._part, "comments"):
            for comment in self._package.xml(part).iter("{*}comment"):
                text = "".join(run.text or "" for run in comment.iter("{*}t")).strip()
                self._add(BlockType.ANNOTATION, text, cell=comment.get("ref", ""))
        for part in self._package.related(self._part, "drawing"):
            self._drawing(part)

    def _add(self, type: BlockType, text: str, *, rows: list[list[str]] | None = None, **metadata: str) -> None:
        if not text.strip():
            return
        if not self._started:
            self._started = True
            self._builder.add_block(BlockType.HEADING, self._name, level=1, metadata=self._metadata)
        self._builder.add_block(type, text, rows=rows or (), metadata={**self._metadata, **metadata})

    def _table(self, table: SheetTable) -> None:
        for row, text in table.titles:
            self._add(BlockType.CAPTION, text, row=str(row))
        if len(table.rows) == 1 and len(table.rows[0]) == 1:
            self._add(BlockType.PARAGRAPH, table.rows[0][0], row=str(table.first_row), range=table.range)
        elif table.rows:
            rows = table.rows if table.has_header else [[""] * len(table.rows[0]), *table.rows]
            self._add(BlockType.TABLE, markdown_table(rows), rows=rows, row=str(table.first_row), range=table.range)

    def _header_rows(self) -> set[int]:
        """Header rows of the areas that the author formatted as tables."""
        found = set()
        for part in self._package.related(self._part, "table"):
            root = self._package.xml(part)
            area = Range.parse(root.get("ref", ""))
            if area is not None and root.get("headerRowCount", "1") != "0":
                found.add(area.top)
        return found

    def _drawing(self, part: str) -> None:
        links = self._package.relationships(part)
        for element in self._package.xml(part).iter("{*}txBody", "{*}blip", "{*}chart"):
            link = links.get(element.get(f"{R}embed") or element.get(f"{R}id") or "")
            target = link.target if link is not None and not link.external and link.target in self._package else None
            kind = local_name(element)
            if kind == "txBody":
                self._add(BlockType.PARAGRAPH, _lines(element), role="drawing")
            elif target is not None and kind == "blip":
                add_image(self._builder, self._package.read(target))
            elif target is not None:
                title, rows = chart_rows(self._package.xml(target))
                self._add(BlockType.CAPTION, title, role="chart")
                if not self._started:
                    # A sheet that is only a chart: its data may lie in another workbook.
                    self._add(BlockType.TABLE, markdown_table(rows), rows=rows, role="chart")


def fill_merged(sheet: SheetCells) -> None:
    """Repeat a short text that is merged over rows in each row that holds something: it labels all of them."""
    numbers = sorted(sheet.rows)
    for area in sheet.merged:
        cell: Cell | None = sheet.rows.get(area.top, {}).get(area.left)
        if cell is None or area.bottom == area.top or len(cell.text) > FILL_CHARACTERS:
            continue
        for number in numbers[bisect_right(numbers, area.top) : bisect_left(numbers, area.bottom + 1)]:
            sheet.rows[number].setdefault(area.left, cell)


def _lines(body: etree._Element) -> str:
    lines = ("".join(run.text or "" for run in line.iter("{*}t")) for line in body.iter("{*}p"))
    return "\n".join(line for line in lines if line.strip())
