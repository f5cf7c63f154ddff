"""Stage `chunks`: parsed blocks in, retrievable chunks out."""

from collections.abc import Iterator, Sequence

from rag_pipeline.adapters.artefacts import chunks_to_parquet
from rag_pipeline.core import chunking
from rag_pipeline.core.documents import Stage
from rag_pipeline.core.partitions import artefact_key
from rag_pipeline.core.tokens import estimate_tokens
from rag_pipeline.core.work import StageOutcome, WorkItem
from rag_pipeline.parsing.serialization import document_from_bytes
from rag_pipeline.stages.outcomes import Produced, for_each, owned_groups
from rag_pipeline.stages.workspace import Workspace

PREVIEW_CHARACTERS = 400


def chunk_documents(workspace: Workspace, items: Sequence[WorkItem]) -> Iterator[StageOutcome]:
    """Cut the documents; while one is cut, others are on their way to the object store."""
    services = workspace.services
    options = services.chunking_options

    def one(item: WorkItem) -> Produced:
        content = services.artefacts.get(workspace.input_key(item, Stage.PARSED_BLOCKS))
        chunks = chunking.chunk(document_from_bytes(content), options, estimate_tokens)
        key = artefact_key(item.kb_id, item.document_id, item.version, Stage.CHUNKS, item.attempt)
        services.artefacts.put(key, chunks_to_parquet(chunks))
        workspace.keep_chunks(item, chunks)
        tokens = [chunk.tokens for chunk in chunks]
        return Produced(
            summary={
                "chunks": len(chunks),
                "tokens": sum(tokens),
                "largest_chunk_tokens": max(tokens, default=0),
                "sections": len({chunk.section for chunk in chunks}),
                "preview": chunks[0].embedded_text[:PREVIEW_CHARACTERS] if chunks else "",
            },
            artefact_key=key,
            is_empty=not chunks,
        )

    for group in owned_groups(workspace, Stage.CHUNKS, items):
        yield from group.lost
        yield from for_each(workspace, Stage.CHUNKS, group.items, one)
