"""Visual evidence: the stored image of a hit, or the cited page of the original with the cited blocks outlined.

Everything is looked up anew in the facts: an id, a result or a citation from earlier gives nothing once its document
has been deleted or replaced, and nothing of another knowledge base or of a document that the caller may not see.
"""

import tempfile
import threading
from collections.abc import Mapping
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rag_pipeline.adapters.postgres.passages import Passages, knowledge_base_of
from rag_pipeline.core.answers import Citation
from rag_pipeline.core.filters import DocumentScope
from rag_pipeline.core.parsed_document import BoundingBox
from rag_pipeline.core.passages import StoredChunk, StoredImage
from rag_pipeline.core.ports import ObjectStore, ParseLimits
from rag_pipeline.errors import ParserCrashedError, ParseTimeoutError, RagPipelineError, ResourceNotFoundError
from rag_pipeline.query.results import RetrievalResult
from rag_pipeline.query.retriever import Retriever

if TYPE_CHECKING:
    from pebble import ProcessPool

    from rag_pipeline.parsing.rendering import RenderRequest

RENDER_LIMITS = ParseLimits(seconds=30.0, memory_bytes=1_000_000_000)
PAGES_PER_PROCESS = 200
"""After which the drawing process is replaced: native libraries leak a little."""
DRAWN = (".pdf", ".png", ".jpg", ".jpeg", ".tif", ".tiff", ".webp", ".bmp", ".gif")
"""Originals with pages that can be drawn."""

Subject = RetrievalResult | Citation | StoredImage | str
"""What evidence is asked for; a text is the id of an image or of a chunk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """A page of an original and what to outline there."""

    page: int
    boxes: tuple[BoundingBox, ...]


class VisualEvidence:
    """Draws evidence in one process of its own, which is started when first needed."""

    def __init__(self, *, retriever: Retriever, objects: ObjectStore) -> None:
        self._retriever = retriever
        self._objects = objects
        self._lock = threading.Lock()
        self._pool: ProcessPool | None = None

    def png(self, subject: Subject, *, kb: str | None = None, principals: tuple[str, ...] | None = None) -> bytes:
        """The picture as PNG, bounded in size (`parsing.rendering`).

        Args:
            subject: see `Subject`.
            kb: name of the knowledge base that it has to belong to; None: that of the result, or any for an id.
            principals: who asks, see `RetrievalOptions.principals`.

        Raises:
            ResourceNotFoundError: nothing of that id may be shown (any more), or its format has nothing to draw.
            RagPipelineError: a store is down, or the original cannot be drawn.
        """
        evidence_id = _id_of(subject)
        kb_id = self._knowledge_base(subject, evidence_id, kb)
        if kb_id is None:
            raise _nothing(evidence_id)
        scope = DocumentScope(principals=principals)
        visible = self._retriever.passages(kb_id, scope)
        image_key = visible.image_key(evidence_id)
        if image_key is not None:
            return self._draw(image_key)
        chunk = visible.live([evidence_id]).get(evidence_id)
        if chunk is None:
            raise _nothing(evidence_id)
        return self._of_chunk(subject, chunk, visible)

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._stop()

    def _knowledge_base(self, subject: Subject, evidence_id: str, kb: str | None) -> str | None:
        """The one that the evidence has to be in; None if that is not the one it is in."""
        actual = knowledge_base_of(self._retriever.facts.engine, evidence_id)
        named = None if kb is None else self._retriever.facts.knowledge_bases.active(kb).id
        claimed = subject.kb_id if isinstance(subject, RetrievalResult | Citation) else None
        return actual if all(wanted in {None, actual} for wanted in (named, claimed)) else None

    def _of_chunk(self, subject: Subject, chunk: StoredChunk, visible: Passages) -> bytes:
        original = visible.original_key(chunk.document_id, chunk.version)
        place = _place(subject, chunk)
        if original is not None and place is not None and original.lower().endswith(DRAWN):
            is_image = not original.lower().endswith(".pdf")
            size = self._page_size(visible, chunk, place.page) if is_image and place.boxes else None
            return self._draw(original, place, page_size=size)
        for image in visible.images([chunk.document_id]).get(chunk.document_id, ()):
            if chunk.metadata.get("image") == str(image.position) or (place and image.page == place.page):
                key = visible.image_key(image.id)
                if key is not None:
                    return self._draw(key)
        raise ResourceNotFoundError(
            f"{chunk.source_path} has no page or image to show here: the text of the passage is the evidence "
            f"(characters {chunk.start} to {chunk.end})"
        )

    def _page_size(self, visible: Passages, chunk: StoredChunk, page: int) -> tuple[float, float] | None:
        """Size of the page that an image was read as; None where that is not known."""
        from rag_pipeline.parsing.serialization import document_from_bytes

        key = visible.parsed_artefact(chunk.document_id, chunk.version)
        pages = () if key is None else document_from_bytes(self._objects.get(key)).pages
        if page > len(pages):
            return None
        record = pages[page - 1]
        return None if record.width is None or record.height is None else (record.width, record.height)

    def _draw(self, key: str, place: _Place | None = None, *, page_size: tuple[float, float] | None = None) -> bytes:
        """Fetch an object and draw it in the process."""
        from rag_pipeline.parsing.rendering import RenderRequest

        place = place or _Place(page=1, boxes=())
        with tempfile.TemporaryDirectory(prefix="rag-evidence-") as folder:
            path = Path(folder) / "original"
            self._objects.download(key, path)
            request = RenderRequest(
                path=path, page=place.page, boxes=place.boxes, page_size=page_size, limits=RENDER_LIMITS
            )
            with self._lock:
                return self._in_process(request)

    def _in_process(self, request: "RenderRequest") -> bytes:
        from pebble import ProcessExpired, ProcessPool

        from rag_pipeline.parsing import worker
        from rag_pipeline.parsing.pool import WorkerContext
        from rag_pipeline.parsing.rendering import render

        if self._pool is None or not self._pool.active:
            self._stop()
            self._pool = ProcessPool(
                max_workers=1,
                max_tasks=PAGES_PER_PROCESS,
                initializer=worker.initialize,
                context=WorkerContext(),
            )
        try:
            drawn: bytes = self._pool.schedule(render, args=(request,), timeout=request.limits.seconds).result()
        except RagPipelineError:
            raise
        except TimeoutError as error:
            raise ParseTimeoutError(f"drawing the page took longer than {request.limits.seconds:g} s") from error
        except (ProcessExpired, BrokenProcessPool) as error:
            raise ParserCrashedError("the process that draws pages died: the original may be damaged") from error
        return drawn

    def _stop(self) -> None:
        if self._pool is not None:
            pool, self._pool = self._pool, None
            pool.stop()  # type: ignore[no-untyped-call]
            pool.join()


def _id_of(subject: Subject) -> str:
    if isinstance(subject, str):
        return subject
    return subject.id if isinstance(subject, StoredImage) else subject.chunk_id


def _place(subject: Subject, chunk: StoredChunk) -> _Place | None:
    """The page of the first verified quotation of a citation, else the first page with a known region."""
    if isinstance(subject, Citation) and subject.version == chunk.version:
        quoted = [quote for quote in subject.quotes if quote.is_verified and quote.page and quote.bbox]
        if quoted and quoted[0].page is not None:
            page = quoted[0].page
            return _Place(page=page, boxes=tuple(quote.bbox for quote in quoted if quote.page == page and quote.bbox))
    regions = [(region["page"], _box(region)) for region in _regions(chunk.metadata)]
    boxed = [page for page, box in regions if box is not None]
    if boxed or chunk.page is not None:
        page = boxed[0] if boxed else chunk.page or 1
        return _Place(page=page, boxes=tuple(box for number, box in regions if number == page and box is not None))
    return None


def _regions(metadata: Mapping[str, object]) -> list[dict[str, Any]]:
    found = metadata.get("regions")
    return found if isinstance(found, list) else []


def _box(region: Mapping[str, Any]) -> BoundingBox | None:
    box = region.get("bbox")
    if box is None:
        return None
    left, top, right, bottom = box
    return BoundingBox(left=left, top=top, right=right, bottom=bottom)


def _nothing(evidence_id: str) -> ResourceNotFoundError:
    return ResourceNotFoundError(
        f"there is no image or passage {evidence_id!r} to show; after a re-index or new bytes the passages of a "
        "document have new ids: search again"
    )
