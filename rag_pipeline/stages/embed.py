"""Stage `embeddings`: one vector per chunk, asking the embedder only for texts that nobody has paid for yet."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rag_pipeline.adapters.postgres.chunk_rows import StoredVectors
from rag_pipeline.core.documents import Stage
from rag_pipeline.core.partitions import artefact_key
from rag_pipeline.core.work import StageOutcome, WorkItem
from rag_pipeline.errors import RagPipelineError
from rag_pipeline.stages.outcomes import Produced, failed, for_each, lost, timed_together
from rag_pipeline.stages.vectors import TEXTS_PER_GROUP, Embedded, embedded, note_paid, passage_hash, put_vectors
from rag_pipeline.stages.workspace import Workspace, in_groups


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inputs:
    item: WorkItem
    texts: tuple[str, ...]
    hashes: tuple[str, ...]


def embed(workspace: Workspace, items: Sequence[WorkItem]) -> Iterator[StageOutcome]:
    """Embed the documents group by group; finished vectors survive the failure of their document."""
    try:
        workspace.services.check_generation()  # vectors that cannot be used are not paid for
    except RagPipelineError as error:
        yield from (failed(item, Stage.EMBEDDINGS, error) for item in items)
        return
    inputs: dict[str, _Inputs] = {}
    for item in items:
        try:
            texts = tuple(chunk.embedded_text for chunk in workspace.chunks(item))
        except RagPipelineError as error:
            yield failed(item, Stage.EMBEDDINGS, error)
            continue
        hashes = tuple(passage_hash(workspace.services, text) for text in texts)
        inputs[item.document_id] = _Inputs(item=item, texts=texts, hashes=hashes)
    readable = [item for item in items if item.document_id in inputs]
    sizes = {document_id: len(each.texts) for document_id, each in inputs.items()}
    for group in in_groups(readable, sizes, TEXTS_PER_GROUP):
        yield from timed_together(_embed_group(workspace, [inputs[item.document_id] for item in group]), sizes)


def _embed_group(workspace: Workspace, group: Sequence[_Inputs]) -> Iterator[StageOutcome]:
    owned = workspace.ledger.still_owned([each.item for each in group])
    yield from (lost(each.item, Stage.EMBEDDINGS) for each in group if each.item.document_id not in owned)
    group = [each for each in group if each.item.document_id in owned]
    text_of = {input_hash: text for each in group for input_hash, text in zip(each.hashes, each.texts, strict=True)}
    try:
        found = embedded(workspace.services, text_of)
    except RagPipelineError as error:
        yield from (failed(each.item, Stage.EMBEDDINGS, error) for each in group)
        return
    # Asked again: the embedder may have taken minutes, and a request on its way cannot be called back.
    owned = workspace.ledger.still_owned([each.item for each in group])
    yield from (lost(each.item, Stage.EMBEDDINGS) for each in group if each.item.document_id not in owned)
    group = [each for each in group if each.item.document_id in owned]
    inputs_of = {each.item.document_id: each for each in group}
    stored: list[StoredVectors] = []

    def store(item: WorkItem) -> Produced:
        each = inputs_of[item.document_id]
        refusal = found.refusal(each.hashes)
        if refusal is not None:
            stored.extend(_keep_partial(workspace, each, found))
            raise refusal
        stored.append(_put(workspace, each, found))
        return _produced(workspace, each, found, stored[-1].artefact_key)

    outcomes = list(for_each(workspace, Stage.EMBEDDINGS, [each.item for each in group], store))
    try:
        note_paid(workspace.services, stored)
    except RagPipelineError as error:
        yield from (failed(each.item, Stage.EMBEDDINGS, error) for each in group)
        return
    yield from outcomes


def _put(workspace: Workspace, each: _Inputs, found: Embedded) -> StoredVectors:
    item = each.item
    key = artefact_key(item.kb_id, item.document_id, item.version, Stage.EMBEDDINGS, item.attempt)
    _, stored = put_vectors(workspace.services, item, key, each.hashes, found.vector_of)
    return stored


def _produced(workspace: Workspace, each: _Inputs, found: Embedded, key: str) -> Produced:
    identity = workspace.services.embedder.identity
    distinct = set(each.hashes)
    return Produced(
        summary={
            "vectors": len(each.hashes),
            "dimensions": identity.dimensions,
            "embedder": identity.key,
            "reused": len(distinct & found.reused),
            "embedded": len(distinct - found.reused),
        },
        artefact_key=key,
    )


def _keep_partial(workspace: Workspace, each: _Inputs, found: Embedded) -> list[StoredVectors]:
    """Keep the vectors of a document that failed: the next attempt pays only for the others."""
    item = each.item
    have = tuple(dict.fromkeys(input_hash for input_hash in each.hashes if input_hash in found.vector_of))
    if not have:
        return []
    key = artefact_key(item.kb_id, item.document_id, item.version, f"{Stage.EMBEDDINGS}.partial", item.attempt)
    return [put_vectors(workspace.services, item, key, have, found.vector_of)[1]]
