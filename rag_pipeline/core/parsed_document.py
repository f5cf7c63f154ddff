"""What a parser returns: one text, blocks that are spans of it, a page ledger, and images. Pure values, no I/O.

`ParsedDocument.text` is the whole text in reading order; a block is the span `[start, end)` of it, in characters
(Python string indices), so every offset downstream is exact by construction. Characters between blocks (blank lines,
Markdown marks such as `#`) belong to no block. Parsers build documents with `DocumentBuilder`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

_SURROGATE = re.compile("[\ud800-\udfff]")
_VISIBLE = re.compile("[^\\s\u00ad\u200b-\u200f\u2060\ufeff]")


class BlockType(StrEnum):
    """Kinds of blocks; a parser uses `PARAGRAPH` when it knows nothing better."""

    HEADING = "heading"
    PARAGRAPH = "paragraph"
    LIST_ITEM = "list_item"
    TABLE = "table"
    CODE = "code"
    CAPTION = "caption"
    FOOTNOTE = "footnote"
    PAGE_HEADER = "page_header"
    PAGE_FOOTER = "page_footer"
    FORM_FIELD = "form_field"
    ANNOTATION = "annotation"
    IMAGE = "image"
    RECORD = "record"
    """One row or object of structured data (csv, json, yaml)."""


class PageState(StrEnum):
    """How the text of a page was obtained."""

    TEXT = "text"
    OCR = "ocr"
    BLANK = "blank"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundingBox:
    """A rectangle on a page in points (1/72 inch), origin at the top left of the page as shown."""

    left: float
    top: float
    right: float
    bottom: float

    def as_list(self) -> list[float]:
        """`[left, top, right, bottom]`, as JSON keeps it."""
        return [self.left, self.top, self.right, self.bottom]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A piece of the document with one role."""

    type: BlockType
    start: int
    """Character offset of the first character in `ParsedDocument.text`."""
    end: int
    """Character offset after the last character."""
    heading_path: tuple[str, ...] = ()
    """Titles of the headings above, outermost first; a heading's own path ends with itself."""
    level: int | None = None
    """Heading level 1 to 6, or nesting depth of a list item from 1; None otherwise."""
    page: int | None = None
    """1-based physical page (slide, for presentations); None where the format has no pages."""
    page_end: int | None = None
    """Last page that the block touches; None means `page`."""
    bbox: BoundingBox | None = None
    rows: tuple[tuple[str, ...], ...] = ()
    """Cells of a TABLE, header row first; the block's text holds the same table in Markdown."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Locator extras such as sheet, row, json_path, language, href."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRecord:
    """One line of the page ledger: every physical page has exactly one, in order, so numbers never shift."""

    number: int
    state: PageState
    characters: int
    start: int
    """Character offset in the text where the page begins."""
    end: int
    label: str | None = None
    """The printed page label ("iv", "A-3") where the file gives one."""
    reason: str | None = None
    """Why the page was read by OCR, is blank or failed."""
    width: float | None = None
    """Points, as shown (after rotation)."""
    height: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedImage:
    """An image found in the document."""

    position: int
    """0-based position among the images of the document: with the document and version it makes the stable id."""
    media_type: str
    content: bytes
    width: int
    """Pixels."""
    height: int
    page: int | None = None
    bbox: BoundingBox | None = None
    description: str = ""
    """Alternative text or caption where the file has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedDocument:
    """The outcome of parsing one file."""

    text: str
    blocks: tuple[Block, ...]
    parser: str
    """Name of the parser, e.g. `pdf`."""
    parser_version: str
    pages: tuple[PageRecord, ...] = ()
    """The page ledger; empty where the format has no pages."""
    images: tuple[ParsedImage, ...] = ()
    metadata: Mapping[str, object] = field(default_factory=dict)
    """JSON-serialisable facts: title, author, language, encoding, sheets (list), columns (list), ladder_step, ..."""
    warnings: tuple[str, ...] = ()

    def block_text(self, block: Block) -> str:
        """The text of one block."""
        return self.text[block.start : block.end]

    @property
    def has_content(self) -> bool:
        """Whether anything but white space and zero-width characters came out."""
        return not is_blank(self.text)


class DocumentBuilder:
    """Collects blocks in reading order and keeps the heading path and the offsets.

    Text is cleaned once, here: NUL and lone surrogates would be refused by PostgreSQL, Parquet and JSON.
    """

    def __init__(self, *, parser: str, parser_version: str) -> None:
        self.parser = parser
        self.parser_version = parser_version
        self.metadata: dict[str, object] = {}
        self.warnings: list[str] = []
        self.images: list[ParsedImage] = []
        self._pieces: list[str] = []
        self._length = 0
        self._blocks: list[Block] = []
        self._pages: list[PageRecord] = []
        self._headings: list[tuple[int, str]] = []

    @property
    def length(self) -> int:
        """Characters so far."""
        return self._length

    @property
    def block_count(self) -> int:
        """Blocks so far."""
        return len(self._blocks)

    def add_gap(self, text: str) -> None:
        """Append characters that belong to no block (original white space, Markdown marks)."""
        self._append(clean_text(text))

    def add_block(
        self,
        type: BlockType,
        text: str,
        *,
        separator: str = "\n\n",
        title: str | None = None,
        level: int | None = None,
        page: int | None = None,
        page_end: int | None = None,
        bbox: BoundingBox | None = None,
        rows: Sequence[Sequence[str]] = (),
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        """Append a block; blank ones are dropped.

        `separator` goes before the block unless it is the first text of the document; give "" when the gaps are added
        with `add_gap`. `title` is what goes into the heading path when it differs from the text of a HEADING.
        """
        text = clean_text(text)
        if is_blank(text):
            return
        if self._length:
            self._append(separator)
        start = self._length
        self._append(text)
        if type is BlockType.HEADING:
            self._enter_heading(level or 1, " ".join((title if title is not None else text).split()))
        self._blocks.append(
            Block(
                type=type,
                start=start,
                end=self._length,
                heading_path=tuple(name for _, name in self._headings),
                level=level,
                page=page,
                page_end=page_end,
                bbox=bbox,
                rows=tuple(tuple(clean_text(cell) for cell in row) for row in rows),
                metadata=dict(metadata or {}),
            )
        )

    def add_page(
        self,
        *,
        state: PageState,
        start: int,
        label: str | None = None,
        reason: str | None = None,
        width: float | None = None,
        height: float | None = None,
    ) -> None:
        """Close the next page of the ledger: it covers the text from `start` (a former `length`) to here."""
        characters = sum(sum(map(len, piece.split())) for piece in self._text_from(start))
        self._pages.append(
            PageRecord(
                number=len(self._pages) + 1,
                state=state,
                characters=characters,
                start=min(start, self._length),
                end=self._length,
                label=label,
                reason=reason,
                width=width,
                height=height,
            )
        )

    def leave_headings(self) -> None:
        """Forget the headings so far: what follows (a slide without a title, the footers) is under none of them."""
        self._headings.clear()

    def warn(self, message: str) -> None:
        """Note something a person should know; repeated messages are kept once."""
        if message not in self.warnings:
            self.warnings.append(message)

    def build(self) -> ParsedDocument:
        """The finished document."""
        return ParsedDocument(
            text="".join(self._pieces),
            blocks=tuple(self._blocks),
            parser=self.parser,
            parser_version=self.parser_version,
            pages=tuple(self._pages),
            images=tuple(self.images),
            metadata=dict(self.metadata),
            warnings=tuple(self.warnings),
        )

    def _append(self, text: str) -> None:
        self._pieces.append(text)
        self._length += len(text)

    def _text_from(self, start: int) -> list[str]:
        pieces: list[str] = []
        position = self._length
        for piece in reversed(self._pieces):
            if position <= start:
                break
            position -= len(piece)
            pieces.append(piece[max(start - position, 0) :])
        return pieces

    def _enter_heading(self, level: int, title: str) -> None:
        while self._headings and self._headings[-1][0] >= level:
            self._headings.pop()
        self._headings.append((level, title))


def is_blank(text: str) -> bool:
    """Whether the text holds nothing that a reader could see: white space, zero-width characters, soft hyphens."""
    return _VISIBLE.search(text) is None


def clean_text(text: str) -> str:
    """Drop NUL, and replace lone surrogates by U+FFFD: no store downstream accepts them."""
    text = text.replace("\0", "")
    if text.isascii():
        return text
    return _SURROGATE.sub("\ufffd", text)
