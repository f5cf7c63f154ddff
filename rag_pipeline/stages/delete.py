"""Removing deleted documents and knowledge bases from every store: vectors, snapshots, objects, partitions, rows last.

Every step may be repeated, and a document's rows go only when the other stores show zero for it, so a store that is
down delays the end of a deletion and loses nothing.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from rag_pipeline.adapters.postgres.deletion import Counts, DeletedDocument
from rag_pipeline.core.documents import KnowledgeBase
from rag_pipeline.core.ports import CollectionGeneration
from rag_pipeline.errors import ObjectStoreUnavailableError, RagPipelineError, VectorStoreUnavailableError
from rag_pipeline.intake.inbox import INBOX, REJECTED
from rag_pipeline.stages.services import Services

logger = logging.getLogger(__name__)

DOCUMENTS_PER_GROUP = 50
"""Removed together: their vectors with one request per thousand, their objects in parallel."""
PARALLEL_LISTINGS = 8

RemovePartitions = Callable[[Sequence[str]], Mapping[str, bool]]
"""Removes partitions of Dagster that no run needs; returns the keys that are gone now, and whether they were there."""


@dataclass(kw_only=True)
class Removed:
    """What one call did."""

    documents: int = 0
    knowledge_bases: int = 0
    waiting: int = 0
    """Documents of which a store or a run could not let go; they are tried again."""
    errors: tuple[str, ...] = ()


def remove_deleted(services: Services, remove_partitions: RemovePartitions, *, seconds: float) -> Removed:
    """Remove what is DELETING and held by no batch, until nothing is due or the time is up.

    Raises:
        FactsUnavailableError: PostgreSQL is down; nothing is lost, the next call goes on.
    """
    deadline = time.monotonic() + seconds
    result = Removed()
    deletions = services.facts.deletions
    for kb in deletions.knowledge_bases():
        # A client that marked the knowledge base may have died before it marked the documents.
        deletions.mark_documents(kb.id, reason=deletions.get(kb.id).reason)
    while time.monotonic() < deadline and (due := deletions.due(limit=DOCUMENTS_PER_GROUP)):
        error = _remove_group(services, due, remove_partitions, result)
        if error is not None:
            result.errors += (str(error),)
            break
    for kb in deletions.knowledge_bases():
        if time.monotonic() < deadline and deletions.is_empty(kb.id):
            _remove_knowledge_base(services, kb, result)
    return result


def _remove_group(
    services: Services, due: Sequence[DeletedDocument], remove_partitions: RemovePartitions, result: Removed
) -> RagPipelineError | None:
    """Remove some documents; an error of a store ends it, and what was removed until then is written down."""
    counts: dict[str, Counts] = {document.document_id: {} for document in due}
    try:
        _remove_vectors(services, due, counts)
        for document in due:
            files = services.snapshots.delete(document.kb_id, document.document_id)
            _count(counts[document.document_id], "snapshots", files)
        _remove_objects(services, due, counts)
    except RagPipelineError as error:
        services.facts.deletions.postpone(counts, str(error))
        result.waiting += len(due)
        return error
    gone = remove_partitions([document.partition_key for document in due])
    for document in due:
        _count(counts[document.document_id], "partitions", int(gone.get(document.partition_key, False)))
    done = {each.document_id for each in due if each.partition_key in gone}
    services.facts.deletions.forget({each: found for each, found in counts.items() if each in done})
    kept = {each: found for each, found in counts.items() if each not in done}
    if kept:
        services.facts.deletions.postpone(kept, "its partition is the end of a range that a run still needs")
    result.documents += len(done)
    result.waiting += len(kept)
    return None


def _remove_vectors(services: Services, due: Sequence[DeletedDocument], counts: dict[str, Counts]) -> None:
    """By primary keys, which PostgreSQL knows, in every generation.

    Raises:
        VectorStoreUnavailableError: also when some are still there afterwards.
    """
    owner = services.facts.deletions.chunk_ids([document.document_id for document in due])
    for generation in services.stored_generations() if owner else ():
        stored = services.vectors.existing(generation, list(owner))
        _delete_vectors(services, generation, sorted(stored))
        for chunk_id in stored:
            _count(counts[owner[chunk_id]], "vectors", 1)


def _delete_vectors(services: Services, generation: CollectionGeneration, chunk_ids: Sequence[str]) -> None:
    if not chunk_ids:
        return
    services.vectors.delete(generation, chunk_ids)
    services.vectors.flush(generation)
    left = services.vectors.existing(generation, chunk_ids)
    if left:
        raise VectorStoreUnavailableError(f"{len(left)} vectors of deleted documents are still in Milvus")


def _remove_objects(services: Services, due: Sequence[DeletedDocument], counts: dict[str, Counts]) -> None:
    def remove(document: DeletedDocument) -> int:
        prefixes = (f"kb/{document.kb_id}/{document.document_id}/", f"{document.kb_id}/{document.document_id}/")
        return sum(_remove_below(services, prefix) for prefix in prefixes)

    with ThreadPoolExecutor(max_workers=PARALLEL_LISTINGS, thread_name_prefix="delete") as threads:
        for document, count in zip(due, threads.map(remove, due), strict=True):
            _count(counts[document.document_id], "objects", count)


def _remove_below(services: Services, prefix: str) -> int:
    """Remove every object below a prefix, until a listing is empty; returns how many there were.

    Raises:
        ObjectStoreUnavailableError: also when the store still shows some after it has removed them.
    """
    keys = [info.key for info in services.objects.list(prefix)]
    services.objects.delete(keys)
    if keys and (left := next(services.objects.list(prefix, limit=1), None)) is not None:
        raise ObjectStoreUnavailableError(f"{left.key} is still in the object store after its deletion")
    return len(keys)


def _remove_knowledge_base(services: Services, kb: KnowledgeBase, result: Removed) -> None:
    """What belongs to no document: files in the inbox, and what late writers have left behind."""
    counts: Counts = {}
    try:
        for generation in services.stored_generations():
            for page in list(services.vectors.scan(generation, kb_id=kb.id)):
                _delete_vectors(services, generation, [row.chunk_id for row in page])
                _count(counts, "vectors", len(page))
        _count(counts, "snapshots", services.snapshots.delete_knowledge_base(kb.id))
        for prefix in (f"kb/{kb.id}/", f"{kb.id}/", *_inbox_prefixes(kb.name)):
            _count(counts, "objects", _remove_below(services, prefix))
    except RagPipelineError as error:
        services.facts.deletions.note(kb.id, str(error))
        result.errors += (str(error),)
        return
    services.facts.deletions.finish_knowledge_base(kb.id, counts)
    result.knowledge_bases += 1


def _inbox_prefixes(name: str) -> tuple[str, ...]:
    # No request can name a key with such a segment, so nothing can have been dropped there.
    return () if name in {".", ".."} else (f"{INBOX}{name}/", f"{REJECTED}{name}/")


def _count(counts: Counts, kind: str, number: int) -> None:
    if number:
        counts[kind] = counts.get(kind, 0) + number
