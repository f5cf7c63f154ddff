"""The chunk value and where it came from. Pure values, no I/O; the chunker is in `chunking`."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rag_pipeline.core.parsed_document import BoundingBox


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRegion:
    """A part of a chunk on one page; chunks over a page break have several."""

    page: int
    bbox: BoundingBox | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A retrievable passage of one document version."""

    index: int
    """0-based position in the document."""
    text: str
    start: int
    """Character offset in `ParsedDocument.text`; `text == document.text[start:end]` except where a table or code
    header is repeated in front (then the text ends with that span)."""
    end: int
    tokens: int
    """Of `embedded_text`, by the chunker's token counter."""
    heading_path: tuple[str, ...] = ()
    """Titles of the headings above, outermost first; shortened where it would fill a quarter of the chunk."""
    section: int = 0
    """Number of the section (parent) that the chunk belongs to, for small-to-big; its chunks are adjacent."""
    page: int | None = None
    page_end: int | None = None
    regions: tuple[PageRegion, ...] = ()
    block_types: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def embedded_text(self) -> str:
        """What is embedded and analysed for BM25: the heading path in front of the text, which stays as it is."""
        return with_heading_path(self.heading_path, self.text)


def with_heading_path(heading_path: tuple[str, ...], text: str) -> str:
    """The text with the line of its headings in front, if there are any."""
    return "\n".join((" > ".join(heading_path), text)) if heading_path else text


def chunk_id(document_id: str, version: int, index: int) -> str:
    """The stable id of a chunk; it is the primary key in PostgreSQL and Milvus."""
    return f"{document_id}_{version}_{index}"


def parent_id(document_id: str, version: int, section: int) -> str:
    """The stable id of a chunk's section."""
    return f"{document_id}_{version}_s{section}"
