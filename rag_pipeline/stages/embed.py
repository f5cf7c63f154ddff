"""Stage `embeddings`: one vector per chunk, asking the embedder only for texts that nobody has paid for yet."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rag_pipeline.adapters.artefacts import EmbeddedInputs, vectors_from_parquet, vectors_to_parquet
from rag_pipeline.adapters.postgres.chunk_rows import PaidVector, content_hash
from rag_pipeline.core.documents import Stage
from rag_pipeline.core.partitions import artefact_key
from rag_pipeline.core.ports import Vectors
from rag_pipeline.core.work import StageOutcome, WorkItem
from rag_pipeline.errors import MissingArtefactError, RagPipelineError
from rag_pipeline.stages.outcomes import Produced, failed, for_each, lost
from rag_pipeline.stages.workspace import Workspace, in_groups

TEXTS_PER_GROUP = 512
"""Texts asked for together, across documents: what a crash can lose of paid work, and what fills the embedder's
batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inputs:
    item: WorkItem
    texts: tuple[str, ...]
    hashes: tuple[str, ...]


def embed(workspace: Workspace, items: Sequence[WorkItem]) -> Iterator[StageOutcome]:
    """Embed the documents group by group; finished vectors survive the failure of their document."""
    inputs: dict[str, _Inputs] = {}
    for item in items:
        try:
            texts = tuple(chunk.embedded_text for chunk in workspace.chunks(item))
        except RagPipelineError as error:
            yield failed(item, Stage.EMBEDDINGS, error)
            continue
        inputs[item.document_id] = _Inputs(item=item, texts=texts, hashes=tuple(map(content_hash, texts)))
    readable = [item for item in items if item.document_id in inputs]
    sizes = {document_id: len(each.texts) for document_id, each in inputs.items()}
    for group in in_groups(readable, sizes, TEXTS_PER_GROUP):
        yield from _embed_group(workspace, [inputs[item.document_id] for item in group])


def _embed_group(workspace: Workspace, group: Sequence[_Inputs]) -> Iterator[StageOutcome]:
    owned = workspace.ledger.still_owned([each.item for each in group])
    yield from (lost(each.item, Stage.EMBEDDINGS) for each in group if each.item.document_id not in owned)
    group = [each for each in group if each.item.document_id in owned]
    text_of = {input_hash: text for each in group for input_hash, text in zip(each.hashes, each.texts, strict=True)}
    try:
        vector_of = _already_paid(workspace, list(text_of))
        reused = frozenset(vector_of)
        errors = _embed_rest(workspace, text_of, vector_of)
    except RagPipelineError as error:
        yield from (failed(each.item, Stage.EMBEDDINGS, error) for each in group)
        return
    # Asked again: the embedder may have taken minutes, and a request on its way cannot be called back.
    owned = workspace.ledger.still_owned([each.item for each in group])
    yield from (lost(each.item, Stage.EMBEDDINGS) for each in group if each.item.document_id not in owned)
    group = [each for each in group if each.item.document_id in owned]
    inputs_of = {each.item.document_id: each for each in group}

    def store(item: WorkItem) -> Produced:
        each = inputs_of[item.document_id]
        refused = [input_hash for input_hash in each.hashes if input_hash in errors]
        if refused:
            _keep_partial(workspace, each, vector_of)
            raise errors[refused[0]]
        return _store(workspace, each, vector_of, reused)

    yield from for_each(workspace, Stage.EMBEDDINGS, [each.item for each in group], store)


def _embed_rest(
    workspace: Workspace, text_of: Mapping[str, str], vector_of: dict[str, Vectors]
) -> dict[str, RagPipelineError]:
    """Fill `vector_of` for the texts without a vector and return the errors of those that were refused."""
    wanted = [input_hash for input_hash in text_of if input_hash not in vector_of]
    answer = workspace.services.embedder.embed_passages_partial([text_of[input_hash] for input_hash in wanted])
    errors: dict[str, RagPipelineError] = {}
    for position, input_hash in enumerate(wanted):
        if position in answer.errors:
            errors[input_hash] = answer.errors[position]
        else:
            vector_of[input_hash] = answer.vectors[position]
    return errors


def _already_paid(workspace: Workspace, hashes: Sequence[str]) -> dict[str, Vectors]:
    services = workspace.services
    found = services.facts.chunk_rows.find_paid(services.embedder.identity.key, hashes)
    by_artefact: dict[str, list[tuple[str, PaidVector]]] = {}
    for input_hash, paid in found.items():
        by_artefact.setdefault(paid.artefact_key, []).append((input_hash, paid))
    vectors: dict[str, Vectors] = {}
    for key, wanted in by_artefact.items():
        try:
            stored = vectors_from_parquet(services.artefacts.get(key))
        except MissingArtefactError:
            continue  # removed with its document a moment ago: these inputs are paid for again
        for input_hash, paid in wanted:
            if stored.input_hashes[paid.position : paid.position + 1] == (input_hash,):
                vectors[input_hash] = stored.vectors[paid.position]
    return vectors


def _store(workspace: Workspace, each: _Inputs, vector_of: Mapping[str, Vectors], reused: frozenset[str]) -> Produced:
    item = each.item
    key = artefact_key(item.kb_id, item.document_id, item.version, Stage.EMBEDDINGS, item.attempt)
    _put_vectors(workspace, item, key, each.hashes, vector_of)
    identity = workspace.services.embedder.identity
    distinct = set(each.hashes)
    return Produced(
        summary={
            "vectors": len(each.hashes),
            "dimensions": identity.dimensions,
            "embedder": identity.key,
            "reused": len(distinct & reused),
            "embedded": len(distinct - reused),
        },
        artefact_key=key,
    )


def _keep_partial(workspace: Workspace, each: _Inputs, vector_of: Mapping[str, Vectors]) -> None:
    """Keep the vectors of a document that failed: the next attempt pays only for the others."""
    item = each.item
    have = tuple(dict.fromkeys(input_hash for input_hash in each.hashes if input_hash in vector_of))
    if have:
        key = artefact_key(item.kb_id, item.document_id, item.version, f"{Stage.EMBEDDINGS}.partial", item.attempt)
        _put_vectors(workspace, item, key, have, vector_of)


def _put_vectors(
    workspace: Workspace, item: WorkItem, key: str, hashes: tuple[str, ...], vector_of: Mapping[str, Vectors]
) -> None:
    services = workspace.services
    vectors = np.stack([vector_of[input_hash] for input_hash in hashes])
    services.artefacts.put(key, vectors_to_parquet(EmbeddedInputs(input_hashes=hashes, vectors=vectors)))
    services.facts.chunk_rows.add_paid(services.embedder.identity.key, item, key, hashes)
