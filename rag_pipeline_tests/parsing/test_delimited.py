import csv
import io
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rag_pipeline.core.parsed_document import BlockType
from rag_pipeline.errors import DocumentTooLargeError
from rag_pipeline.parsing.delimited import ROWS_PER_BLOCK, sniff
from rag_pipeline_tests.parsing.documents import only_block, parse_bytes, texts


def rows(folder: Path, content: bytes | str, name: str = "a.csv") -> list[tuple[str, ...]]:
    return [row for block in parse_bytes(folder, content, name).blocks for row in block.rows]


@pytest.mark.parametrize(
    ("content", "delimiter"),
    [
        ("a,b,c\n1,2,3\n", ","),
        ("a;b;c\nx;y;1,5\nz;w;2,25\n", ";"),
        ("a\tb\n1,5\t2\n", "\t"),
        ("a|b|c\n1|2,3|4\n", "|"),
        ('name,text\nx,"a;b;c;d"\ny,"e;f;g"\n', ","),
        ('a;b\n"line one\nline, two";2\n', ";"),
        ("a,b,c\n1,2\n1,2,3,4\n1,2,3\n", ","),
        ("one column\nof text\n", ","),
        ("", ","),
    ],
)
def test_delimiter_is_the_one_that_gives_even_rows(content: str, delimiter: str) -> None:
    assert sniff(content).delimiter == delimiter


def test_excel_names_the_delimiter_in_the_first_line(tmp_path: Path) -> None:
    assert rows(tmp_path, "sep=;\na,x;b\n1,5;2\n") == [("a,x", "b"), ("1,5", "2")]


def test_tabs_are_preferred_in_tsv(tmp_path: Path) -> None:
    assert rows(tmp_path, "a, b\tc\n1, 2\t3\n", "a.tsv") == [("a, b", "c"), ("1, 2", "3")]


def test_quoted_cells_keep_delimiters_quotes_and_line_breaks(tmp_path: Path) -> None:
    document = parse_bytes(tmp_path, 'a;b;c\n"line one\nline two";"say ""hi""";1,5\n', "a.csv")
    assert document.blocks[0].rows[1] == ("line one\nline two", 'say "hi"', "1,5")
    assert document.text.splitlines()[-1] == '| line one line two | say "hi" | 1,5 |'


def test_backslash_before_a_quote_is_understood(tmp_path: Path) -> None:
    assert rows(tmp_path, 'a,b\n"x \\" y",2\n') == [("a", "b"), ('x " y', "2")]


def test_quote_that_is_never_closed_swallows_nothing(tmp_path: Path) -> None:
    document = parse_bytes(tmp_path, 'a,b\n1,"oops\n2,x\n3,y\n', "a.csv")
    assert document.blocks[0].rows == (("a", "b"), ("1", '"oops'), ("2", "x"), ("3", "y"))
    assert "never closed" in document.warnings[0]


def test_ragged_rows_lose_nothing(tmp_path: Path) -> None:
    document = parse_bytes(tmp_path, "c1,c2\nv1,v2,extra-one,extra-two\nonly-a\n,\ntail,x\n", "a.csv")
    assert document.blocks[0].rows == (
        ("c1", "c2", "column 3", "column 4"),
        ("v1", "v2", "extra-one", "extra-two"),
        ("only-a", "", "", ""),
        ("tail", "x", "", ""),
    )
    assert "None" not in document.text


def test_column_names_are_unique_and_free_of_marks(tmp_path: Path) -> None:
    document = parse_bytes(tmp_path, b"\xef\xbb\xbfname,name,,id\nfirst,second,x,3\n", "a.csv")
    assert document.metadata["columns"] == ["name", "name (2)", "column 3", "id"]
    assert document.blocks[0].rows[1] == ("first", "second", "x", "3")


def test_numbers_keep_their_zeros(tmp_path: Path) -> None:
    assert rows(tmp_path, "Account,Routing\n0010,021000021\n")[1] == ("0010", "021000021")


def test_bar_inside_a_value_stays_searchable(tmp_path: Path) -> None:
    assert "Martin|Lang" in parse_bytes(tmp_path, "id,name\n1,Martin|Lang\n", "a.csv").text


def test_title_lines_above_the_header_are_paragraphs(tmp_path: Path) -> None:
    document = parse_bytes(tmp_path, "Stanley Cups,,\nTeam,Location,Cups\nBlues,STL,1\n", "a.csv")
    assert texts(document, BlockType.PARAGRAPH) == ["Stanley Cups"]
    assert document.metadata["columns"] == ["Team", "Location", "Cups"]
    assert only_block(document, BlockType.TABLE).metadata == {"rows": "3-3"}


def test_long_tables_repeat_the_header_in_each_block(tmp_path: Path) -> None:
    content = "id,name\n" + "".join(f"{number},n{number}\n" for number in range(ROWS_PER_BLOCK + 1))
    document = parse_bytes(tmp_path, content, "a.csv")
    assert [block.rows[0] for block in document.blocks] == [("id", "name")] * 2
    assert [block.metadata["rows"] for block in document.blocks] == ["2-501", "502-502"]
    assert document.metadata["row_count"] == ROWS_PER_BLOCK + 1


def test_rows_that_are_passages_become_records(tmp_path: Path) -> None:
    answer = "Long answer. " * 60
    document = parse_bytes(tmp_path, f"question,answer\nWhy?,{answer}\nHow?,{answer}\n", "faq.csv")
    assert [block.type for block in document.blocks] == [BlockType.RECORD] * 2
    assert document.block_text(document.blocks[1]).startswith("question: How?\nanswer: Long answer.")
    assert document.blocks[1].metadata == {"row": "3"}
    assert document.blocks[1].rows[0] == ("question", "answer")


def test_header_alone_is_a_table(tmp_path: Path) -> None:
    assert rows(tmp_path, "a,b,c\n") == [("a", "b", "c")]


def test_single_column_is_text(tmp_path: Path) -> None:
    document = parse_bytes(tmp_path, "line one\nline two\n", "a.csv")
    assert document.text == "line one\nline two\n"


def test_absurdly_wide_row_is_too_large(tmp_path: Path) -> None:
    with pytest.raises(DocumentTooLargeError, match="columns"):
        parse_bytes(tmp_path, "a,b\n" + "," * 20_000 + "x\n", "a.csv")


CELLS = st.text(st.sampled_from("ab ,;|\t\"'\n0字"), max_size=6)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(table=st.lists(st.lists(CELLS, min_size=4, max_size=4), min_size=1, max_size=5))
def test_no_value_is_ever_lost(tmp_path: Path, table: list[list[str]]) -> None:
    written = io.StringIO()
    csv.writer(written, quoting=csv.QUOTE_ALL).writerows([["first name", "second", "third", "fourth"], *table])
    found = "".join(cell for row in rows(tmp_path, written.getvalue()) for cell in row)
    for row in table:
        for cell in row:
            assert "".join(cell.split()) in "".join(found.split())
