"""Answers, their citations, and conversations. Pure values, no I/O."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from rag_pipeline.core.passages import StoredImage
from rag_pipeline.core.quotes import Quote

AnswerKind = Literal["generated", "extractive", "no_evidence"]
"""Written by the chat model; sentences of the sources, word for word; or the fixed text without any source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Citation:
    """A source of an answer: one passage that was in the context, as the model saw it."""

    number: int
    """Of `[source N]` in the answer; the rank of the passage."""
    kb_id: str
    document_id: str
    version: int
    file_name: str
    source_path: str
    chunk_id: str
    page: int | None
    page_end: int | None
    heading_path: tuple[str, ...]
    location: str
    """For people: pages, sheet and rows, headings."""
    text: str
    """What the model saw of the passage."""
    start: int
    """Character offset of the passage in the document's text."""
    end: int
    """Of what the model saw of it; pages and location too."""
    is_cited: bool
    """Whether the answer refers to it; the others were in the context and not used."""
    images: tuple[StoredImage, ...] = ()
    quotes: tuple[Quote, ...] = ()
    """Quotations in the answer that are ascribed to this source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Questions about one knowledge base that belong together."""

    id: str
    kb_id: str
    title: str
    """The first question if no other was given; "" before it."""
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A question and its answer, with the evidence that is still there to be shown."""

    position: int
    """0-based."""
    question: str
    answer: str
    """"" if a document that it was made from does not exist any more or may not be seen."""
    kind: AnswerKind
    citations: tuple[Citation, ...]
    """Those of documents that still exist and may be seen."""
    notes: tuple[str, ...]
    created_at: datetime
