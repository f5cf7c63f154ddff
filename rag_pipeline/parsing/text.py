"""Plain text, reStructuredText and source code: the text stays exactly as it is, blocks are its paragraphs."""

import re
from collections.abc import Iterator
from pathlib import PurePath
from typing import ClassVar

from rag_pipeline.core.parsed_document import BlockType, DocumentBuilder, ParsedDocument, is_blank
from rag_pipeline.core.ports import ParseRequest
from rag_pipeline.parsing.encoding import DecodedText, read_text
from rag_pipeline.parsing.parser import Parser

CODE_LANGUAGES = {
    "bash": "bash", "bat": "batch", "c": "c", "cc": "cpp", "cpp": "cpp", "cs": "csharp", "css": "css", "go": "go",
    "h": "c", "hpp": "cpp", "java": "java", "js": "javascript", "jsx": "javascript", "kt": "kotlin", "lua": "lua",
    "php": "php", "pl": "perl", "ps1": "powershell", "py": "python", "r": "r", "rb": "ruby", "rs": "rust",
    "scala": "scala", "sh": "bash", "sql": "sql", "swift": "swift", "tf": "terraform", "toml": "toml",
    "ts": "typescript", "tsx": "typescript", "vue": "vue", "proto": "protobuf", "ipynb": "json",
}  # fmt: skip
"""Extension -> language of the code blocks."""

_BLANK_LINES = re.compile(r"(?>\r\n|\n|\r)(?:[^\S\r\n]*(?>\r\n|\n|\r))+")
_RST_ADORNMENT = re.compile(r"([=\-~^\"'`#*+.:_])\1+[ \t]*")


class TextParser(Parser):
    """txt, log, rst, source code, and files of unknown extension that hold text."""

    name: ClassVar[str] = "text"
    version: ClassVar[str] = "1"

    def parse(self, request: ParseRequest) -> ParsedDocument:
        """Parse the file at `request.path`; the document's text is the decoded file, character for character."""
        decoded = read_text(request)
        builder = new_builder(self, decoded)
        extension = PurePath(request.file_name).suffix.lower().removeprefix(".")
        if extension in CODE_LANGUAGES:
            _add_code(builder, decoded.text, CODE_LANGUAGES[extension])
        elif extension == "rst":
            _add_restructured(builder, decoded.text)
        else:
            add_paragraphs(builder, decoded.text)
        if is_blank(decoded.text):
            builder.warn("the file holds no visible text")
        return builder.build()


def new_builder(parser: Parser, decoded: DecodedText) -> DocumentBuilder:
    """A builder that carries the charset and the warnings of the decoder."""
    builder = DocumentBuilder(parser=parser.name, parser_version=parser.version)
    builder.metadata["encoding"] = decoded.encoding
    for warning in decoded.warnings:
        builder.warn(warning)
    return builder


def add_paragraphs(builder: DocumentBuilder, text: str) -> None:
    """Add a text as it is: paragraphs are blocks, the blank lines between them gaps."""
    for start, end in paragraph_spans(text):
        add_span(builder, BlockType.PARAGRAPH, text, start, end)


def paragraph_spans(text: str) -> Iterator[tuple[int, int]]:
    """Spans between blank lines, each beginning where the one before ended: gaps are inside, in front."""
    position = 0
    for match in _BLANK_LINES.finditer(text):
        yield position, match.start()
        position = match.start()
    yield position, len(text)


def add_span(
    builder: DocumentBuilder,
    type: BlockType,
    text: str,
    start: int,
    end: int,
    *,
    metadata: dict[str, str] | None = None,
) -> None:
    """Add `text[start:end]`: the blank lines around the block as gaps, its indentation with it."""
    piece = text[start:end]
    if is_blank(piece):
        builder.add_gap(piece)
        return
    body = piece.rstrip()
    lead = len(body) - len(body.lstrip())
    lead = max(body.rfind("\n", 0, lead), body.rfind("\r", 0, lead)) + 1
    builder.add_gap(body[:lead])
    builder.add_block(type, body[lead:], separator="", metadata=metadata)
    builder.add_gap(piece[len(body) :])


def _add_code(builder: DocumentBuilder, text: str, language: str) -> None:
    for start, end in paragraph_spans(text):
        add_span(builder, BlockType.CODE, text, start, end, metadata={"language": language})


def _add_restructured(builder: DocumentBuilder, text: str) -> None:
    """Titles are lines underlined (perhaps overlined) with one sign; levels by order of appearance, as in Docutils."""
    levels: dict[str, int] = {}
    for start, end in paragraph_spans(text):
        piece = text[start:end]
        found = _rst_title(piece)
        if found is None:
            add_span(builder, BlockType.PARAGRAPH, text, start, end)
            continue
        title_start, title_end, body_start, style = found
        level = levels.setdefault(style, len(levels) + 1)
        builder.add_gap(piece[:title_start])
        builder.add_block(BlockType.HEADING, piece[title_start:title_end], separator="", level=min(level, 6))
        builder.add_gap(piece[title_end:body_start])
        add_span(builder, BlockType.PARAGRAPH, piece, body_start, len(piece))


def _rst_title(piece: str) -> tuple[int, int, int, str] | None:
    """Start and end of the title, end of its adornment, and the style; None where a paragraph begins otherwise."""
    lines = [match.span() for match in re.finditer(r"[^\r\n]+", piece) if match.group().strip()][:3]
    texts = [piece[start:end] for start, end in lines]
    if len(lines) == 3 and _RST_ADORNMENT.fullmatch(texts[0]) and _RST_ADORNMENT.fullmatch(texts[2]):
        title, under, style = lines[1], lines[2], "over" + texts[2][0]
    elif len(lines) >= 2 and not _RST_ADORNMENT.fullmatch(texts[0]) and _RST_ADORNMENT.fullmatch(texts[1]):
        title, under, style = lines[0], lines[1], texts[1][0]
    else:
        return None
    if under[1] - under[0] < len(piece[title[0] : title[1]].strip()):
        return None
    start = title[0] + len(piece[title[0] : title[1]]) - len(piece[title[0] : title[1]].lstrip())
    return start, title[0] + len(piece[title[0] : title[1]].rstrip()), under[1], style
