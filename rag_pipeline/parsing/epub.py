"""Electronic books (epub 2 and 3): chapters in the order of the spine, read as HTML, titles from the contents."""

import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar
from urllib.parse import unquote

from lxml import etree

from rag_pipeline.core.parsed_document import BlockType, DocumentBuilder, ParsedDocument
from rag_pipeline.core.ports import ParseRequest
from rag_pipeline.errors import CorruptDocumentError, InvalidDocumentError
from rag_pipeline.parsing.encoding import decode
from rag_pipeline.parsing.html import add_html
from rag_pipeline.parsing.office.drawing import add_image, local_name
from rag_pipeline.parsing.office.package import Archive, encrypted
from rag_pipeline.parsing.parser import Parser

CONTAINER = "META-INF/container.xml"
ENCRYPTION = "META-INF/encryption.xml"

_CHAPTER_TYPES = frozenset({"application/xhtml+xml", "text/html", "application/x-dtbook+xml"})
_HEADING = re.compile(r"<h[1-6][\s>]", re.IGNORECASE)
_DECLARED = re.compile(rb"""<\?xml[^>]*encoding=["']([\w.:-]+)""")
_METADATA = {"title": "title", "creator": "author", "language": "language", "date": "created", "subject": "keywords"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Item:
    id: str
    path: str
    media_type: str
    properties: str


class EpubParser(Parser):
    """Chapters, headings, tables and pictures of a book. Books have no fixed pages, so there are no page numbers."""

    name: ClassVar[str] = "epub"
    version: ClassVar[str] = "1"

    def parse(self, request: ParseRequest) -> ParsedDocument:
        """Parse the file at `request.path`. Errors as `Parser`; books under copy protection are `encrypted`."""
        builder = DocumentBuilder(parser=self.name, parser_version=self.version)
        with Archive.open(request) as archive:
            book = _Book(archive)
            for item in book.chapters():
                _add_chapter(builder, archive, item, book.titles.get(item.path, ""))
            for item in book.items.values():
                if item.media_type.startswith("image/") and item.path in archive:
                    add_image(builder, archive.read(item.path))
            builder.metadata.update(book.metadata())
        if not builder.block_count:
            builder.warn("the book holds no text")
        return builder.build()


class _Book:
    """The package document of a book: what it consists of and in which order."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        if CONTAINER not in archive:
            raise CorruptDocumentError(f"{archive.file_name} is no complete epub ({CONTAINER} is missing)")
        root_file = next((found.get("full-path", "") for found in archive.xml(CONTAINER).iter("{*}rootfile")), "")
        self._folder = posixpath.dirname(root_file)
        self._package = archive.xml(unquote(root_file))
        self.items = {item.id: item for item in self._items()}
        self.titles = dict(reversed(list(self._titles())))
        """Title in the table of contents by chapter; the first that points to it."""

    def chapters(self) -> Iterator[_Item]:
        """The texts in reading order, without the table of contents.

        Raises `EncryptedDocumentError` if a chapter is encrypted; obfuscated fonts do not count.
        """
        protected = self._protected()
        for reference in self._package.iterfind("{*}spine/{*}itemref"):
            item = self.items.get(reference.get("idref", ""))
            if item is None or item.media_type not in _CHAPTER_TYPES or "nav" in item.properties.split():
                continue
            if item.path in protected:
                raise encrypted(self._archive.file_name)
            yield item

    def metadata(self) -> dict[str, str]:
        """Title, author, language, date and subject as far as they are given."""
        found: dict[str, str] = {}
        for element in self._package.iterfind("{*}metadata/*"):
            name = _METADATA.get(local_name(element), "")
            text = " ".join((element.text or "").split())
            if name and text:
                found.setdefault(name, text)
        return found

    def _items(self) -> Iterator[_Item]:
        for element in self._package.iterfind("{*}manifest/{*}item"):
            yield _Item(
                id=element.get("id", ""),
                path=_resolve(self._folder, element.get("href", "")),
                media_type=element.get("media-type", ""),
                properties=element.get("properties", ""),
            )

    def _titles(self) -> Iterator[tuple[str, str]]:
        for item in self.items.values():
            if item.path not in self._archive:
                continue
            folder = posixpath.dirname(item.path)
            if item.media_type == "application/x-dtbncx+xml":
                for point in self._archive.xml(item.path).iter("{*}navPoint"):
                    content = point.find("{*}content")
                    text = point.findtext("{*}navLabel/{*}text") or ""
                    if content is not None:
                        yield _resolve(folder, content.get("src", "")), " ".join(text.split())
            elif "nav" in item.properties.split():
                for link in self._archive.xml(item.path).iter("{*}a"):
                    yield _resolve(folder, link.get("href", "")), " ".join(_all_text(link).split())

    def _protected(self) -> set[str]:
        if ENCRYPTION not in self._archive:
            return set()
        references = self._archive.xml(ENCRYPTION).iter("{*}CipherReference")
        return {unquote(reference.get("URI", "")) for reference in references}


def _add_chapter(builder: DocumentBuilder, archive: Archive, item: _Item, title: str) -> None:
    if item.path not in archive:
        builder.warn(f"the chapter {item.path} is missing from the file")
        return
    content = archive.read(item.path)
    declared = _DECLARED.match(content)
    try:
        source = decode(content, declared=declared[1].decode() if declared else None).text
    except InvalidDocumentError:
        builder.warn(f"the chapter {item.path} is damaged and was left out")
        return
    if title and not _HEADING.search(source):
        builder.add_block(BlockType.HEADING, title, level=1)
    add_html(builder, source)


def _resolve(folder: str, reference: str) -> str:
    path = unquote(reference).partition("#")[0]
    return posixpath.normpath(posixpath.join(folder, path)) if path else ""


def _all_text(element: etree._Element) -> str:
    return "".join(str(text) for text in element.itertext())
