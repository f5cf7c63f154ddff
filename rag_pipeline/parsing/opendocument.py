"""OpenDocument texts, spreadsheets and presentations (odt, ods, odp), as LibreOffice writes them.

Read straight from content.xml: the library for these files (odfpy) has not changed since 2020 and gives no structure
beyond the XML itself. Tracked changes are read as accepted: the file keeps deleted text apart from the content.
"""

import re
from dataclasses import dataclass, field
from typing import ClassVar

from lxml import etree

from rag_pipeline.core.parsed_document import BlockType, BoundingBox, DocumentBuilder, PageState, ParsedDocument
from rag_pipeline.core.ports import ParseRequest
from rag_pipeline.errors import CorruptDocumentError, UnsupportedFormatError
from rag_pipeline.parsing.office.docx_styles import to_int
from rag_pipeline.parsing.office.drawing import add_image, local_name
from rag_pipeline.parsing.office.package import Archive, encrypted
from rag_pipeline.parsing.office.pptx_shapes import Shape, reading_order
from rag_pipeline.parsing.office.xlsx import fill_merged
from rag_pipeline.parsing.office.xlsx_tables import find_tables
from rag_pipeline.parsing.opendocument_sheet import OFFICE, TABLE, TEXT, sheet_cells, text_cells
from rag_pipeline.parsing.parser import Parser
from rag_pipeline.parsing.tables import markdown_table, resolve_spans

DRAW = "{urn:oasis:names:tc:opendocument:xmlns:drawing:1.0}"
PRESENTATION = "{urn:oasis:names:tc:opendocument:xmlns:presentation:1.0}"
STYLE = "{urn:oasis:names:tc:opendocument:xmlns:style:1.0}"
SVG = "{urn:oasis:names:tc:opendocument:xmlns:svg-compatible:1.0}"
XLINK = "{http://www.w3.org/1999/xlink}"
MAX_BLANKS = 1_000
"""Blanks that one element may stand for."""

_POINTS = {"pt": 1.0, "in": 72.0, "cm": 72 / 2.54, "mm": 72 / 25.4, "px": 0.75, "pc": 12.0}
_LENGTH = re.compile(r"(-?[\d.]+)\s*([a-z]{2})")
_SKIPPED = frozenset({"tracked-changes", "forms", "sequence-decls", "variable-decls", "ruby-text", "desc", "title"})
_METADATA = {
    "title": "title",
    "creator": "last_modified_by",
    "initial-creator": "author",
    "subject": "subject",
    "keyword": "keywords",
    "language": "language",
    "creation-date": "created",
    "date": "modified",
}


class OpenDocumentParser(Parser):
    """Headings, lists, tables, notes and pictures of texts; sheets; slides as pages."""

    name: ClassVar[str] = "opendocument"
    version: ClassVar[str] = "1"

    def parse(self, request: ParseRequest) -> ParsedDocument:
        """Parse the file at `request.path`. Errors as `Parser`."""
        builder = DocumentBuilder(parser=self.name, parser_version=self.version)
        with Archive.open(request) as archive:
            if "content.xml" not in archive:
                raise CorruptDocumentError(f"{request.file_name} has no content; open it and save it again")
            _refuse_encrypted(archive)
            builder.metadata.update(_metadata(archive))
            content = archive.xml("content.xml")
            reader = _Reader(archive, builder)
            body = content.find(f"{OFFICE}body")
            for part in body if body is not None else ():
                match local_name(part):
                    case "text":
                        reader.margins("header", BlockType.PAGE_HEADER)
                        reader.blocks(part)
                        builder.leave_headings()
                        reader.margins("footer", BlockType.PAGE_FOOTER)
                    case "spreadsheet":
                        reader.sheets(part, _hidden_styles(content))
                    case "presentation":
                        reader.slides(part)
                    case kind:
                        raise UnsupportedFormatError(f"{request.file_name} holds a {kind}; export it as .pdf")
        if not builder.block_count:
            builder.warn("the document holds no text")
        return builder.build()


@dataclass(slots=True)
class _Attachments:
    """What hangs on a paragraph."""

    notes: list[etree._Element] = field(default_factory=list)
    comments: list[etree._Element] = field(default_factory=list)
    frames: list[etree._Element] = field(default_factory=list)


class _Reader:
    def __init__(self, archive: Archive, builder: DocumentBuilder) -> None:
        self._archive = archive
        self._builder = builder
        self._page: int | None = None
        self._images: set[str] = set()

    def margins(self, kind: str, type: BlockType) -> None:
        """Add the headers or footers of all page styles, equal ones once."""
        if "styles.xml" not in self._archive:
            return
        texts = (self.text(element) for element in self._archive.xml("styles.xml").iter(f"{STYLE}{kind}"))
        for text in dict.fromkeys(texts):
            if any(character.isalpha() for character in text):
                self._builder.add_block(type, text)

    def blocks(self, container: etree._Element, *, level: int = 0) -> None:
        """Add what a container holds; `level` is the depth of the list around it, 0 outside lists."""
        for element in container:
            match local_name(element):
                case "h":
                    depth = min(max(to_int(element.get(f"{TEXT}outline-level"), 1), 1), 6)
                    self._paragraph(element, BlockType.HEADING, depth)
                case "p" if level:
                    self._paragraph(element, BlockType.LIST_ITEM, level)
                case "p":
                    self._paragraph(element, BlockType.PARAGRAPH, None)
                case "list":
                    self.blocks(element, level=level + 1)
                case "table":
                    self._table(element)
                case "frame" | "custom-shape" | "rect" | "text-box":
                    self.frame(element)
                case name if name and name not in _SKIPPED:
                    self.blocks(element, level=level)

    def text(self, container: etree._Element) -> str:
        """The paragraphs of a container as lines, for cells, notes and margins."""
        lines = (_paragraph_text(element, _Attachments()).strip() for element in container.iter(f"{TEXT}p", f"{TEXT}h"))
        return "\n".join(line for line in lines if line)

    def sheets(self, body: etree._Element, hidden_styles: set[str]) -> None:
        """Add every sheet under a heading with its name."""
        tables = [table for table in body if table.tag == f"{TABLE}table"]
        names = [table.get(f"{TABLE}name", "") for table in tables]
        hidden = [
            name
            for name, table in zip(names, tables, strict=True)
            if table.get(f"{TABLE}style-name", "") in hidden_styles
        ]
        self._builder.metadata["sheets"] = names
        if hidden:
            self._builder.metadata["hidden_sheets"] = hidden
            self._builder.warn(f"hidden sheets are included: {', '.join(hidden)}")
        for name, table in zip(names, tables, strict=True):
            cells = sheet_cells(table, self.text)
            fill_merged(cells)
            flags = {"sheet": name, **({"hidden": "true"} if name in hidden else {})}
            if cells.rows:
                self._builder.add_block(BlockType.HEADING, name, level=1, metadata=flags)
            for found in find_tables(cells, header_rows=set()):
                for row, title in found.titles:
                    self._builder.add_block(BlockType.CAPTION, title, metadata={**flags, "row": str(row)})
                place = {**flags, "row": str(found.first_row), "range": found.range}
                if found.rows:
                    rows = found.rows if found.has_header else [[""] * len(found.rows[0]), *found.rows]
                    self._builder.add_block(BlockType.TABLE, markdown_table(rows), rows=rows, metadata=place)

    def slides(self, body: etree._Element) -> None:
        """Add every slide as a page."""
        for number, slide in enumerate(body.iterfind(f"{DRAW}page"), 1):
            start = self._builder.length
            self._page = number
            self._builder.leave_headings()
            shapes = [Shape(element=element, box=_box(element)) for element in slide if _is_shape(element)]
            titles = [shape for shape in shapes if shape.element.get(f"{PRESENTATION}class") == "title"]
            for shape in titles:
                text = " ".join(self.text(shape.element).split())
                self._builder.add_block(BlockType.HEADING, text, level=1, page=number, bbox=shape.box)
            for shape in reading_order([shape for shape in shapes if shape not in titles]):
                self.frame(shape.element)
            for notes in slide.iterfind(f"{PRESENTATION}notes"):
                self._builder.add_block(BlockType.ANNOTATION, self.text(notes), page=number, metadata={"role": "notes"})
            blank = self._builder.length == start
            self._builder.add_page(
                state=PageState.BLANK if blank else PageState.TEXT, start=start, reason="no text" if blank else None
            )

    def frame(self, element: etree._Element) -> None:
        """Add a text box, a table, a picture or a shape with text."""
        image = element.find(f"{DRAW}image")
        if image is not None:
            self._image(element, image.get(f"{XLINK}href", ""))
            return
        self.blocks(element)

    def _paragraph(self, element: etree._Element, type: BlockType, level: int | None) -> None:
        attachments = _Attachments()
        text = _paragraph_text(element, attachments).strip()
        if type is BlockType.HEADING:
            text = " ".join(text.split())
        separator = "\n" if type is BlockType.LIST_ITEM else "\n\n"
        self._builder.add_block(type, text, level=level, page=self._page, separator=separator)
        for frame in attachments.frames:
            self.frame(frame)
        for note in attachments.notes:
            self._builder.add_block(BlockType.FOOTNOTE, self.text(note), page=self._page)
        for comment in attachments.comments:
            author = comment.findtext("{*}creator") or ""
            self._builder.add_block(
                BlockType.ANNOTATION,
                self.text(comment),
                page=self._page,
                metadata={"author": author} if author else None,
            )

    def _table(self, element: etree._Element) -> None:
        rows = resolve_spans(text_cells(element, self.text))
        self._builder.add_block(BlockType.TABLE, markdown_table(rows), rows=rows, page=self._page)

    def _image(self, frame: etree._Element, target: str) -> None:
        target = target.removeprefix("./")
        if target in self._images or target not in self._archive:
            return
        self._images.add(target)
        description = frame.findtext(f"{SVG}desc") or frame.findtext(f"{SVG}title") or ""
        position = add_image(
            self._builder, self._archive.read(target), description=description, page=self._page, box=_box(frame)
        )
        if position is not None:
            self._builder.add_block(BlockType.IMAGE, description, page=self._page, metadata={"image": str(position)})


def _paragraph_text(paragraph: etree._Element, attachments: _Attachments) -> str:
    pieces = [paragraph.text or ""]
    for child in paragraph:
        match local_name(child):
            case "s":
                pieces.append(" " * min(to_int(child.get(f"{TEXT}c"), 1), MAX_BLANKS))
            case "tab":
                pieces.append("\t")
            case "line-break":
                pieces.append("\n")
            case "note":
                attachments.notes += child.findall(f"{TEXT}note-body")
            case "annotation":
                attachments.comments.append(child)
            case "frame" | "custom-shape" | "rect" | "text-box":
                attachments.frames.append(child)
            case name if name and name not in _SKIPPED:
                pieces.append(_paragraph_text(child, attachments))
        pieces.append(child.tail or "")
    return "".join(pieces)


def _is_shape(element: etree._Element) -> bool:
    return local_name(element) in {"frame", "custom-shape", "rect", "ellipse", "g", "line", "path", "polygon"}


def _box(element: etree._Element) -> BoundingBox | None:
    edges = [_points(element.get(f"{SVG}{name}")) for name in ("x", "y", "width", "height")]
    left, top, width, height = edges
    if left is None or top is None or width is None or height is None:
        return None
    return BoundingBox(left=left, top=top, right=left + width, bottom=top + height)


def _points(length: str | None) -> float | None:
    match = _LENGTH.fullmatch(length or "")
    if match is None or match[2] not in _POINTS:
        return None
    try:
        return float(match[1]) * _POINTS[match[2]]
    except ValueError:
        return None


def _refuse_encrypted(archive: Archive) -> None:
    if "META-INF/manifest.xml" not in archive:
        return
    if next(archive.xml("META-INF/manifest.xml").iter("{*}encryption-data"), None) is not None:
        raise encrypted(archive.file_name)


def _hidden_styles(content: etree._Element) -> set[str]:
    """Names of table styles that are not shown."""
    found = set()
    for style in content.iter(f"{STYLE}style"):
        properties = style.find(f"{STYLE}table-properties")
        if properties is not None and properties.get(f"{TABLE}display") == "false":
            found.add(style.get(f"{STYLE}name", ""))
    return found


def _metadata(archive: Archive) -> dict[str, str]:
    if "meta.xml" not in archive:
        return {}
    found: dict[str, str] = {}
    for element in archive.xml("meta.xml").iterfind(f"{OFFICE}meta/*"):
        name = _METADATA.get(local_name(element), "")
        text = " ".join((element.text or "").split())
        if name and text:
            found.setdefault(name, text)
    return found
