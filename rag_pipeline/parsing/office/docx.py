"""Word documents (docx, docm, dotx). No page numbers: a docx has no pages until somebody lays it out.

The parts are read with lxml, not through a document model: models walk only paragraphs and tables that are direct
children of the body, and miss content controls, tracked changes, text boxes, notes and comments, and refuse packages
with a dangling relationship.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from lxml import etree

from rag_pipeline.core.parsed_document import BlockType, DocumentBuilder, ParsedDocument
from rag_pipeline.core.ports import ParseRequest
from rag_pipeline.errors import CorruptDocumentError
from rag_pipeline.parsing.office.docx_styles import Numbering, ParagraphStyle, Styles, W, list_depth, to_int
from rag_pipeline.parsing.office.docx_text import ParagraphContent, ParagraphReader, R, Reference, is_placeholder
from rag_pipeline.parsing.office.drawing import add_image, chart_rows, diagram_lines, local_name
from rag_pipeline.parsing.office.package import OfficePackage, Relationship
from rag_pipeline.parsing.parser import Parser
from rag_pipeline.parsing.tables import TableCell, markdown_table, resolve_spans

MAX_HEADING_CHARACTERS = 250
"""A "heading" that is longer is a paragraph in a heading's clothes."""
MAX_SPAN = 100
"""Word has at most 63 columns."""


class DocxParser(Parser):
    """Headings, lists, tables, notes, text boxes and pictures of a Word document in reading order."""

    name: ClassVar[str] = "docx"
    version: ClassVar[str] = "1"

    def parse(self, request: ParseRequest) -> ParsedDocument:
        """Parse the file at `request.path`. Errors as `Parser`."""
        builder = DocumentBuilder(parser=self.name, parser_version=self.version)
        with OfficePackage.open(request) as package:
            builder.metadata.update(package.core_properties())
            main = package.main_part(expected="word")
            body = package.xml(main).find(f"{W}body")
            if body is None:
                raise CorruptDocumentError(f"{request.file_name} has no body; open it in Word and save it again")
            _read_document(package, main, body, builder)
        document = builder.build()
        if not document.has_content:
            builder.warn("the document holds no text")
            document = builder.build()
        return document


def _read_document(package: OfficePackage, main: str, body: etree._Element, builder: DocumentBuilder) -> None:
    parts = _Parts(package, main)
    context = _Context(
        package=package,
        builder=builder,
        styles=Styles(parts.first("styles")),
        numbering=Numbering(parts.first("numbering")),
        notes={
            kind: {note.get(f"{W}id", ""): note for note in parts.elements(f"{kind}s", kind)}
            for kind in ("footnote", "endnote", "comment")
        },
    )
    margins = list(_margin_texts(body, parts, context))
    for kind, text in margins:
        if kind is BlockType.PAGE_HEADER:
            builder.add_block(kind, text)
    _Story(context, main, body).blocks(body)
    builder.leave_headings()
    for kind, text in margins:
        if kind is BlockType.PAGE_FOOTER:
            builder.add_block(kind, text)


class _Parts:
    """The parts that the main part links to."""

    def __init__(self, package: OfficePackage, main: str) -> None:
        self.package = package
        self.relationships = package.relationships(main)
        self._main = main

    def first(self, type: str) -> etree._Element | None:
        """The part with this relationship type, None if there is none or it cannot be read."""
        for part in self.package.related(self._main, type)[:1]:
            return self.package.xml(part)
        return None

    def elements(self, type: str, tag: str) -> list[etree._Element]:
        root = self.first(type)
        if root is None:
            return []
        return [element for element in root.iterfind(f"{W}{tag}") if element.get(f"{W}type", "normal") == "normal"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Context:
    package: OfficePackage
    builder: DocumentBuilder
    styles: Styles
    numbering: Numbering
    notes: Mapping[str, Mapping[str, etree._Element]]
    """Notes and comments by kind and id."""
    used_images: dict[str, int | None] = field(default_factory=dict)
    """Parts of pictures already kept: a logo on every page is one image."""


class _Story:
    """A run of blocks with its own fields and relationships: the body, a header, a note."""

    def __init__(self, context: _Context, part: str, root: etree._Element) -> None:
        self._context = context
        self._builder = context.builder
        self._reader = ParagraphReader(root)
        self._relationships: dict[str, Relationship] = context.package.relationships(part)
        self._carried = ""
        """Text of paragraphs whose end mark is deleted: it goes on in the next one."""
        self._in_list = False

    def blocks(self, container: etree._Element) -> None:
        """Add everything in a container of paragraphs and tables to the document."""
        for element in _block_elements(container):
            if element.tag == f"{W}p":
                self._paragraph(element)
            else:
                self._table(element)
        if self._reader.hidden_text:
            self._builder.warn("text formatted as hidden was left out")

    def text(self, container: etree._Element) -> str:
        """The same as plain lines, for cells, notes, headers and boxes inside cells."""
        lines: list[str] = []
        references: list[Reference] = []
        self._lines(container, lines, references)
        return "\n".join(line for line in lines if line.strip())

    def _paragraph(self, element: etree._Element) -> None:
        content = self._reader.read(element)
        if _mark_is_deleted(element):
            self._carried += content.text
            self._attachments(content)
            return
        text = (self._carried + content.text).strip()
        self._carried = ""
        if text:
            self._text_block(element, text)
        self._attachments(content)

    def _text_block(self, element: etree._Element, text: str) -> None:
        style = self._context.styles.of(element)
        text = self._numbered(style, text)
        is_list = self._context.numbering.is_list(style.numbering_id)
        separator = "\n" if self._in_list and is_list else "\n\n"
        self._in_list = False
        if style.heading_level is not None and len(text) <= MAX_HEADING_CHARACTERS:
            self._builder.add_block(BlockType.HEADING, " ".join(text.split()), level=style.heading_level)
        elif is_list and style.heading_level is None:
            level = list_depth(style.numbering_level)
            self._builder.add_block(BlockType.LIST_ITEM, text, level=level, separator=separator)
            self._in_list = True
        elif style.is_caption:
            self._builder.add_block(BlockType.CAPTION, text)
        elif style.is_code:
            self._builder.add_block(BlockType.CODE, text)
        else:
            role = {"role": "contents"} if style.is_contents else None
            self._builder.add_block(BlockType.PARAGRAPH, text, metadata=role)

    def _numbered(self, style: ParagraphStyle, text: str) -> str:
        if style.numbering_id is None or not self._context.numbering.is_list(style.numbering_id):
            return text
        return f"{self._context.numbering.label(style.numbering_id, style.numbering_level or 0)} {text}".strip()

    def _table(self, element: etree._Element) -> None:
        self._in_list = False
        rows = list(_table_rows(element))
        cells = [cell for row in rows for cell in row]
        nested = any(cell.element.find(f".//{W}tbl") is not None for cell in cells)
        one_row = len(rows) == 1
        one_column = all(len(row) <= 1 for row in rows)
        if len(cells) == 1 or (nested and (one_row or one_column)):
            for cell in cells:
                self.blocks(cell.element)
            return
        references: list[Reference] = []
        table = resolve_spans([self._cell(cell, references) for cell in cells])
        self._builder.add_block(BlockType.TABLE, markdown_table(table), rows=table)
        self._references(references)

    def _cell(self, cell: "_Cell", references: list[Reference]) -> TableCell:
        lines: list[str] = []
        self._lines(cell.element, lines, references)
        return TableCell(
            row=cell.row,
            column=cell.column,
            text="\n".join(lines).strip(),
            row_span=cell.row_span,
            column_span=cell.column_span,
        )

    def _lines(self, container: etree._Element, lines: list[str], references: list[Reference]) -> None:
        for element in _block_elements(container):
            if element.tag == f"{W}p":
                content = self._reader.read(element)
                references.extend(content.references)
                text = content.text.strip()
                lines.append(self._numbered(self._context.styles.of(element), text) if text else "")
                for box in content.boxes:
                    self._lines(box, lines, references)
            else:
                for row in _table_rows(element):
                    texts = (" ".join(self._cell(cell, references).text.split()) for cell in row)
                    lines.append(", ".join(text for text in texts if text))

    def _attachments(self, content: ParagraphContent) -> None:
        for box in content.boxes:
            self.blocks(box)
        self._references(content.references)

    def _references(self, references: list[Reference]) -> None:
        for reference in references:
            match reference.kind:
                case "image":
                    self._image(reference)
                case "chart" | "diagram":
                    self._graphic(reference)
                case _:
                    self._note(reference)

    def _note(self, reference: Reference) -> None:
        note = self._context.notes[reference.kind].get(reference.id)
        if note is None:
            return
        text = _Story(self._context, "", note).text(note)
        if reference.kind == "comment":
            author = note.get(f"{W}author", "")
            self._builder.add_block(BlockType.ANNOTATION, text, metadata={"author": author} if author else None)
        else:
            self._builder.add_block(BlockType.FOOTNOTE, text, metadata={"note": reference.id, "kind": reference.kind})

    def _target(self, identifier: str) -> str | None:
        found = self._relationships.get(identifier)
        return None if found is None or found.external or found.target not in self._context.package else found.target

    def _image(self, reference: Reference) -> None:
        part = self._target(reference.id)
        if part is None:
            return
        used = self._context.used_images
        if part not in used:
            content = self._context.package.read(part)
            used[part] = add_image(self._builder, content, description=reference.description)
            if used[part] is not None and reference.description:
                self._builder.add_block(BlockType.IMAGE, reference.description, metadata={"image": str(used[part])})

    def _graphic(self, reference: Reference) -> None:
        part = self._target(reference.id)
        if part is None:
            return
        root = self._context.package.xml(part)
        if reference.kind == "diagram":
            for line in diagram_lines(root):
                self._builder.add_block(BlockType.LIST_ITEM, line, level=1, metadata={"role": "diagram"})
            return
        title, rows = chart_rows(root)
        self._builder.add_block(BlockType.CAPTION, title)
        self._builder.add_block(BlockType.TABLE, markdown_table(rows), rows=rows, metadata={"role": "chart"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cell:
    element: etree._Element
    row: int
    column: int
    row_span: int
    column_span: int


def _block_elements(container: etree._Element) -> Iterator[etree._Element]:
    """Paragraphs and tables of a container, through content controls and other wrappers, in order."""
    for child in container:
        name = local_name(child)
        if child.tag in {f"{W}p", f"{W}tbl"}:
            yield child
        elif name == "AlternateContent":
            yield from (element for version in list(child)[:1] for element in _block_elements(version))
        elif name == "sdt" and is_placeholder(child):
            continue
        elif name in {"sdt", "sdtContent", "ins", "moveTo", "customXml", "smartTag", "Choice", "Fallback"}:
            yield from _block_elements(child)


def _table_rows(table: etree._Element) -> Iterator[list[_Cell]]:
    """Cells by row, with merged ones resolved to spans; deleted rows are left out."""
    grid = [row for row in _through_wrappers(table, "tr") if row.find(f"{W}trPr/{W}del") is None]
    placed: list[list[tuple[int, int, bool, etree._Element]]] = []
    for row in grid:
        column = to_int(_attribute(row, "trPr/{W}gridBefore"), 0)
        cells = []
        for cell in _through_wrappers(row, "tc"):
            span = min(max(to_int(_attribute(cell, "tcPr/{W}gridSpan"), 1), 1), MAX_SPAN)
            merge = cell.find(f"{W}tcPr/{W}vMerge")
            continues = merge is not None and merge.get(f"{W}val", "continue") == "continue"
            cells.append((column, span, continues, cell))
            column += span
        placed.append(cells)
    continued = [{column for column, _, continues, _ in cells if continues} for cells in placed]
    for index, cells in enumerate(placed):
        row_cells = []
        for column, span, continues, element in cells:
            if continues and index > 0:
                continue
            end = index + 1
            while end < len(placed) and column in continued[end]:
                end += 1
            row_cells.append(_Cell(element=element, row=index, column=column, row_span=end - index, column_span=span))
        yield row_cells


def _through_wrappers(parent: etree._Element, tag: str) -> Iterator[etree._Element]:
    """Children with this tag, also inside content controls around rows or cells."""
    for child in parent:
        if child.tag == f"{W}{tag}":
            yield child
        elif local_name(child) in {"sdt", "sdtContent", "customXml", "ins", "moveTo"}:
            yield from _through_wrappers(child, tag)


def _attribute(element: etree._Element, path: str) -> str | None:
    found = element.find(f"{W}{path.format(W=W)}")
    return found.get(f"{W}val") if found is not None else None


def _mark_is_deleted(paragraph: etree._Element) -> bool:
    mark = paragraph.find(f"{W}pPr/{W}rPr")
    return mark is not None and any(mark.find(f"{W}{name}") is not None for name in ("del", "moveFrom"))


def _margin_texts(body: etree._Element, parts: _Parts, context: _Context) -> Iterator[tuple[BlockType, str]]:
    """Headers and footers of all sections, equal ones once, those without a letter (page numbers) left out."""
    kinds = {f"{W}headerReference": BlockType.PAGE_HEADER, f"{W}footerReference": BlockType.PAGE_FOOTER}
    seen: set[tuple[BlockType, str]] = set()
    for reference in body.iter(*kinds):
        relationship = parts.relationships.get(reference.get(f"{R}id", ""))
        if relationship is None or relationship.external or relationship.target not in parts.package:
            continue
        root = parts.package.xml(relationship.target)
        text = _Story(context, relationship.target, root).text(root)
        found = (kinds[str(reference.tag)], text)
        if found not in seen and any(character.isalpha() for character in text):
            seen.add(found)
            yield found
