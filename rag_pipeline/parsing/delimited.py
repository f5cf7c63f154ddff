"""Delimited text (csv, tsv): rows stay next to their column names.

Rows of usual length become Markdown tables of `ROWS_PER_BLOCK` rows, whose header the chunker repeats; rows that are
passages by themselves (a question and its answer) become records, one "column: value" line per cell.
"""

import csv
import io
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import PurePath
from typing import ClassVar

from rag_pipeline.core.parsed_document import BlockType, DocumentBuilder, ParsedDocument, is_blank
from rag_pipeline.core.ports import ParseRequest
from rag_pipeline.errors import DocumentTooLargeError
from rag_pipeline.parsing.encoding import read_text
from rag_pipeline.parsing.parser import Parser
from rag_pipeline.parsing.tables import MAX_COLUMNS, markdown_table
from rag_pipeline.parsing.text import add_paragraphs, new_builder

ROWS_PER_BLOCK = 500
"""Rows of one TABLE block; each block has the header again."""
RECORD_CHARACTERS = 400
"""Rows longer than this on average become records: few of them fit into a chunk, and a table would only blur them."""

_DELIMITERS = ",;\t|"
_SAMPLE_CHARACTERS = 65_536
_SAMPLE_ROWS = 200
_MAX_PREAMBLE_ROWS = 5
_BETWEEN_CELLS = re.compile(r'"\s*[,;\t|]\s*"')
"""Two quotes around another delimiter inside a cell: that delimiter is the real one."""
_SENTINEL = "end-of-file-4f1c"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How the cells of a file are separated and quoted."""

    delimiter: str
    is_quoted: bool = True
    """Whether `"` encloses cells; False where quotes are never closed."""
    escape: str | None = None
    """The character before a quote inside a quoted cell; None: the quote is doubled."""


class DelimitedParser(Parser):
    """csv, tsv and whatever else is separated by comma, semicolon, tab or bar."""

    name: ClassVar[str] = "delimited"
    version: ClassVar[str] = "1"

    def parse(self, request: ParseRequest) -> ParsedDocument:
        """Parse the file at `request.path`; the document's text is the table in Markdown or the records."""
        decoded = read_text(request)
        builder = new_builder(self, decoded)
        text, dialect = _declared_dialect(decoded.text)
        dialect = dialect or sniff(text, is_tabbed=PurePath(request.file_name).suffix.lower() in {".tsv", ".tab"})
        rows = list(_read(text, dialect))
        if rows and rows[-1] == [_SENTINEL]:
            rows.pop()
        else:
            builder.warn('a quote (") is never closed: quotes were read as ordinary characters')
            dialect = Dialect(delimiter=dialect.delimiter, is_quoted=False)
            rows = [row for row in _read(text, dialect) if row != [_SENTINEL]]
        rows = [row for row in (_trim(row) for row in rows) if row]
        builder.metadata["delimiter"] = dialect.delimiter
        if max(map(len, rows), default=0) > MAX_COLUMNS:
            raise DocumentTooLargeError(f"a row has more than {MAX_COLUMNS:,} columns: split the table")
        if max(map(len, rows), default=0) <= 1:
            add_paragraphs(builder, text)
        else:
            _add_table(builder, rows)
        if is_blank(decoded.text):
            builder.warn("the file holds no visible text")
        return builder.build()


def sniff(text: str, *, is_tabbed: bool = False) -> Dialect:
    """The dialect under which most rows of the beginning have the same number of cells, more than one.

    The standard library's sniffer guesses letters as delimiters and gives up on ragged rows; this one reads the sample
    with each delimiter.
    """
    sample = text[:_SAMPLE_CHARACTERS]
    escape = "\\" if '\\"' in sample and '""' not in sample else None
    best, best_score = Dialect(delimiter="\t" if is_tabbed else ",", escape=escape), 0.0
    for delimiter in _DELIMITERS:
        dialect = Dialect(delimiter=delimiter, escape=escape)
        score = _consistency(list(islice(_read(sample, dialect), _SAMPLE_ROWS)))
        if is_tabbed and delimiter == "\t":
            score *= 10
        if score > best_score:
            best, best_score = dialect, score
    return best


def _consistency(rows: list[list[str]]) -> float:
    """Share of rows with the commonest number of cells, more for more cells; 0 if that number is one."""
    rows = [row for row in rows if row and row != [_SENTINEL]]
    widths = [len(row) for row in rows]
    if not widths:
        return 0.0
    counts = Counter(widths)
    width = max(counts, key=lambda width: (counts[width], width))
    share = counts[width] / len(widths)
    wider = {other: count for other, count in counts.items() if other > 1}
    if width == 1 and wider:
        width = max(wider, key=lambda width: (wider[width], width))
        share = wider[width] / len(widths) / 2
    share *= 1 - sum(any(_BETWEEN_CELLS.search(cell) for cell in row) for row in rows) / len(rows) / 2
    return share * (1 + min(width - 1, 50) / 50) if width > 1 else 0.0


def _declared_dialect(text: str) -> tuple[str, Dialect | None]:
    """Excel's first line `sep=;`, taken off the text."""
    first, _, rest = text.partition("\n")
    first = first.strip()
    if len(first) == 5 and first.lower().startswith("sep="):
        return rest, Dialect(delimiter=first[-1])
    return text, None


def _read(text: str, dialect: Dialect) -> Iterator[list[str]]:
    """Rows, then the sentinel, which is swallowed by a quote that is never closed."""
    csv.field_size_limit(2**31 - 1)
    end = "" if not text or text.endswith(("\n", "\r")) else "\n"
    return csv.reader(
        io.StringIO(f"{text}{end}{_SENTINEL}\n", newline=""),
        delimiter=dialect.delimiter,
        quoting=csv.QUOTE_MINIMAL if dialect.is_quoted else csv.QUOTE_NONE,
        escapechar=dialect.escape,
        doublequote=dialect.escape is None,
        skipinitialspace=dialect.delimiter != "\t",
    )


def _trim(row: list[str]) -> list[str]:
    """Cells without the white space around them; a row of blanks is empty."""
    cells = [cell.strip() for cell in row]
    return cells if any(cells) else []


def _add_table(builder: DocumentBuilder, rows: list[list[str]]) -> None:
    preamble = _preamble_rows(rows)
    for row in rows[:preamble]:
        builder.add_block(BlockType.PARAGRAPH, " ".join(cell for cell in row if cell))
    width = max(len(row) for row in rows[preamble:])
    header = [*rows[preamble], *(f"column {number}" for number in range(len(rows[preamble]) + 1, width + 1))]
    columns = _unique(header)
    body = rows[preamble + 1 :]
    builder.metadata["columns"] = columns
    builder.metadata["row_count"] = len(body)
    characters = sum(len(cell) for row in body for cell in row)
    if body and characters / len(body) > RECORD_CHARACTERS:
        _add_records(builder, columns, body, first_row=preamble + 2)
        return
    for start in range(0, max(len(body), 1), ROWS_PER_BLOCK):
        group = [[*row, *[""] * (width - len(row))] for row in body[start : start + ROWS_PER_BLOCK]]
        first = preamble + 2 + start
        metadata = {"rows": f"{first}-{first + len(group) - 1}"} if group else {}
        table = [header, *group]
        # A bar inside a value stays as it is: people search for the value, and the exact cells are in `rows`.
        text = markdown_table(table).replace("\\|", "|")
        builder.add_block(BlockType.TABLE, text, rows=table, metadata=metadata)


def _add_records(builder: DocumentBuilder, columns: Sequence[str], body: list[list[str]], *, first_row: int) -> None:
    for number, row in enumerate(body, start=first_row):
        pairs = [(column, cell) for column, cell in zip(columns, row, strict=False) if cell]
        builder.add_block(
            BlockType.RECORD,
            "\n".join(f"{column}: {cell}" for column, cell in pairs),
            rows=[columns, [*row, *[""] * (len(columns) - len(row))]],
            metadata={"row": str(number)},
        )


def _preamble_rows(rows: list[list[str]]) -> int:
    """Title lines above the header: rows with one filled cell, before rows with several."""
    for count, row in enumerate(rows[: _MAX_PREAMBLE_ROWS + 1]):
        if sum(bool(cell) for cell in row) > 1:
            return count
    return 0


def _unique(header: Sequence[str]) -> list[str]:
    """Column names, each once: blank ones by number, repeated ones with a counter."""
    names: list[str] = []
    seen: Counter[str] = Counter()
    for number, cell in enumerate(header, start=1):
        name = " ".join(cell.split()) or f"column {number}"
        seen[name] += 1
        names.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return names
