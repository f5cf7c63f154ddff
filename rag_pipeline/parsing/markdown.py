"""Markdown: the text is the source as it is; markdown-it-py says which lines are which block.

Front matter is a gap whose values are metadata; marks of headings are gaps; everything else a reader would see is in
a block, marks of lists, fences and quotes included.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import ClassVar

from markdown_it import MarkdownIt
from markdown_it.token import Token

from rag_pipeline.core.parsed_document import BlockType, DocumentBuilder, ParsedDocument, is_blank
from rag_pipeline.core.ports import ParseRequest
from rag_pipeline.errors import InvalidDocumentError
from rag_pipeline.parsing.encoding import read_text
from rag_pipeline.parsing.parser import Parser
from rag_pipeline.parsing.text import new_builder

_FRONT_MATTER = re.compile(r"---[ \t]*(?:\r\n|\n|\r)(.*?)(?:\r\n|\n|\r)(?:---|\.\.\.)[ \t]*(?:\r\n|\n|\r|$)", re.DOTALL)
_LINE_END = re.compile(r"\r\n|\n|\r")
_HEADING_MARKS = re.compile(r"[ \t]*(#{1,6})[ \t]+")
_CLOSING_MARKS = re.compile(r"(?:^|[ \t])#+[ \t]*$")
_HTML_BREAK = re.compile(r"<br\b", re.IGNORECASE)
_RULE = re.compile(r"[ \t>]*(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Leaf:
    """A block without blocks inside, by its source lines."""

    type: BlockType
    first_line: int
    end_line: int
    """Line after the last."""
    level: int | None = None
    inline: str = ""
    """Inline source of a heading."""
    rows: tuple[tuple[str, ...], ...] = ()
    metadata: dict[str, str] = field(default_factory=dict)
    is_hidden: bool = False
    """Comments and scripts: no reader sees them."""


class MarkdownParser(Parser):
    """CommonMark with GitHub tables and front matter."""

    name: ClassVar[str] = "markdown"
    version: ClassVar[str] = "1"

    def parse(self, request: ParseRequest) -> ParsedDocument:
        """Parse the file at `request.path`; the document's text is the decoded file, character for character."""
        decoded = read_text(request)
        builder = new_builder(self, decoded)
        body = _read_front_matter(builder, decoded.text)
        builder.add_gap(decoded.text[:body])
        first_heading = _Reader(decoded.text[body:]).add_to(builder)
        if first_heading:
            builder.metadata.setdefault("title", first_heading)
        if is_blank(decoded.text):
            builder.warn("the file holds no visible text")
        return builder.build()


def _read_front_matter(builder: DocumentBuilder, text: str) -> int:
    """Put the front matter into the metadata; return where the body begins."""
    match = _FRONT_MATTER.match(text)
    if match is None:
        return 0
    from rag_pipeline.parsing.structured import load_yaml_values

    try:
        values = load_yaml_values(match.group(1))
    except InvalidDocumentError as error:
        builder.warn(f"the front matter is not valid YAML and was read as text: {error}")
        return 0
    if len(values) != 1 or not isinstance(values[0], dict):
        return 0
    builder.metadata["front_matter"] = values[0]
    for key in ("title", "author", "date", "language", "lang"):
        value = values[0].get(key)
        if isinstance(value, str):
            builder.metadata["language" if key == "lang" else key] = value
    return match.end()


class _Reader:
    """Walks the tokens of one document."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._starts = [0, *(match.end() for match in _LINE_END.finditer(text))]
        self._environment: dict[str, object] = {}
        self._first_heading = ""
        self._position = 0

    def add_to(self, builder: DocumentBuilder) -> str:
        """Add every block, and what no block covers as gaps or paragraphs; return the first heading."""
        tokens = _block_grammar().parse(self._text, self._environment)
        line = 0
        for leaf in _merge_table_headers(list(_leaves(tokens)), self._line):
            self._add_uncovered(builder, line, leaf.first_line)
            self._add_leaf(builder, leaf)
            line = max(line, leaf.end_line)
        self._add_uncovered(builder, line, len(self._starts))
        builder.add_gap(self._text[self._position :])
        return self._first_heading

    def _line(self, number: int) -> str:
        return self._text[self._start(number) : self._start(number + 1)].rstrip("\r\n")

    def _start(self, line: int) -> int:
        return self._starts[line] if line < len(self._starts) else len(self._text)

    def _add_uncovered(self, builder: DocumentBuilder, first: int, end: int) -> None:
        """Lines that render to nothing (link definitions) are kept searchable; rules and blank lines are gaps."""
        for number in range(first, end):
            line = self._line(number)
            if not is_blank(line) and not _RULE.fullmatch(line) and re.search(r"\w", line):
                self._add_span(builder, BlockType.PARAGRAPH, self._start(number), self._start(number + 1))

    def _add_leaf(self, builder: DocumentBuilder, leaf: _Leaf) -> None:
        if leaf.is_hidden:
            return
        start, end = self._start(leaf.first_line), self._start(leaf.end_line)
        if leaf.type is BlockType.HEADING:
            self._add_heading(builder, leaf, start, end)
            return
        self._add_span(builder, leaf.type, start, end, leaf)

    def _add_heading(self, builder: DocumentBuilder, leaf: _Leaf, start: int, end: int) -> None:
        marks = _HEADING_MARKS.match(self._text, start, end)
        if marks:
            start = marks.end()
            line = self._text[start:end].rstrip()
            closing = _CLOSING_MARKS.search(line)
            end = start + len(line[: closing.start()].rstrip() if closing else line)
        else:
            underline = self._text[start:end].rstrip()
            end = start + max(underline.rfind("\n"), underline.rfind("\r"))
        title = _plain(leaf.inline, self._environment)
        self._first_heading = self._first_heading or title
        self._add_span(builder, BlockType.HEADING, start, end, leaf, title=title)

    def _add_span(
        self,
        builder: DocumentBuilder,
        type: BlockType,
        start: int,
        end: int,
        leaf: _Leaf | None = None,
        title: str | None = None,
    ) -> None:
        start = max(start, self._position)
        body = self._text[start:end].rstrip()
        if is_blank(body):
            return
        if type is BlockType.HEADING:
            start += len(body) - len(body.lstrip())
            body = body.lstrip()
        builder.add_gap(self._text[self._position : start])
        builder.add_block(
            type,
            body,
            separator="",
            title=title,
            level=leaf.level if leaf else None,
            rows=[[_plain(cell, self._environment) for cell in row] for row in leaf.rows] if leaf else (),
            metadata=leaf.metadata if leaf else None,
        )
        self._position = start + len(body)


def _leaves(tokens: list[Token]) -> Iterator[_Leaf]:
    """Blocks without blocks inside, in source order."""
    depth = 0
    fresh_item = False
    index = 0
    while index < len(tokens):
        token = tokens[index]
        if token.type == "list_item_open":
            depth, fresh_item = depth + 1, True
        elif token.type == "list_item_close":
            depth, fresh_item = depth - 1, False
        elif token.map is not None and token.type in _LEAF_TYPES:
            leaf = _leaf(tokens, index, depth if fresh_item else 0)
            if leaf is not None:
                yield leaf
                fresh_item = False
            if token.type == "table_open":
                index = _closing(tokens, index)
        index += 1


_LEAF_TYPES = {"heading_open", "paragraph_open", "fence", "code_block", "html_block", "table_open"}


def _leaf(tokens: list[Token], index: int, item_depth: int) -> _Leaf | None:
    token = tokens[index]
    first, end = token.map or [0, 0]
    if token.type == "heading_open" and token.level == 0:
        level = int(token.tag[1])
        return _Leaf(
            type=BlockType.HEADING, first_line=first, end_line=end, level=level, inline=tokens[index + 1].content
        )
    if token.type == "table_open":
        rows = tuple(_table_rows(tokens[index : _closing(tokens, index)]))
        return _Leaf(type=BlockType.TABLE, first_line=first, end_line=end, rows=rows)
    if token.type in {"fence", "code_block"}:
        language = token.info.split()[0] if token.info.strip() else ""
        metadata = {"language": language} if language else {}
        return _Leaf(type=BlockType.CODE, first_line=first, end_line=end, metadata=metadata)
    if token.type == "html_block" and is_blank(_without_markup(token.content)):
        return _Leaf(type=BlockType.PARAGRAPH, first_line=first, end_line=end, is_hidden=True)
    if item_depth:
        return _Leaf(type=BlockType.LIST_ITEM, first_line=first, end_line=end, level=item_depth)
    return _Leaf(type=BlockType.PARAGRAPH, first_line=first, end_line=end)


def _closing(tokens: list[Token], index: int) -> int:
    name = tokens[index].type.removesuffix("_open") + "_close"
    level = tokens[index].level
    return next(i for i in range(index, len(tokens)) if tokens[i].type == name and tokens[i].level == level)


def _table_rows(tokens: list[Token]) -> Iterator[tuple[str, ...]]:
    """Cells of a table as inline source."""
    row: list[str] = []
    for token in tokens:
        if token.type == "tr_open":
            row = []
        elif token.type == "inline":
            row.append(token.content)
        elif token.type == "tr_close":
            yield tuple(row)


def _merge_table_headers(leaves: list[_Leaf], line: Callable[[int], str]) -> Iterator[_Leaf]:
    """Tables with several header lines: GitHub's grammar has one, so it takes the first ones for a paragraph."""
    for position, leaf in enumerate(leaves):
        after = leaves[position + 1] if position + 1 < len(leaves) else None
        before = leaves[position - 1] if position else None
        if after and _is_header_of(leaf, after, line):
            continue
        if before and _is_header_of(before, leaf, line):
            header = [_split_row(line(number)) for number in range(before.first_line, before.end_line)]
            yield _Leaf(
                type=BlockType.TABLE,
                first_line=before.first_line,
                end_line=leaf.end_line,
                rows=(*header, *leaf.rows),
                metadata={"header_rows": str(len(header) + 1)},
            )
            continue
        yield leaf


def _is_header_of(leaf: _Leaf, table: _Leaf, line: Callable[[int], str]) -> bool:
    if leaf.type is not BlockType.PARAGRAPH or table.type is not BlockType.TABLE or leaf.end_line != table.first_line:
        return False
    lines = [line(number) for number in range(leaf.first_line, leaf.end_line)]
    columns = len(table.rows[0]) if table.rows else 0
    return bool(lines) and all(text.lstrip().startswith("|") and len(_split_row(text)) == columns for text in lines)


def _split_row(line: str) -> tuple[str, ...]:
    inner = line.strip().removeprefix("|").removesuffix("|")
    return tuple(cell.strip() for cell in re.split(r"(?<!\\)\|", inner))


def _without_markup(source: str) -> str:
    from rag_pipeline.parsing.html import strip_markup

    return strip_markup(source)


@cache
def _block_grammar() -> MarkdownIt:
    """Blocks only: the inline half is the slow one, and only headings and cells need it."""
    return MarkdownIt("commonmark").enable("table").disable("inline")


@cache
def _inline_grammar() -> MarkdownIt:
    return MarkdownIt("commonmark").enable("strikethrough")


def _plain(source: str, environment: dict[str, object]) -> str:
    """Inline Markdown as a reader sees it."""
    if not re.search(r"[\\`*_\[<&!~\r\n]", source):
        return source.strip()
    pieces: list[str] = []
    for token in _inline_grammar().parseInline(source, environment):
        for child in token.children or []:
            if child.type in {"text", "code_inline", "image"}:
                pieces.append(child.content)
            elif child.type in {"softbreak", "hardbreak"} or _HTML_BREAK.match(child.content):
                pieces.append(" ")
    return "".join(pieces).strip()
