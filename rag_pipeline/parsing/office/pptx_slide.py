"""The content of one slide as blocks: text, tables, charts, SmartArt, pictures, notes and comments."""

from collections.abc import Iterator, Mapping

from lxml import etree

from rag_pipeline.core.parsed_document import BlockType, BoundingBox, DocumentBuilder
from rag_pipeline.parsing.office.docx_styles import format_number, list_depth, to_int
from rag_pipeline.parsing.office.docx_text import R
from rag_pipeline.parsing.office.drawing import (
    MATH,
    add_image,
    chart_rows,
    diagram_lines,
    formula_text,
    local_name,
)
from rag_pipeline.parsing.office.package import OfficePackage
from rag_pipeline.parsing.office.pptx_shapes import TITLES, A, P, Shape, read_shapes
from rag_pipeline.parsing.tables import TableCell, markdown_table, resolve_spans

MAX_SPAN = 1_000
"""Rows or columns that one cell may cover; PowerPoint's limit is 75."""

_NUMBER_FORMS = {"alphaLc": "lowerLetter", "alphaUc": "upperLetter", "romanLc": "lowerRoman", "romanUc": "upperRoman"}
_LIST_PLACEHOLDERS = frozenset({"body", "obj"})
_SKIPPED_PLACEHOLDERS = frozenset({"sldNum", "dt", "hdr", "sldImg"})


class Slide:
    """Reads one slide into the builder.

    `footers` and `images` are shared by the slides of a deck: texts of footers and parts of pictures already met.
    """

    def __init__(
        self,
        package: OfficePackage,
        builder: DocumentBuilder,
        part: str,
        *,
        number: int,
        hidden: bool,
        footers: set[str],
        images: dict[str, int | None],
    ) -> None:
        self._package = package
        self._builder = builder
        self._part = part
        self._links = package.relationships(part)
        self._number = number
        self._hidden = hidden
        self._footers = footers
        self._images = images

    def read(self, slide: etree._Element, inherited: Mapping[tuple[str, str], BoundingBox]) -> None:
        """Add the shapes, then the speaker notes and comments."""
        tree = slide.find(f"{P}cSld/{P}spTree")
        for shape in read_shapes(tree, inherited) if tree is not None else ():
            self._shape(shape)
        for part in self._package.related(self._part, "notesSlide"):
            self._notes(self._package.xml(part))
        for part in self._package.related(self._part, "comments"):
            for comment in self._package.xml(part).iter("{*}cm"):
                text = "\n".join([comment.findtext("{*}text") or "", *(text for _, text in _paragraphs(comment))])
                self._add(BlockType.ANNOTATION, text.strip(), None, role="comment")

    def _add(
        self,
        type: BlockType,
        text: str,
        box: BoundingBox | None,
        *,
        level: int | None = None,
        rows: list[list[str]] | None = None,
        separator: str = "\n\n",
        **metadata: str,
    ) -> None:
        if self._hidden:
            metadata["hidden"] = "true"
        self._builder.add_block(
            type,
            text,
            separator=separator,
            level=level,
            page=self._number,
            bbox=box,
            rows=rows or (),
            metadata=metadata,
        )

    def _shape(self, shape: Shape) -> None:
        for member in shape.members:
            self._shape(member)
        if shape.members or shape.placeholder in _SKIPPED_PLACEHOLDERS:
            return
        if shape.element.tag == f"{P}graphicFrame":
            self._frame(shape)
            return
        body = shape.element.find(f"{P}txBody")
        if body is not None:
            self._text(shape, body)
        self._picture(shape)

    def _text(self, shape: Shape, body: etree._Element) -> None:
        lines = list(_paragraphs(body))
        joined = " ".join(" ".join(text.split()) for _, text in lines)
        if shape.placeholder in TITLES:
            self._add(BlockType.HEADING, joined, shape.box, level=1)
        elif shape.placeholder == "ftr":
            if joined not in self._footers:
                self._footers.add(joined)
                self._add(BlockType.PAGE_FOOTER, joined, shape.box)
        elif len(lines) > 1 and (shape.placeholder in _LIST_PLACEHOLDERS or any(level for level, _ in lines)):
            for index, (level, text) in enumerate(lines):
                separator = "\n" if index else "\n\n"
                self._add(BlockType.LIST_ITEM, text, shape.box, level=list_depth(level), separator=separator)
        else:
            self._add(BlockType.PARAGRAPH, "\n".join(text for _, text in lines), shape.box)

    def _frame(self, shape: Shape) -> None:
        for table in shape.element.iter(f"{A}tbl"):
            rows = resolve_spans(_cells(table))
            self._add(BlockType.TABLE, markdown_table(rows), shape.box, rows=rows)
        for element in shape.element.iter("{*}chart", "{*}relIds"):
            is_chart = local_name(element) == "chart"
            part = self._target(element.get(f"{R}id" if is_chart else f"{R}dm"))
            if part is None:
                continue
            root = self._package.xml(part)
            if is_chart:
                title, rows = chart_rows(root)
                self._add(BlockType.CAPTION, title, shape.box)
                self._add(BlockType.TABLE, markdown_table(rows), shape.box, rows=rows, role="chart")
                continue
            for index, line in enumerate(diagram_lines(root)):
                separator = "\n" if index else "\n\n"
                self._add(BlockType.LIST_ITEM, line, shape.box, level=1, separator=separator, role="diagram")

    def _picture(self, shape: Shape) -> None:
        for blip in shape.element.iterfind(f".//{A}blip"):
            part = self._target(blip.get(f"{R}embed"))
            if part is None or part in self._images:
                continue
            position = add_image(
                self._builder,
                self._package.read(part),
                description=shape.description,
                page=self._number,
                box=shape.box,
            )
            self._images[part] = position
            if position is not None:
                self._add(BlockType.IMAGE, shape.description, shape.box, image=str(position))

    def _notes(self, root: etree._Element) -> None:
        for shape in root.iter(f"{P}sp"):
            placeholder = shape.find(f"{P}nvSpPr/{P}nvPr/{P}ph")
            kind = placeholder.get("type", "obj") if placeholder is not None else ""
            body = shape.find(f"{P}txBody")
            if body is None or kind in _SKIPPED_PLACEHOLDERS or kind == "ftr":
                continue
            self._add(BlockType.ANNOTATION, "\n".join(text for _, text in _paragraphs(body)), None, role="notes")

    def _target(self, identifier: str | None) -> str | None:
        found = self._links.get(identifier or "")
        return None if found is None or found.external or found.target not in self._package else found.target


def _paragraphs(body: etree._Element) -> Iterator[tuple[int, str]]:
    """Level (from 0) and text of the paragraphs that hold any, automatic numbers included."""
    counters: dict[int, int] = {}
    for paragraph in body.iter(f"{A}p"):
        text = "".join(_pieces(paragraph)).strip()
        if not text:
            continue
        properties = paragraph.find(f"{A}pPr")
        level = to_int(properties.get("lvl"), 0) if properties is not None else 0
        numbering = properties.find(f"{A}buAutoNum") if properties is not None else None
        counters = {
            key: value for key, value in counters.items() if key < level or (key == level and numbering is not None)
        }
        if numbering is not None:
            counters[level] = counters.get(level, to_int(numbering.get("startAt"), 1) - 1) + 1
            kind = numbering.get("type", "")
            form = next((form for prefix, form in _NUMBER_FORMS.items() if kind.startswith(prefix)), "decimal")
            text = f"{format_number(counters[level], form)}. {text}"
        yield level, text


def _pieces(element: etree._Element) -> Iterator[str]:
    for child in element:
        name = local_name(child)
        if name == "t" and child.tag == f"{A}t":
            yield child.text or ""
        elif name == "br":
            yield "\n"
        elif isinstance(child.tag, str) and child.tag.startswith(MATH):
            yield formula_text(child)
        elif name == "AlternateContent":
            yield from (piece for version in list(child)[:1] for piece in _pieces(version))
        elif name in {"r", "m", "Choice"} or (name == "fld" and child.get("type") != "slidenum"):
            yield from _pieces(child)


def _cells(table: etree._Element) -> Iterator[TableCell]:
    for row_index, row in enumerate(table.iterfind(f"{A}tr")):
        for column, cell in enumerate(row.iterfind(f"{A}tc")):
            if cell.get("hMerge") in {"1", "true"} or cell.get("vMerge") in {"1", "true"}:
                continue
            yield TableCell(
                row=row_index,
                column=column,
                text="\n".join(text for _, text in _paragraphs(cell)),
                row_span=min(max(to_int(cell.get("rowSpan"), 1), 1), MAX_SPAN),
                column_span=min(max(to_int(cell.get("gridSpan"), 1), 1), MAX_SPAN),
            )
