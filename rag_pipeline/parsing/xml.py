"""XML: titled sections become headings, prose paragraphs, small elements records, each with its path.

Entities that a file declares are refused (expansion bombs, local files); the DTD is never loaded.
"""

import re
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from rag_pipeline.core.parsed_document import BlockType, DocumentBuilder, ParsedDocument
from rag_pipeline.core.ports import ParseRequest
from rag_pipeline.errors import CorruptDocumentError
from rag_pipeline.parsing.encoding import read_text
from rag_pipeline.parsing.parser import Parser
from rag_pipeline.parsing.tables import TableCell, markdown_table, resolve_spans
from rag_pipeline.parsing.text import new_builder

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

RECORD_CHARACTERS = 1500
"""An element that renders to more is divided into its children: about the size of a chunk."""
MAX_DEPTH = 200
"""Elements nested deeper than this are read as one paragraph."""

_DECLARATION = re.compile(r"\s*<\?xml\b[^>]*\?>")
_DECLARED = re.compile(rb"<\?xml\b[^>]*?\bencoding\s*=\s*[\"']([\w.:-]+)[\"']")
_TITLES = frozenset({"title", "head", "heading", "article-title", "invention-title", "subtitle"})
_PARAGRAPHS = frozenset({"p", "para", "paragraph", "simpara"})
_SECTIONS = frozenset({"sec", "section", "chapter", "abstract", "body"})
_ROWS = frozenset({"tr", "row"})
_CELLS = frozenset({"td", "th", "entry"})


class XmlParser(Parser):
    """Any XML; understands the titles, paragraphs and tables of JATS, DocBook, patents and XHTML."""

    name: ClassVar[str] = "xml"
    version: ClassVar[str] = "1"

    def parse(self, request: ParseRequest) -> ParsedDocument:
        """Parse the file at `request.path`. XML that is not well-formed, or declares entities, is corrupt."""
        with request.path.open("rb") as file:
            declared = _DECLARED.search(file.read(1024))
        decoded = read_text(request, declared=declared.group(1).decode("ascii", "replace") if declared else None)
        builder = new_builder(self, decoded)
        root = _parse(_DECLARATION.sub("", decoded.text, count=1))
        builder.metadata["root"] = _name(root)
        _Walker(builder).add(root, f"/{_name(root)}", (_name(root),), titled=0)
        if not builder.block_count:
            builder.warn("the file holds no visible text")
        return builder.build()


def _parse(text: str) -> "Element":
    from xml.etree.ElementTree import ParseError

    from defusedxml import DefusedXmlException
    from defusedxml.ElementTree import fromstring

    try:
        root: Element = fromstring(text.strip(), forbid_dtd=False, forbid_entities=True, forbid_external=True)
    except ParseError as error:
        line, column = error.position
        raise CorruptDocumentError(f"the XML is broken at line {line}, column {column + 1}: {error.msg}") from error
    except DefusedXmlException as error:
        raise CorruptDocumentError(
            "the XML declares entities, which are refused because they can expand without end or read local files: "
            "save it with the entities replaced by their text"
        ) from error
    return root


class _Walker:
    """Adds the blocks of one tree in document order."""

    def __init__(self, builder: DocumentBuilder) -> None:
        self._builder = builder

    def add(self, element: "Element", path: str, trail: tuple[str, ...], *, titled: int) -> None:
        """Add an element.

        Args:
            element: what to add.
            path: XPath of the element.
            trail: names of the elements from the root to here.
            titled: number of titled elements around it.
        """
        if len(trail) > MAX_DEPTH or _is_prose(element):
            self._paragraph(element, path)
        elif _name(element) in {"table", "tgroup"} and (rows := _table_rows(element)):
            self._builder.add_block(BlockType.TABLE, markdown_table(rows), rows=rows, metadata={"xml_path": path})
        elif (lines := _record_lines(element)) is not None:
            text = "\n".join([" > ".join(trail), *lines])
            self._builder.add_block(BlockType.RECORD, text, metadata={"xml_path": path})
        else:
            self._add_children(element, path, trail, titled=titled)

    def _add_children(self, element: "Element", path: str, trail: tuple[str, ...], *, titled: int) -> None:
        lines = _attribute_lines(element)
        self._flush(lines, path, trail)
        is_section = False
        leaves: list[str] = []
        numbers: Counter[str] = Counter()
        totals = Counter(_name(child) for child in element)
        for child in element:
            name = _name(child)
            numbers[name] += 1
            child_path = f"{path}/{name}[{numbers[name]}]" if totals[name] > 1 else f"{path}/{name}"
            if name in _TITLES and not is_section and _text(child):
                self._flush(leaves, path, trail)
                is_section = True
                self._builder.add_block(
                    BlockType.HEADING, _text(child), level=min(titled + 1, 6), metadata={"xml_path": child_path}
                )
            elif len(child) == 0 and name not in _PARAGRAPHS and name not in _TITLES:
                leaves.extend(_leaf_lines(child, name))
            else:
                self._flush(leaves, path, trail)
                self.add(child, child_path, (*trail, name), titled=titled + is_section)
        self._flush(leaves, path, trail)

    def _flush(self, lines: list[str], path: str, trail: tuple[str, ...]) -> None:
        if lines:
            text = "\n".join([" > ".join(trail), *lines])
            self._builder.add_block(BlockType.RECORD, text, metadata={"xml_path": path})
            lines.clear()

    def _paragraph(self, element: "Element", path: str) -> None:
        self._builder.add_block(BlockType.PARAGRAPH, _text(element), metadata={"xml_path": path})


def _name(element: "Element") -> str:
    """The tag without its namespace; comments and instructions are not in the tree."""
    return str(element.tag).rpartition("}")[2]


def _is_prose(element: "Element") -> bool:
    """Whether words stand between the children, or the element is a paragraph or title without structure."""
    if (element.text or "").strip() and len(element):
        return True
    if any((child.tail or "").strip() for child in element):
        return True
    return len(element) == 0 and _name(element) in _PARAGRAPHS | _TITLES


def _text(element: "Element") -> str:
    """All text, white space as one blank; words of neighbouring elements stay apart."""
    return " ".join("".join(_text_pieces(element)).split())


def _text_pieces(element: "Element") -> Iterator[str]:
    """Text in document order, with a blank around children that are not part of a sentence."""
    waiting: list[tuple[Element, bool] | str] = [(element, False)]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            yield item
            continue
        node, is_apart = item
        separates = len(node) > 0 and not _is_prose(node)
        around = " " if is_apart else ""
        following: list[tuple[Element, bool] | str] = [around, node.text or ""]
        for child in node:
            following.append((child, separates or _name(child) in _PARAGRAPHS | _CELLS))
            following.append(child.tail or "")
        waiting.extend(reversed([*following, around]))


def _record_lines(element: "Element") -> list[str] | None:
    """Lines "path: value" of an element without prose, if they are no larger than a record; else None."""
    counts = Counter(_name(child) for child in element if len(child))
    if any(count > 1 for count in counts.values()):
        return None
    lines: list[str] = []
    size = 0
    waiting = [(element, "", 0)]
    while waiting:
        node, label, depth = waiting.pop()
        name = _name(node)
        if (depth and (name in _PARAGRAPHS or name == "table")) or _is_prose(node) or depth > MAX_DEPTH:
            return None
        if len(node) and name in _SECTIONS:
            return None
        if len(node):
            lines.extend(_attribute_lines(node, label))
            waiting.extend(
                (child, f"{label}.{_name(child)}" if label else _name(child), depth + 1) for child in reversed(node)
            )
        else:
            lines.extend(_leaf_lines(node, label))
        size += len(lines[-1]) if lines else 0
        if size > RECORD_CHARACTERS:
            return None
    return lines or None


def _leaf_lines(element: "Element", label: str) -> list[str]:
    """An element without children: its text, attributes in parentheses behind."""
    text = " ".join((element.text or "").split())
    attributes = "; ".join(f"{_attribute(name)}: {value}" for name, value in element.attrib.items() if value.strip())
    if not text and not attributes:
        return []
    value = f"{text} ({attributes})" if text and attributes else text or attributes
    return [f"{label}: {value}" if label else value]


def _attribute_lines(element: "Element", label: str = "") -> list[str]:
    prefix = f"{label}." if label else ""
    return [f"{prefix}{_attribute(name)}: {value}" for name, value in element.attrib.items() if value.strip()]


def _attribute(name: str) -> str:
    return name.rpartition("}")[2]


def _table_rows(table: "Element") -> list[list[str]]:
    """Cells of an XHTML or CALS table, merged ones resolved; empty if it holds no rows of cells."""
    cells: list[TableCell] = []
    taken: set[tuple[int, int]] = set()
    rows = [row for row in table.iter() if _name(row) in _ROWS]
    for number, row in enumerate(rows):
        column = 0
        for cell in row:
            if _name(cell) not in _CELLS:
                continue
            while (number, column) in taken:
                column += 1
            down = min(_count(cell.get("rowspan") or str(_count(cell.get("morerows"), 0) + 1)), len(rows) - number)
            across = _count(cell.get("colspan"))
            taken.update((number + y, column + x) for y in range(down) for x in range(across))
            cells.append(TableCell(row=number, column=column, text=_text(cell), row_span=down, column_span=across))
            column += across
    return resolve_spans(cells)


def _count(text: str | None, default: int = 1) -> int:
    """A span attribute, within reason: HTML's own limit is 1,000 columns."""
    return min(max(int(text), default), 1000) if text and text.strip().isdecimal() else default
