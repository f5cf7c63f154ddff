"""HTML: everything a reader sees, in order, as headings, paragraphs, list items, tables, code and captions.

Parsed by lxml (libxml2's lenient HTML parser). Scripts, styles, templates and hidden elements are left out; menus are
kept in the text as PAGE_HEADER blocks, which are not put into chunks.
"""

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar
from urllib.parse import urljoin

from lxml import etree

from rag_pipeline.core.parsed_document import BlockType, DocumentBuilder, ParsedDocument, is_blank
from rag_pipeline.core.ports import ParseRequest
from rag_pipeline.errors import CorruptDocumentError
from rag_pipeline.parsing.encoding import read_text
from rag_pipeline.parsing.html_elements import (
    BLOCKS,
    HEADINGS,
    collapse,
    count_in,
    field_text,
    follows_control,
    is_hidden,
    parts_of,
    squeeze,
)
from rag_pipeline.parsing.html_tables import cell_text, cells_of, is_layout
from rag_pipeline.parsing.parser import Parser
from rag_pipeline.parsing.tables import markdown_table, resolve_spans
from rag_pipeline.parsing.text import add_paragraphs, new_builder

MAX_LINKS_PER_BLOCK = 20
_DECLARED = re.compile(rb"<meta\b[^>]*?\bcharset\s*=\s*[\"']?\s*([\w.:-]+)", re.IGNORECASE)
_XML_DECLARATION = re.compile(r"^\s*<\?xml\b[^>]*>")
_XML_ENCODING = re.compile(rb"^\s*<\?xml\b[^>]*?\bencoding\s*=\s*[\"']([\w.:-]+)")
_LANGUAGE_CLASS = re.compile(r"(?:^|\s)(?:language|lang|highlight-source|brush:)-?\s*([\w+#-]+)")
_MARKUP = re.compile(r"<!--|<(script|style)\b[^<>]*>|<[/!?a-z][^<>]*>", re.IGNORECASE)
_META = {
    "author": "author",
    "description": "description",
    "keywords": "keywords",
    "date": "date",
    "article:published_time": "date",
    "og:title": "title",
}


class HtmlParser(Parser):
    """html, htm, xhtml."""

    name: ClassVar[str] = "html"
    version: ClassVar[str] = "1"

    def parse(self, request: ParseRequest) -> ParsedDocument:
        """Parse the file at `request.path`. HTML is never broken: what no tag makes sense of is text."""
        with request.path.open("rb") as file:
            head = file.read(4096)
        declared = _DECLARED.search(head) or _XML_ENCODING.search(head)
        decoded = read_text(request, declared=declared.group(1).decode("ascii", "replace") if declared else None)
        builder = new_builder(self, decoded)
        add_html(builder, decoded.text)
        if not builder.block_count:
            builder.warn("the page holds no visible text")
        return builder.build()


def add_html(builder: DocumentBuilder, source: str, *, base: str = "") -> None:
    """Add the blocks of a page (or of a part of one) and put its title, language and meta facts into the metadata.

    Args:
        builder: where the blocks go.
        source: decoded HTML.
        base: address that relative links belong to; `<base>` and the canonical link in the page win.
    """
    source = _XML_DECLARATION.sub("", source, count=1)
    if is_blank(source):
        return
    root = _parse(source)
    if root is None:
        builder.warn("the page is nested too deeply for its structure to be used; it was read as plain text")
        text = html.unescape(strip_markup(source, "\n\n"))
        add_paragraphs(builder, "\n\n".join(" ".join(line.split()) for line in text.split("\n\n") if line.strip()))
        return
    _read_head(builder, root)
    _Walker(builder, _base(root) or base).add(root)


def strip_markup(source: str, replacement: str = "") -> str:
    """HTML without tags, comments, scripts and styles, in linear time whatever is left open."""
    pieces: list[str] = []
    position = 0
    lower = source.lower() if len(source.lower()) == len(source) else source
    while match := _MARKUP.search(source, position):
        pieces += [source[position : match.start()], replacement]
        position = match.end()
        if match.group() == "<!--":
            position = lower.find("-->", position) + 3
        elif match.group(1):
            position = lower.find(f"</{match.group(1).lower()}", position)
        if position < match.end():
            return "".join(pieces)
    return "".join([*pieces, source[position:]])


def _parse(source: str) -> "etree._Element | None":
    """The tree of a page, None if elements are nested so deeply (2,048) that libxml2 stops reading.

    Raises:
        CorruptDocumentError: libxml2 finds nothing that it can read.
    """
    parser = etree.HTMLParser(encoding="utf-8", huge_tree=True, remove_comments=True, remove_pis=True, no_network=True)
    try:
        root = etree.fromstring(source.encode("utf-8"), parser)
    except etree.XMLSyntaxError as error:
        raise CorruptDocumentError(f"the HTML cannot be read: {error.msg}") from error
    if any(entry.type == etree.ErrorTypes.ERR_RESOURCE_LIMIT for entry in parser.error_log):
        return None
    return etree.Element("html") if root is None else root


def _read_head(builder: DocumentBuilder, root: "etree._Element") -> None:
    for meta in root.iter("meta"):
        name = (meta.get("name") or meta.get("property") or "").strip().lower()
        content = " ".join((meta.get("content") or "").split())
        if name in _META and content:
            builder.metadata.setdefault(_META[name], content)
    title = next((" ".join((element.text or "").split()) for element in root.iter("title")), "")
    if title:
        builder.metadata["title"] = title
    language = root.get("lang") or root.get("{http://www.w3.org/XML/1998/namespace}lang") or root.get("xml:lang")
    if language:
        builder.metadata["language"] = language.strip()


def _base(root: "etree._Element") -> str:
    for element in root.iter("base"):
        if element.get("href"):
            return str(element.get("href")).strip()
    for element in root.iter("link"):
        if (element.get("rel") or "").strip().lower() == "canonical" and element.get("href"):
            return str(element.get("href")).strip()
    return ""


@dataclass(slots=True)
class _Context:
    """What the elements around the current one make of its text."""

    type: BlockType = BlockType.PARAGRAPH
    level: int | None = None
    is_menu: bool = False
    is_preformatted: bool = False
    language: str = ""
    list_depth: int = 0


@dataclass(slots=True)
class _Pending:
    """Inline text that has not become a block yet."""

    pieces: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    mark: str = ""
    """Bullet or number of the list item that begins here."""


class _Walker:
    """Goes through a tree without recursion (pages nest thousands of elements) and adds blocks."""

    def __init__(self, builder: DocumentBuilder, base: str) -> None:
        self._builder = builder
        self._base = base
        self._pending = _Pending()
        self._follows_item = False
        self._numbers: dict[etree._Element, int] = {}
        """Number of the last item of each ordered list."""

    def add(self, root: "etree._Element") -> None:
        """Add every visible block under the root."""
        context = _Context()
        waiting: list[tuple[etree._Element | str | None, _Context]] = [(root, context)]
        while waiting:
            item, context = waiting.pop()
            if item is None:
                self._flush(context)
            elif isinstance(item, str):
                self._pending.pieces.append(item if context.is_preformatted else squeeze(item))
            elif isinstance(item.tag, str) and not is_hidden(item):
                waiting.extend(reversed(self._enter(item, context)))
        self._flush(context)

    def _enter(
        self, element: "etree._Element", context: _Context
    ) -> list[tuple["etree._Element | str | None", _Context]]:
        """What is to be done for an element, in order; None ends a block."""
        tag = str(element.tag)
        if tag == "br":
            self._pending.pieces.append("\n")
            return []
        if tag == "img":
            self._pending.pieces.append(f" {element.get('alt') or ''} ")
            return []
        if tag in {"input", "textarea"}:
            self._pending.pieces.append(field_text(element))
            return []
        if follows_control(element):
            self._pending.pieces.append(" ")
        if tag == "a" and element.get("href"):
            self._link(str(element.get("href")))
        if tag not in BLOCKS:
            return list(_children(element, context))
        self._flush(context)
        if tag == "table" and not context.is_menu and self._add_table(element):
            return []
        inner = _inner_context(element, tag, context)
        if tag == "li":
            self._pending.mark = self._mark(element)
        return [*_children(element, inner), (None, inner)]

    def _mark(self, item: "etree._Element") -> str:
        """The bullet or number in front of a list item."""
        parent = item.getparent()
        if parent is None or parent.tag != "ol":
            return "- "
        number = count_in(item.get("value"), self._numbers.get(parent, count_in(parent.get("start"), 1) - 1) + 1)
        self._numbers[parent] = number
        return f"{number}. "

    def _link(self, address: str) -> None:
        address = address.strip()
        if not address or address.startswith(("#", "javascript:", "data:")):
            return
        try:
            address = urljoin(self._base, address) if self._base else address
        except ValueError:
            return
        if address not in self._pending.links and len(self._pending.links) < MAX_LINKS_PER_BLOCK:
            self._pending.links.append(address)

    def _flush(self, context: _Context) -> None:
        """Make a block of the pending inline text."""
        pending = self._pending
        raw = "".join(pending.pieces)
        text = raw.strip("\n") if context.is_preformatted else collapse(raw)
        if is_blank(text):
            pending.pieces.clear()
            pending.links.clear()
            return
        self._pending = _Pending()
        metadata = {"href": " ".join(pending.links)} if pending.links else {}
        if context.language:
            metadata["language"] = context.language
        kind, level = context.type, context.level
        if context.is_menu:
            kind, level = BlockType.PAGE_HEADER, None
        elif kind is BlockType.LIST_ITEM and pending.mark:
            text = pending.mark + text
        if kind is BlockType.HEADING:
            text = text.replace("\n", " ")
        separator = "\n" if kind is BlockType.LIST_ITEM and self._follows_item else "\n\n"
        self._builder.add_block(kind, text, separator=separator, level=level, metadata=metadata)
        self._follows_item = kind is BlockType.LIST_ITEM

    def _add_table(self, table: "etree._Element") -> bool:
        """Add a table with its caption and then the tables inside it; False for one that only arranges the page."""
        cells, nested = cells_of(table)
        rows = resolve_spans(cells)
        if not rows or max(map(len, rows)) < 2 or is_layout(table):
            return False
        for caption in table.iterchildren("caption"):
            self._builder.add_block(BlockType.CAPTION, cell_text(caption)[0])
        for link in table.iter("a"):
            self._link(link.get("href") or "")
        metadata = {"href": " ".join(self._pending.links)} if self._pending.links else {}
        self._pending = _Pending()
        if len(rows) == 1 and len(rows[0]) == 2 and len(rows[0][0]) <= 4 and len(rows[0][1]) > 40:
            # Word processors export list items as tables of a bullet and a text.
            self._builder.add_block(BlockType.LIST_ITEM, " ".join(rows[0]), level=1, metadata=metadata)
        else:
            self._builder.add_block(BlockType.TABLE, markdown_table(rows), rows=rows, metadata=metadata)
        self._follows_item = False
        for inner in nested:
            if not self._add_table(inner):
                self.add(inner)
        return True


def _children(element: "etree._Element", context: _Context) -> Iterator[tuple["etree._Element | str | None", _Context]]:
    return ((part, context) for part in parts_of(element))


def _inner_context(element: "etree._Element", tag: str, context: _Context) -> _Context:
    """The context inside a block element."""
    inner = _Context(
        type=context.type if context.type is BlockType.LIST_ITEM else BlockType.PARAGRAPH,
        level=context.level if context.type is BlockType.LIST_ITEM else None,
        is_menu=context.is_menu or tag == "nav" or element.get("role") in {"navigation", "menu", "menubar"},
        is_preformatted=context.is_preformatted,
        language=context.language,
        list_depth=context.list_depth + (tag in {"ul", "ol", "menu", "dir"}),
    )
    if tag in HEADINGS:
        inner.type, inner.level = BlockType.HEADING, int(tag[1])
    elif tag == "li":
        inner.type, inner.level = BlockType.LIST_ITEM, max(inner.list_depth, 1)
    elif tag in {"figcaption", "caption"}:
        inner.type, inner.level = BlockType.CAPTION, None
    elif tag == "pre":
        inner.type, inner.level, inner.is_preformatted = BlockType.CODE, None, True
        inner.language = _language(element)
    elif tag == "table":
        inner.type, inner.level = BlockType.PARAGRAPH, None
    return inner


def _language(element: "etree._Element") -> str:
    for candidate in (element, *element.iterchildren("code")):
        match = _LANGUAGE_CLASS.search(candidate.get("class") or "")
        if match:
            return match.group(1).lower()
    return ""
