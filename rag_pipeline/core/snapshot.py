"""The readable snapshot of a document version's chunks. Pure, no I/O; it holds no embeddings (big, model-bound)."""

from collections.abc import Sequence

from rag_pipeline.core.chunk import Chunk, chunk_id, parent_id
from rag_pipeline.core.parsed_document import ParsedDocument
from rag_pipeline.core.work import WorkItem

FORMAT_VERSION = 1
"""Raised with every change of the structure below."""


def snapshot_content(item: WorkItem, document: ParsedDocument, chunks: Sequence[Chunk]) -> dict[str, object]:
    """JSON-serialisable content: document and parser, page ledger, and the ordered full chunk list."""
    return {
        "format_version": FORMAT_VERSION,
        "stage": "chunk_snapshot",
        "document": {
            "id": item.document_id,
            "version": item.version,
            "knowledge_base": {"id": item.kb_id, "name": item.kb_name},
            "file_name": item.file_name,
            "source_path": item.source_path,
            "sha256": item.sha256,
            "bytes": item.size_bytes,
            "metadata": dict(item.metadata),
        },
        "parser": {"name": document.parser, "version": document.parser_version},
        "parsed_metadata": dict(document.metadata),
        "warnings": list(document.warnings),
        "pages": [
            {
                "number": page.number,
                "label": page.label,
                "state": page.state.value,
                "characters": page.characters,
                "reason": page.reason,
            }
            for page in document.pages
        ],
        "chunks": [_chunk(item, chunk) for chunk in chunks],
    }


def _chunk(item: WorkItem, chunk: Chunk) -> dict[str, object]:
    return {
        "id": chunk_id(item.document_id, item.version, chunk.index),
        "parent_id": parent_id(item.document_id, item.version, chunk.section),
        "index": chunk.index,
        "text": chunk.text,
        "tokens": chunk.tokens,
        "heading_path": list(chunk.heading_path),
        "metadata": {
            **chunk.metadata,
            "filename": item.file_name,
            "source_locator": {
                "page": chunk.page,
                "page_end": chunk.page_end,
                "start": chunk.start,
                "end": chunk.end,
                "regions": [
                    {"page": region.page, "bbox": region.bbox and region.bbox.as_list()} for region in chunk.regions
                ],
                "block_types": list(chunk.block_types),
            },
        },
    }
