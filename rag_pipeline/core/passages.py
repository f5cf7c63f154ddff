"""What the facts know of a passage that may be shown, and of the images beside it. Pure values, no I/O."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredImage:
    """An image of a live version. Its bytes are fetched by its id."""

    id: str
    document_id: str
    position: int
    """Among the images of the document; what `StoredChunk.metadata["image"]` names."""
    page: int | None
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredChunk:
    """A chunk of a live version, as the facts have it."""

    chunk_id: str
    document_id: str
    kb_id: str
    version: int
    file_name: str
    source_path: str
    text: str
    start: int
    """Character offset in the document's text."""
    end: int
    parent_id: str
    """Id of the section."""
    index: int = 0
    """Position in the document; the chunks of a section follow one another."""
    heading_path: tuple[str, ...] = ()
    page: int | None = None
    page_end: int | None = None
    metadata: Mapping[str, object] = field(default_factory=dict)
    """Metadata of the document and locators of the chunk (`regions`, `block_types`, sheet, row, ...)."""
