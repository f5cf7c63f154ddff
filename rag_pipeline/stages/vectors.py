"""Vectors of texts and where they are kept: only what nobody has paid for yet is asked of the embedder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rag_pipeline.adapters.artefacts import EmbeddedInputs, vectors_from_parquet, vectors_to_parquet
from rag_pipeline.adapters.postgres.chunk_rows import PaidVector, StoredVectors, content_hash
from rag_pipeline.core.ports import Vectors
from rag_pipeline.core.work import WorkItem
from rag_pipeline.errors import MissingArtefactError, RagPipelineError
from rag_pipeline.stages.services import Services

TEXTS_PER_GROUP = 512
"""Texts asked for together, across documents: what a crash can lose of paid work, and what fills the embedder's
batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedded:
    """Vectors by `passage_hash` of their text."""

    vector_of: Mapping[str, Vectors]
    """Shape (dimensions,) each."""
    reused: frozenset[str]
    """Hashes of those that had been paid for before."""
    errors: Mapping[str, RagPipelineError]
    """Why texts have none."""

    def refusal(self, hashes: Sequence[str]) -> RagPipelineError | None:
        """The first error among these texts."""
        return next((self.errors[each] for each in hashes if each in self.errors), None)


def passage_hash(services: Services, text: str) -> str:
    """The hash of what is really embedded for a text: with another prefix it is another input."""
    return content_hash(services.embedder.passage_input(text))


def embedded(services: Services, text_of: Mapping[str, str]) -> Embedded:
    """Vectors for texts (by their `passage_hash`), from the artefacts or from the embedder.

    Raises:
        TemporaryError: PostgreSQL or the object store does not answer. What the embedder refuses is in `errors`.
    """
    vector_of = _already_paid(services, list(text_of))
    reused = frozenset(vector_of)
    wanted = [input_hash for input_hash in text_of if input_hash not in vector_of]
    answer = services.embedder.embed_passages_partial([text_of[input_hash] for input_hash in wanted])
    errors: dict[str, RagPipelineError] = {}
    for position, input_hash in enumerate(wanted):
        if position in answer.errors:
            errors[input_hash] = answer.errors[position]
        else:
            vector_of[input_hash] = answer.vectors[position]
    return Embedded(vector_of=vector_of, reused=reused, errors=errors)


def put_vectors(
    services: Services, item: WorkItem, key: str, hashes: Sequence[str], vector_of: Mapping[str, Vectors]
) -> tuple[Vectors, StoredVectors]:
    """Store the vectors of these texts, in order; returns them, and what `note_paid` is to be told."""
    vectors = np.stack([vector_of[input_hash] for input_hash in hashes])
    services.artefacts.put(key, vectors_to_parquet(EmbeddedInputs(input_hashes=tuple(hashes), vectors=vectors)))
    return vectors, StoredVectors(item=item, artefact_key=key, input_hashes=tuple(hashes))


def note_paid(services: Services, stored: Sequence[StoredVectors]) -> None:
    """Remember which texts have vectors, in one transaction for a whole group of documents."""
    if stored:
        services.facts.chunk_rows.add_paid(services.embedder.identity.key, stored)


def _already_paid(services: Services, hashes: Sequence[str]) -> dict[str, Vectors]:
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
