"""Rich Text Format: paragraphs, headings by outline level, tables, notes; text in the charset of its font.

An own reader: striprtf gives one string without headings, drops footnotes, keeps hidden and deleted text, and reads
Chinese that is marked only by its font's charset as Latin letters.
"""

import codecs
import re
from dataclasses import dataclass, field
from typing import ClassVar

from rag_pipeline.core.parsed_document import BlockType, DocumentBuilder, ParsedDocument
from rag_pipeline.core.ports import ParseRequest
from rag_pipeline.errors import CorruptDocumentError, EmptyDocumentError, UnsupportedFormatError
from rag_pipeline.parsing.encoding import read_bytes
from rag_pipeline.parsing.office.docx_styles import HEADING_NAME, MAX_HEADING_LEVEL, list_depth
from rag_pipeline.parsing.parser import Parser
from rag_pipeline.parsing.tables import markdown_table

MAX_GROUP_DEPTH = 10_000
"""Real files have some dozens."""

_TOKEN = re.compile(
    rb"\\([a-zA-Z]{1,32})(-?\d{1,10})? ?|\\'([0-9a-fA-F]{2})|\\([^a-zA-Z'])|([{}])|([^\\{}\r\n]+)|[\r\n]+"
)
_CHARSETS = {
    0: "cp1252", 77: "mac_roman", 128: "cp932", 129: "cp949", 130: "johab", 134: "gb18030", 136: "big5hkscs",
    161: "cp1253", 162: "cp1254", 163: "cp1258", 177: "cp1255", 178: "cp1256", 186: "cp1257", 204: "cp1251",
    222: "cp874", 238: "cp1250", 255: "cp437",
}  # fmt: skip
"""Python codec by the charset number of a font (RTF specification 1.9.1, \\fcharset)."""
_CODE_PAGES = {65001: "utf-8", 10000: "mac_roman", 936: "gb18030", 950: "big5hkscs"}
_CHARACTERS = {
    "tab": "\t", "line": "\n", "emdash": "—", "endash": "–", "emspace": " ", "enspace": " ", "qmspace": " ",
    "bullet": "•", "lquote": "‘", "rquote": "’", "ldblquote": "“", "rdblquote": "”",
}  # fmt: skip
_SYMBOLS = {b"~": "\xa0", b"_": "-", b"-": "", b"\\": "\\", b"{": "{", b"}": "}", b"\n": "\n", b"\r": "\n"}
_SKIPPED = frozenset({
    "colortbl", "pict", "object", "fldinst", "listtable", "listoverridetable", "revtbl", "rsidtbl",
    "themedata", "colorschememapping", "datastore", "latentstyles", "generator", "xmlnstbl", "filetbl", "bkmkstart",
    "bkmkend", "nonshppict", "pntxtb", "pntxta", "mmathPr", "wgrffmtfilter", "operator", "sp", "shprslt", "info", "upr",
 "xe", "tc", "template", "userprops", "docvar",
})  # fmt: skip
_NOTES = {
    "footnote": BlockType.FOOTNOTE,
    "annotation": BlockType.ANNOTATION,
    "header": BlockType.PAGE_HEADER,
    "headerl": BlockType.PAGE_HEADER,
    "headerr": BlockType.PAGE_HEADER,
    "headerf": BlockType.PAGE_HEADER,
    "footer": BlockType.PAGE_FOOTER,
    "footerl": BlockType.PAGE_FOOTER,
    "footerr": BlockType.PAGE_FOOTER,
    "footerf": BlockType.PAGE_FOOTER,
    "shptxt": BlockType.PARAGRAPH,
}
"""Destinations with text of their own, read after the paragraph that they hang on."""
_LABELS = frozenset({"listtext", "pntext"})
"""The number or bullet of a list item as it is shown."""
_READ_WHEN_IGNORABLE = frozenset({"shpinst", *_NOTES, *_LABELS})
"""Destinations behind `\\*` that are read; all others behind it are skipped, as the format demands."""
_INFORMATION = {"title": "title", "author": "author", "subject": "subject", "keywords": "keywords"}


class RtfParser(Parser):
    """rtf files as Word, LibreOffice and WordPad write them."""

    name: ClassVar[str] = "rtf"
    version: ClassVar[str] = "1"

    def parse(self, request: ParseRequest) -> ParsedDocument:
        """Parse the file at `request.path`. Errors as `Parser`."""
        content = read_bytes(request.path, limits=request.limits).lstrip()
        if not content:
            raise EmptyDocumentError(f"{request.file_name} is empty; submit the file again")
        if not content.startswith(rb"{\rtf"):
            raise UnsupportedFormatError(f"{request.file_name} is no RTF document; give it the extension of its format")
        builder = DocumentBuilder(parser=self.name, parser_version=self.version)
        reader = _Reader(builder, request.file_name)
        reader.read(content)
        if not builder.block_count:
            builder.warn("the document holds no text")
        return builder.build()


@dataclass(slots=True)
class _Group:
    """What `{` saves and `}` restores."""

    destination: str = "body"
    codec: str = "cp1252"
    fallback_length: int = 1
    """Characters after a \\u that stand in for it in old readers."""
    hidden: bool = False
    deleted: bool = False
    pieces: list[str] = field(default_factory=list)
    """Where text goes: shared with the group around it, unless this one begins a destination."""


@dataclass(slots=True)
class _Paragraph:
    """Paragraph formatting since the last `pard` word."""

    level: int | None = None
    style: int = 0
    in_table: bool = False
    list_level: int | None = None


class _Reader:
    def __init__(self, builder: DocumentBuilder, file_name: str) -> None:
        self._builder = builder
        self._file_name = file_name
        self._group = _Group()
        self._stack: list[_Group] = []
        self._codec = "cp1252"
        self._fonts: dict[int, str] = {}
        self._font = 0
        self._heading_styles: dict[int, int] = {}
        self._style_number = 0
        self._paragraph = _Paragraph()
        self._bytes = bytearray()
        self._skip = 0
        self._ignorable = False
        self._label = ""
        self._cells: list[str] = []
        self._rows: list[list[str]] = []
        self._notes: list[tuple[BlockType, str]] = []
        self._margins: dict[tuple[BlockType, str], None] = {}

    def read(self, content: bytes) -> None:
        """Add everything to the builder."""
        position = 0
        while position < len(content):
            match = _TOKEN.match(content, position)
            if match is None:
                position += 1
                continue
            position = match.end()
            word, number = match[1], int(match[2]) if match[2] else None
            if word == b"bin":
                position += max(number or 0, 0)
            elif word is not None:
                self._flush()
                self._word(word.decode("ascii"), number)
            else:
                self._token(match)
        self._finish()

    def _token(self, match: re.Match[bytes]) -> None:
        """Everything but a control word."""
        code, symbol, brace, text = match[3], match[4], match[5], match[6]
        if code is not None:
            self._raw(bytes.fromhex(code.decode("ascii")))
        elif symbol is not None:
            self._symbol(symbol)
        elif brace == b"{":
            self._open()
        elif brace == b"}":
            self._close()
        elif text is not None:
            self._raw(text)

    def _finish(self) -> None:
        self._flush()
        if self._stack:
            self._builder.warn("the file is cut off; what was there is read")
            while self._stack:
                self._close()
        self._end_paragraph()
        self._end_table()
        for kind, text in self._margins:
            self._builder.add_block(kind, text)

    def _raw(self, data: bytes) -> None:
        skipped = min(self._skip, len(data))
        self._skip -= skipped
        self._bytes += data[skipped:]

    def _symbol(self, symbol: bytes) -> None:
        if symbol == b"*":
            self._ignorable = True
            return
        self._flush()
        if self._skip:
            self._skip -= 1
        elif symbol in {b"\n", b"\r"}:
            self._word("par", None)
        else:
            self._write(_SYMBOLS.get(symbol, ""))

    def _flush(self) -> None:
        if self._bytes:
            text = bytes(self._bytes).decode(self._group.codec, "replace")
            self._bytes.clear()
            self._write(text)

    def _write(self, text: str) -> None:
        if not self._group.hidden and not self._group.deleted and self._group.destination != "skip":
            self._group.pieces.append(text)

    def _open(self) -> None:
        self._flush()
        self._skip = 0
        if len(self._stack) >= MAX_GROUP_DEPTH:
            raise CorruptDocumentError(f"{self._file_name}: its groups are nested too deeply to be a document")
        group = self._group
        self._stack.append(group)
        self._group = _Group(
            group.destination, group.codec, group.fallback_length, group.hidden, group.deleted, group.pieces
        )

    def _close(self) -> None:
        self._flush()
        self._skip = 0
        self._ignorable = False
        if not self._stack:
            return
        closed, self._group = self._group, self._stack.pop()
        if closed.pieces is not self._group.pieces:
            self._end_destination(closed.destination, _joined(closed.pieces))

    def _begin(self, destination: str) -> None:
        self._group.destination = destination
        self._group.pieces = []

    def _end_destination(self, destination: str, text: str) -> None:
        text = text.strip()
        if destination in _LABELS:
            self._label = text if any(character.isalnum() for character in text) else ""
        elif destination in _INFORMATION and text:
            self._builder.metadata[_INFORMATION[destination]] = text
        elif destination == "style":
            match = HEADING_NAME.fullmatch(text.rstrip(";").strip())
            if match:
                self._heading_styles[self._style_number] = min(int(match[1]), MAX_HEADING_LEVEL)
        elif destination in _NOTES and text:
            kind = _NOTES[destination]
            if kind in {BlockType.PAGE_HEADER, BlockType.PAGE_FOOTER}:
                if any(character.isalpha() for character in text):
                    self._margins[kind, text] = None
            else:
                self._notes.append((kind, text))

    def _word(self, word: str, number: int | None) -> None:
        ignorable, self._ignorable = self._ignorable, False
        if word == "u":
            self._write(chr((number or 0) & 0xFFFF))
            self._skip = self._group.fallback_length
        elif self._group.destination == "skip":
            if word in _INFORMATION:
                self._begin(word)
        elif word in _SKIPPED or (ignorable and word not in _READ_WHEN_IGNORABLE):
            self._begin("skip")
        elif word in _NOTES or word in _LABELS or word in {"fonttbl", "stylesheet"}:
            self._begin(word)
        elif word in _CHARACTERS:
            self._write(_CHARACTERS[word])
        elif not self._character_word(word, number):
            self._paragraph_word(word, number)

    def _character_word(self, word: str, number: int | None) -> bool:
        """Control words about charset and visibility; whether it was one."""
        group = self._group
        match word:
            case "ansicpg" if number:
                self._codec = group.codec = _codec(number)
            case "mac":
                self._codec = group.codec = "mac_roman"
            case "pc":
                self._codec = group.codec = "cp437"
            case "f" if group.destination == "fonttbl":
                self._font = number or 0
            case "fcharset" if group.destination == "fonttbl":
                if number not in {0, 1, 2, None}:
                    self._fonts[self._font] = _CHARSETS.get(number or 0, self._codec)
            case "f":
                group.codec = self._fonts.get(number or 0, self._codec)
            case "uc":
                group.fallback_length = max(number or 0, 0)
            case "v":
                group.hidden = number != 0
            case "deleted":
                group.deleted = number != 0
            case "plain":
                group.hidden = group.deleted = False
                group.codec = self._codec
            case _:
                return False
        return True

    def _paragraph_word(self, word: str, number: int | None) -> None:
        if self._group.destination in {"stylesheet", "style"}:
            if word == "s":
                self._begin("style")
                self._style_number = number or 0
            return
        match word:
            case "par" | "sect" | "page" if self._group.destination == "body":
                self._end_paragraph()
            case "par" | "row" | "nestrow":
                self._end_row() if word == "row" else self._write("\n")
            case "cell":
                self._cells.append(self._take().strip())
            case "nestcell":
                self._write(", ")
            case "pard":
                self._paragraph = _Paragraph()
            case "intbl":
                self._paragraph.in_table = True
            case _:
                self._formatting_word(word, number)

    def _formatting_word(self, word: str, number: int | None) -> None:
        match word:
            case "outlinelevel" if number is not None and number < 9:
                self._paragraph.level = min(number + 1, MAX_HEADING_LEVEL)
            case "s":
                self._paragraph.style = number or 0
            case "ls" if number:
                self._paragraph.list_level = self._paragraph.list_level or 0
            case "ilvl":
                self._paragraph.list_level = max(number or 0, 0)

    def _take(self) -> str:
        text = _joined(self._group.pieces)
        self._group.pieces.clear()
        return text

    def _end_row(self) -> None:
        if self._cells:
            self._rows.append(self._cells)
        self._cells = []

    def _end_table(self) -> None:
        self._end_row()
        rows, self._rows = self._rows, []
        if any(any(row) for row in rows):
            width = max(len(row) for row in rows)
            full = [[*row, *[""] * (width - len(row))] for row in rows]
            self._builder.add_block(BlockType.TABLE, markdown_table(full), rows=full)

    def _end_paragraph(self) -> None:
        if self._paragraph.in_table:
            self._write("\n")
            return
        text = self._take().strip()
        if text:
            self._end_table()
            self._add(text)
        self._label = ""
        notes, self._notes = self._notes, []
        for kind, note in notes:
            self._builder.add_block(kind, note)

    def _add(self, text: str) -> None:
        paragraph = self._paragraph
        level = paragraph.level or self._heading_styles.get(paragraph.style)
        labelled = f"{self._label} {text}" if self._label else text
        if level is not None:
            self._builder.add_block(BlockType.HEADING, " ".join(labelled.split()), level=level)
        elif paragraph.list_level is not None or self._label:
            self._builder.add_block(BlockType.LIST_ITEM, labelled, level=list_depth(paragraph.list_level))
        else:
            self._builder.add_block(BlockType.PARAGRAPH, text)


def _codec(code_page: int) -> str:
    name = _CODE_PAGES.get(code_page, f"cp{code_page}")
    try:
        codecs.lookup(name)
    except LookupError:
        return "cp1252"
    return name


def _joined(pieces: list[str]) -> str:
    """The text, with pairs of surrogates from two `u` words made one character."""
    return "".join(pieces).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
