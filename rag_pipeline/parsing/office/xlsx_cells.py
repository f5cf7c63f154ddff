"""Cells of a worksheet as texts: stored values in the way a person reads them, streamed row by row.

The library for workbooks is used for what is hard (number formats, serial dates). It does not read the cells here: it
refuses whole files for a malformed filter or style, hides merged ranges when streaming, and pads gaps with empty rows.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from enum import Enum, auto

from lxml import etree

from rag_pipeline.parsing.office.docx_styles import to_int
from rag_pipeline.parsing.office.drawing import local_name
from rag_pipeline.parsing.office.package import OfficePackage

MAX_ROW, MAX_COLUMN = 1_048_576, 16_384
"""The size of a sheet in Excel; references beyond it are damage."""

REMEMBERED_DATES = 10_000
"""Dates repeat: converting one costs as much as reading ten cells."""


class CellKind(Enum):
    """What a cell holds, as far as finding headers needs it."""

    TEXT = auto()
    NUMBER = auto()
    YEAR = auto()
    """A whole number from 1900 to 2100: as often a column title as a value."""
    DATE = auto()


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell that is not empty."""

    text: str
    kind: CellKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """A rectangle of cells, rows and columns from 1, ends included."""

    top: int
    left: int
    bottom: int
    right: int

    @classmethod
    def parse(cls, reference: str) -> "Range | None":
        """From `A1:D6` or `A1`; None if it is malformed."""
        first, _, last = reference.replace("$", "").partition(":")
        start, end = parse_reference(first), parse_reference(last or first)
        if start is None or end is None:
            return None
        return cls(
            top=min(start[0], end[0]),
            left=min(start[1], end[1]),
            bottom=max(start[0], end[0]),
            right=max(start[1], end[1]),
        )


@dataclass(slots=True, kw_only=True)
class SheetCells:
    """What a worksheet part holds."""

    rows: dict[int, dict[int, Cell]] = field(default_factory=dict)
    """Cells by row and column, rows in the order of the file; only rows and cells that hold something."""
    merged: list[Range] = field(default_factory=list)
    formulas_without_value: list[str] = field(default_factory=list)
    """References of formulas whose result was never stored."""


class CellReader:
    """Reads the worksheets of one workbook."""

    def __init__(self, package: OfficePackage, main: str, *, dates_from_1904: bool) -> None:
        self._package = package
        self._dates_from_1904 = dates_from_1904
        self._shared: list[str] = []
        for part in package.related(main, "sharedStrings")[:1]:
            self._shared = [_rich_text(item) for item in _stream(package, part, "{*}si")]
        styles = package.related(main, "styles")[:1]
        self._general = _Format("General")
        self._formats = [_Format(code) for code in _format_codes(package.xml(styles[0]))] if styles else []

    def read(self, part: str) -> SheetCells:
        """All cells of a worksheet. Memory goes with the cells that hold something, not with the size of the sheet."""
        sheet = SheetCells()
        number = 0
        for element in _stream(self._package, part, "{*}row", "{*}mergeCell"):
            if element.tag.endswith("}mergeCell"):
                merged = Range.parse(element.get("ref", ""))
                if merged is not None:
                    sheet.merged.append(merged)
                continue
            number = to_int(element.get("r"), number + 1)
            cells = self._row(element, sheet) if len(element) else None
            if cells and 0 < number <= MAX_ROW:
                sheet.rows.setdefault(number, {}).update(cells)
        return sheet

    def _row(self, row: etree._Element, sheet: SheetCells) -> dict[int, Cell]:
        cells: dict[int, Cell] = {}
        column = 0
        for element in row:
            reference = element.get("r", "")
            place = parse_reference(reference)
            column = place[1] if place else column + 1
            # A loop over the children, not `find`, which parses its path for every cell.
            parts = {local_name(child): child for child in element}
            cell = self._cell(element, parts)
            if cell is not None and column <= MAX_COLUMN:
                cells[column] = cell
            elif "f" in parts and "v" not in parts:
                sheet.formulas_without_value.append(reference or "?")
        return cells

    def _cell(self, element: etree._Element, parts: Mapping[str, etree._Element]) -> Cell | None:
        kind = element.get("t", "n")
        if kind == "inlineStr":
            return _text_cell(_rich_text(parts["is"])) if "is" in parts else None
        value = parts["v"].text if "v" in parts else None
        if not value:
            return None
        match kind:
            case "s":
                index = to_int(value, -1)
                return _text_cell(self._shared[index]) if 0 <= index < len(self._shared) else None
            case "b":
                return Cell("TRUE" if value == "1" else "FALSE", CellKind.NUMBER)
            case "n":
                return self._number(value, to_int(element.get("s"), 0))
            case "d":
                return Cell(value.removesuffix("T00:00:00"), CellKind.DATE)
            case _:
                return _text_cell(_unescaped(value))

    def _number(self, value: str, style: int) -> Cell | None:
        try:
            number = float(value)
        except ValueError:
            return _text_cell(value)
        shown = self._formats[style] if 0 <= style < len(self._formats) else self._general
        if shown.is_date:
            text = shown.date_text(number, from_1904=self._dates_from_1904)
            if text is not None:
                return Cell(text, CellKind.DATE)
        if shown.is_percent:
            return Cell(f"{number * 100:.12g}%", CellKind.NUMBER)
        text = number_text(number)
        is_year = number.is_integer() and 1900 <= number <= 2100
        return Cell(text, CellKind.YEAR if is_year else CellKind.NUMBER)


class _Format:
    """A number format, as far as it changes what a value means."""

    def __init__(self, code: str) -> None:
        from openpyxl.styles.numbers import is_date_format, is_timedelta_format

        self.is_date = bool(is_date_format(code))
        self._is_duration = bool(is_timedelta_format(code))
        plain = _outside_quotes(code).lower()
        self.is_percent = "%" in plain and not self.is_date
        self._has_time = "h" in plain or "s" in plain
        self._known: dict[float, str | None] = {}

    def date_text(self, number: float, *, from_1904: bool) -> str | None:
        """ISO date, time or both; hours:minutes:seconds for durations; None for serial numbers that are no date."""
        if number not in self._known:
            if len(self._known) >= REMEMBERED_DATES:
                self._known.clear()
            self._known[number] = self._convert(number, from_1904=from_1904)
        return self._known[number]

    def _convert(self, number: float, *, from_1904: bool) -> str | None:
        from openpyxl.utils.datetime import MAC_EPOCH, WINDOWS_EPOCH, from_excel

        try:
            moment = from_excel(number, epoch=MAC_EPOCH if from_1904 else WINDOWS_EPOCH, timedelta=self._is_duration)
        except (ValueError, OverflowError):
            return None
        if isinstance(moment, timedelta):
            seconds = round(moment.total_seconds())
            return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
        if isinstance(moment, time):
            return moment.isoformat(timespec="seconds")
        if isinstance(moment, datetime):
            moment = (moment + timedelta(microseconds=500_000)).replace(microsecond=0)
            return (
                moment.isoformat(sep=" ") if self._has_time and moment.time() != time() else moment.date().isoformat()
            )
        return moment.isoformat() if isinstance(moment, date) else None


def number_text(number: float) -> str:
    """A number with the 15 digits that Excel keeps, without exponent up to 1e15 and without a trailing `.0`."""
    return str(int(number)) if number.is_integer() and abs(number) < 1e16 else f"{number:.15g}"


def parse_reference(reference: str) -> tuple[int, int] | None:
    """Row and column (from 1) of a reference such as `BC12`; None if it is malformed."""
    letters = reference.rstrip("0123456789")
    digits = reference[len(letters) :]
    if not digits or not letters.isascii() or not letters.isalpha() or len(letters) > 3:
        return None
    column = 0
    for letter in letters.upper():
        column = column * 26 + ord(letter) - ord("A") + 1
    return int(digits), column


def column_letters(column: int) -> str:
    """`BC` for 55."""
    letters = ""
    while column:
        column, rest = divmod(column - 1, 26)
        letters = chr(ord("A") + rest) + letters
    return letters


def _text_cell(text: str) -> Cell | None:
    return Cell(text.strip(), CellKind.TEXT) if text.strip() else None


def _rich_text(item: etree._Element) -> str:
    """Text of a string item: its own or that of its runs, without phonetic guides."""
    pieces = []
    for child in item:
        name = local_name(child)
        if name == "t":
            pieces.append(child.text or "")
        elif name == "r":
            pieces.append(child.findtext("{*}t") or "")
    return _unescaped("".join(pieces))


def _unescaped(text: str) -> str:
    """Undo `_x000D_` escapes."""
    if "_x" not in text:
        return text
    from openpyxl.utils.escape import unescape

    return str(unescape(text))


def _outside_quotes(code: str) -> str:
    return "".join(code.split('"')[::2])


def _format_codes(styles: etree._Element) -> list[str]:
    """Number format code of each cell style."""
    from openpyxl.styles.numbers import BUILTIN_FORMATS

    codes = dict(BUILTIN_FORMATS)
    for element in styles.iterfind("{*}numFmts/{*}numFmt"):
        codes[to_int(element.get("numFmtId"), -1)] = element.get("formatCode", "General")
    return [codes.get(to_int(style.get("numFmtId"), 0), "General") for style in styles.iterfind("{*}cellXfs/{*}xf")]


def _stream(package: OfficePackage, part: str, *tags: str) -> Iterator[etree._Element]:
    """Elements with these tags as they end; each is emptied afterwards, so memory stays flat."""
    with package.stream(part) as source:
        for _, element in etree.iterparse(source, events=("end",), tag=tags, resolve_entities=False, no_network=True):
            yield element
            element.clear()
            parent = element.getparent()
            while parent is not None and element.getprevious() is not None:
                del parent[0]
