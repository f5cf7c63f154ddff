from datetime import date, datetime, time, timedelta
from pathlib import Path
from typing import Any

import pytest
from openpyxl import Workbook
from openpyxl.comments import Comment
from openpyxl.worksheet.table import Table

from rag_pipeline.core.parsed_document import Block, BlockType, ParsedDocument
from rag_pipeline.core.ports import ParseRequest
from rag_pipeline.errors import CorruptDocumentError, UnsupportedFormatError
from rag_pipeline.parsing.office.xlsx import XlsxParser
from rag_pipeline.parsing.office.xlsx_cells import column_letters, number_text, parse_reference
from rag_pipeline_tests.parsing.office.packages import relationships, rewrite, write_package

SHEET = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"


def workbook(*rows: list[Any], sheet: str = "Data") -> tuple[Workbook, Any]:
    book = Workbook()
    page: Any = book.active
    page.title = sheet
    for row in rows:
        page.append(row)
    return book, page


def save(book: Workbook, folder: Path) -> ParseRequest:
    path = folder / "book.xlsx"
    book.save(path)
    return ParseRequest(path=path, file_name="book.xlsx")


def parse(request: ParseRequest) -> ParsedDocument:
    return XlsxParser().parse(request)


def tables(document: ParsedDocument) -> list[Block]:
    return [block for block in document.blocks if block.type is BlockType.TABLE]


def raw_workbook(folder: Path, sheet_data: str) -> ParseRequest:
    """A workbook whose only sheet holds this XML, for what no writer produces."""
    return write_package(
        folder / "book.xlsx",
        {
            "_rels/.rels": relationships(("a", "officeDocument", "xl/workbook.xml")),
            "xl/workbook.xml": f'<workbook xmlns="{SHEET}" xmlns:r="http://schemas.openxmlformats.org/officeDocument/'
            '2006/relationships"><sheets><sheet name="S" sheetId="1" r:id="s"/></sheets></workbook>',
            "xl/_rels/workbook.xml.rels": relationships(("s", "worksheet", "worksheets/sheet1.xml")),
            "xl/worksheets/sheet1.xml": f'<worksheet xmlns="{SHEET}">{sheet_data}</worksheet>',
        },
    )


def inline(reference: str, text: str) -> str:
    return f'<c r="{reference}" t="inlineStr"><is><t>{text}</t></is></c>'


def test_a_sheet_is_a_heading_and_a_table_with_header(tmp_path: Path) -> None:
    book, _ = workbook(["Item", "Price"], ["Desk", 120], ["Lamp", 30.5], sheet="Prices")
    document = parse(save(book, tmp_path))
    assert document.text == "Prices\n\n| Item | Price |\n| --- | --- |\n| Desk | 120 |\n| Lamp | 30.5 |"
    heading, table = document.blocks
    assert (heading.type, heading.level) == (BlockType.HEADING, 1)
    assert table.rows == (("Item", "Price"), ("Desk", "120"), ("Lamp", "30.5"))
    assert table.heading_path == ("Prices",)
    assert table.metadata == {"sheet": "Prices", "row": "1", "range": "A1:B3"}
    assert document.metadata["sheets"] == ["Prices"]


@pytest.mark.parametrize(
    ("value", "number_format", "text"),
    [
        pytest.param(date(2024, 3, 1), "dd/mm/yyyy", "2024-03-01", id="date"),
        pytest.param(datetime(2024, 3, 1, 14, 30), "d.m.yy h:mm", "2024-03-01 14:30:00", id="date-and-time"),  # noqa: DTZ001
        pytest.param(time(9, 5), "hh:mm", "09:05:00", id="time"),
        pytest.param(timedelta(hours=30, minutes=5), "[h]:mm:ss", "30:05:00", id="duration"),
        pytest.param(0.256, "0%", "25.6%", id="percent"),
        pytest.param(4200.5, '"$"#,##0.00', "4200.5", id="currency"),
        pytest.param(0.1 + 0.2, "General", "0.3", id="binary-fraction"),
        pytest.param(1234567890123450, "General", "1234567890123450", id="many-digits"),
        pytest.param(1e-7, "General", "1e-07", id="tiny"),
        pytest.param(-5.0, "General", "-5", id="whole-number"),
        pytest.param(True, "General", "TRUE", id="boolean"),
        pytest.param("  a | b\nc ", "General", "a | b\nc", id="text"),
        pytest.param("=1/0", "General", None, id="formula-without-result"),
        pytest.param(99_999_999, "yyyy-mm-dd", "99999999", id="no-date-in-a-date-format"),
    ],
)
def test_values_are_shown_as_a_person_reads_them(
    tmp_path: Path, value: object, number_format: str, text: str | None
) -> None:
    book, page = workbook(["Label", "Value"], ["x", value])
    page["B2"].number_format = number_format
    (table,) = tables(parse(save(book, tmp_path)))
    assert table.rows[1] == (("x", text) if text is not None else ("x", ""))


def test_dates_counted_from_1904(tmp_path: Path) -> None:
    book, _ = workbook(["When", "What"], [date(2024, 3, 1), "launch"])
    book.epoch = datetime(1904, 1, 1)  # noqa: DTZ001 - what the library wants
    (table,) = tables(parse(save(book, tmp_path)))
    assert table.rows[1] == ("2024-03-01", "launch")


def test_formulas_give_their_stored_result_and_missing_ones_are_reported(tmp_path: Path) -> None:
    row = (
        f'<row r="1">{inline("A1", "Sum")}<c r="B1"><f>2+2</f><v>4</v></c><c r="C1"><f>9+9</f></c>'
        '<c r="D1" t="str"><f>A1</f><v>Sum</v></c><c r="E1" t="e"><f>1/0</f><v>#DIV/0!</v></c></row>'
    )
    document = parse(raw_workbook(tmp_path, f"<sheetData>{row}</sheetData>"))
    assert tables(document)[0].rows[1] == ("Sum", "4", "Sum", "#DIV/0!")
    assert "9+9" not in document.text
    (warning,) = document.warnings
    assert warning.startswith("sheet S: 1 formula(s) have no stored result (in C1)")


def test_merged_labels_stand_in_every_row_and_a_header_of_two_rows_becomes_one(tmp_path: Path) -> None:
    book, page = workbook(
        ["Region", "Fruit", "Q1", None],
        [None, None, "Jan", "Feb"],
        ["North", "Apple", 110, 210],
        [None, "Olive", 120, 220],
        ["South", "Fig", 140, 240],
    )
    for area in ("A1:A2", "B1:B2", "C1:D1", "A3:A4"):
        page.merge_cells(area)
    (table,) = tables(parse(save(book, tmp_path)))
    assert table.rows == (
        ("Region", "Fruit", "Q1 / Jan", "Q1 / Feb"),
        ("North", "Apple", "110", "210"),
        ("North", "Olive", "120", "220"),
        ("South", "Fig", "140", "240"),
    )


def test_hidden_sheets_are_read_and_flagged(tmp_path: Path) -> None:
    book, _ = workbook(["shown"])
    hidden = book.create_sheet("Secret")
    hidden.append(["concealed"])
    hidden.sheet_state = "veryHidden"
    document = parse(save(book, tmp_path))
    assert document.metadata["sheets"] == ["Data", "Secret"]
    assert document.metadata["hidden_sheets"] == ["Secret"]
    assert "hidden sheets are included: Secret" in document.warnings
    assert [block.metadata.get("hidden") for block in document.blocks] == [None, None, "true", "true"]


def test_empty_sheets_leave_no_heading(tmp_path: Path) -> None:
    book, _ = workbook()
    document = parse(save(book, tmp_path))
    assert not document.has_content
    assert document.warnings == ("the workbook holds no text",)


def test_titles_notes_and_several_tables_on_a_sheet(tmp_path: Path) -> None:
    book, _ = workbook(
        ["Sales by year"],
        ["Year", "Units"],
        [2023, 150],
        [],
        ["City", "Staff"],
        ["Bonn", 7],
        [],
        ["All figures are rounded."],
    )
    document = parse(save(book, tmp_path))
    assert [(block.type, block.rows) for block in document.blocks[1:]] == [
        (BlockType.CAPTION, ()),
        (BlockType.TABLE, (("Year", "Units"), ("2023", "150"))),
        (BlockType.TABLE, (("City", "Staff"), ("Bonn", "7"))),
        (BlockType.PARAGRAPH, ()),
    ]


def test_a_table_goes_on_after_an_empty_row(tmp_path: Path) -> None:
    book, _ = workbook(["City", "Staff"], ["Bonn", 7], [], ["Kiel", 9])
    (table,) = tables(parse(save(book, tmp_path)))
    assert table.rows == (("City", "Staff"), ("Bonn", "7"), ("Kiel", "9"))


@pytest.mark.parametrize(
    ("first", "second", "has_header"),
    [
        pytest.param(["Metric", 2023, 2024], ["Sales", 5, 6], True, id="years-are-titles"),
        pytest.param(["Metric", date(2024, 1, 1)], ["Sales", 6], True, id="dates-over-numbers-are-titles"),
        pytest.param(["start", date(2024, 1, 1)], ["end", date(2024, 2, 1)], False, id="dates-over-dates-are-values"),
        pytest.param(["alpha", 5], ["beta", 10], False, id="numbers-are-values"),
        pytest.param([1, 2], [3, 4], False, id="only-numbers"),
    ],
)
def test_the_first_row_is_a_header_only_when_it_reads_like_one(
    tmp_path: Path, first: list[Any], second: list[Any], has_header: bool
) -> None:
    book, _ = workbook(first, second)
    (table,) = tables(parse(save(book, tmp_path)))
    assert any(table.rows[0]) is has_header
    assert len(table.rows) == (2 if has_header else 3)


def test_a_formatted_table_tells_its_header(tmp_path: Path) -> None:
    book, page = workbook(["7", "8"], ["a", "b"])
    page.add_table(Table(displayName="T", ref="A1:B2"))
    (table,) = tables(parse(save(book, tmp_path)))
    assert table.rows == (("7", "8"), ("a", "b"))


def test_a_label_and_its_value_stay_on_one_row_across_an_empty_column(tmp_path: Path) -> None:
    book, _ = workbook(["Name", None, "Ada"], ["Role", None, "Engineer"])
    assert "| Role | Engineer |" in parse(save(book, tmp_path)).text


@pytest.mark.parametrize(
    "extra",
    [
        pytest.param('<row r="1048576"><c r="XFD1048576" s="1"/></row>', id="styled-last-cell"),
        pytest.param("".join(f'<row r="{row}" s="1"/>' for row in range(3, 20_000)), id="many-empty-rows"),
        pytest.param("<row/>" * 20_000, id="rows-without-number"),
    ],
)
def test_empty_rows_cost_nothing(tmp_path: Path, extra: str) -> None:
    rows = f'<row r="1">{inline("A1", "Item")}{inline("B1", "Colour")}</row><row r="2">{inline("A2", "Desk")}</row>'
    sheet = f'<dimension ref="A1:XFD1048576"/><sheetData>{rows}{extra}</sheetData>'
    document = parse(raw_workbook(tmp_path, sheet))
    assert document.text == "S\n\n| Item | Colour |\n| --- | --- |\n| Desk |  |"


def test_a_value_in_the_last_cell_of_the_sheet_costs_no_more_than_its_row(tmp_path: Path) -> None:
    rows = f'<row r="1">{inline("A1", "first")}</row><row r="1048576">{inline("XFD1048576", "last")}</row>'
    document = parse(raw_workbook(tmp_path, f"<sheetData>{rows}</sheetData>"))
    assert [document.block_text(block) for block in document.blocks] == ["S", "first", "last"]


def test_a_merge_over_a_million_rows_fills_only_filled_rows(tmp_path: Path) -> None:
    rows = "".join(f'<row r="{row}">{inline(f"B{row}", "x")}</row>' for row in (1, 5)) + (
        f'<row r="9">{inline("A9", "end")}{inline("B9", "y")}</row>'
    )
    rows = rows.replace('<row r="1">', f'<row r="1">{inline("A1", "all")}')
    merges = '<mergeCells count="1"><mergeCell ref="A1:A1048576"/></mergeCells>'
    document = parse(raw_workbook(tmp_path, f"<sheetData>{rows}</sheetData>{merges}"))
    assert [row for table in tables(document) for row in table.rows if any(row)] == [
        ("all", "x"), ("all", "x"), ("end", "y"),
    ]  # fmt: skip


def test_rich_text_and_escapes_in_shared_strings(tmp_path: Path) -> None:
    item = "<si><r><t>rich </t></r><r><t>text_x0041_</t></r><rPh><t>phonetic</t></rPh></si>"
    row = '<row r="1"><c r="A1" t="s"><v>0</v></c><c r="B1" t="s"><v>99</v></c></row>'
    request = rewrite(
        raw_workbook(tmp_path, f"<sheetData>{row}</sheetData>"),
        {
            "xl/_rels/workbook.xml.rels": relationships(
                ("s", "worksheet", "worksheets/sheet1.xml"), ("t", "sharedStrings", "sharedStrings.xml")
            ).encode(),
            "xl/sharedStrings.xml": f'<sst xmlns="{SHEET}">{item}</sst>'.encode(),
        },
    )
    assert parse(request).text == "S\n\nrich textA"


def test_comments_are_annotations_with_their_cell(tmp_path: Path) -> None:
    book, page = workbook(["Item", "Price"], ["Desk", 120])
    page["B2"].comment = Comment("Ask for a discount", "Ada")
    document = parse(save(book, tmp_path))
    last = document.blocks[-1]
    assert (last.type, document.block_text(last), last.metadata["cell"]) == (
        BlockType.ANNOTATION,
        "Ask for a discount",
        "B2",
    )


def test_a_sheet_that_is_not_xml_is_corrupt(tmp_path: Path) -> None:
    book, _ = workbook(["x"])
    with pytest.raises(CorruptDocumentError, match="save it again"):
        parse(rewrite(save(book, tmp_path), {"xl/worksheets/sheet1.xml": b"<worksheet><sheetData><row>"}))


def test_a_malformed_filter_does_not_matter(tmp_path: Path) -> None:
    request = raw_workbook(
        tmp_path,
        f'<sheetData><row r="1">{inline("A1", "read")}</row></sheetData>'
        '<autoFilter ref="A1:B1"><filterColumn colId="0"><customFilters><customFilter operator="notAnOperator"/>'
        "</customFilters></filterColumn></autoFilter>",
    )
    assert parse(request).text == "S\n\nread"


def test_a_binary_workbook_is_unsupported(tmp_path: Path) -> None:
    request = write_package(
        tmp_path / "book.xlsx",
        {"_rels/.rels": relationships(("a", "officeDocument", "xl/workbook.bin")), "xl/workbook.bin": b"\x83\x01"},
    )
    with pytest.raises(UnsupportedFormatError, match=r"save it as \.xlsx"):
        parse(request)


@pytest.mark.parametrize(
    ("reference", "place"),
    [("A1", (1, 1)), ("BC12", (12, 55)), ("XFD1048576", (1_048_576, 16_384)), ("12", None), ("A", None), ("ÄB1", None)],
)
def test_cell_references(reference: str, place: tuple[int, int] | None) -> None:
    assert parse_reference(reference) == place
    if place is not None:
        assert f"{column_letters(place[1])}{place[0]}" == reference


@pytest.mark.parametrize(("number", "text"), [(1e15, "1000000000000000"), (1e300, "1e+300"), (2.5, "2.5")])
def test_numbers_without_noise(number: float, text: str) -> None:
    assert number_text(number) == text
