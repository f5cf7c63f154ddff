"""Moving everything to another embedder or analyzer while queries are answered: fill a second collection, then switch.

Live versions are embedded again from their chunks and written to the next collection, which PostgreSQL notes version by
version. Batches go on writing to the collection that answers; what they publish meanwhile is filled in as well, and the
switch happens only when no live version is missing. Every step may be repeated, and a run that dies is followed by one
that goes on where it stopped.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from rag_pipeline.adapters.artefacts import chunks_from_parquet, vectors_from_parquet
from rag_pipeline.adapters.postgres.next_generation import FilledVersion, NextGeneration
from rag_pipeline.core.chunk import Chunk
from rag_pipeline.core.documents import Stage
from rag_pipeline.core.fingerprints import generation_fingerprints
from rag_pipeline.core.partitions import vectors_key
from rag_pipeline.core.ports import CollectionGeneration, Vectors
from rag_pipeline.core.staleness import GenerationPlan
from rag_pipeline.core.work import StageArtefact, WorkItem
from rag_pipeline.errors import (
    ConfigurationError,
    EmbeddingRejectedError,
    InternalError,
    MissingArtefactError,
    RagPipelineError,
)
from rag_pipeline.stages.index import VersionRows
from rag_pipeline.stages.services import Services, stage_versions
from rag_pipeline.stages.vectors import TEXTS_PER_GROUP, Embedded, embedded, note_paid, passage_hash, put_vectors
from rag_pipeline.stages.workspace import in_groups

logger = logging.getLogger(__name__)

DOCUMENTS_PER_PAGE = 64
"""Looked up together; their chunks are in memory at the same time."""
REST_SECONDS = 60.0
"""From the beginning of a run that fails, or dies, to the next."""
PROBE = "One text, to see what the embedder answers."


@dataclass(frozen=True, kw_only=True)
class SearchableGeneration:
    """A collection with what it can be searched with."""

    services: Services
    """Their embedder is the one that the collection was filled by."""
    generation: CollectionGeneration


MaySwitch = Callable[[SearchableGeneration, SearchableGeneration], str | None]
"""Given the collection that answers and the one that would: why it must not, or None."""


@dataclass(kw_only=True)
class GenerationRun:
    """What one call has done."""

    collection: str
    documents: int = 0
    rows: int = 0
    embedded: int = 0
    """Texts that were sent to the embedder."""
    left: int = 0
    """Live versions that are not in the collection yet."""
    seconds: float = 0.0
    failures: list[tuple[WorkItem, RagPipelineError]] = field(default_factory=list)
    refusal: str | None = None
    is_switched: bool = False


def start_generation(services: Services) -> GenerationPlan:
    """Have the next collection filled; one whose switch was refused is tried again. Sensors do the rest.

    Raises:
        ConfigurationError: no RAG_NEXT_ setting is set, or they name what answers already, or the next embedder answers
            otherwise than they say, or another generation is being filled.
        EmbeddingUnavailableError: the next embedder does not answer.
    """
    upcoming = _upcoming(services)
    live = services.facts.live_generation()
    if live is None:
        raise ConfigurationError("nothing has been indexed yet: set the variables without NEXT")
    if upcoming.fills(*live):
        remedy = "move the RAG_NEXT_ values to the variables without NEXT"
        if services.fills(*live) and not _has_same_vectors(services, upcoming):
            remedy += ", then `rag-pipeline reindex --stale`: another passage prefix takes no other collection"
        raise ConfigurationError(
            f"{live[0].collection} is filled by {live[1]} with the analyzer {live[0].analyzer} already: {remedy}"
        )
    services.generation()
    if upcoming.embedder is not services.embedder:
        _probe(upcoming)
    facts = services.facts.next_generations
    facts.start(
        prefix=services.settings.milvus_collection_prefix,
        embedder=upcoming.embedder.identity,
        analyzer=upcoming.settings.analyzer,
    )
    _filling(upcoming)
    facts.resume()
    return _plan(services, upcoming)


def abandon_generation(services: Services) -> str | None:
    """Give up the next collection; returns its name, None if none was being filled. Paid vectors are kept."""
    return services.facts.next_generations.abandon()


def plan_generation(services: Services) -> GenerationPlan | None:
    """What the RAG_NEXT_ settings still take; None if there are none, or what they name answers already."""
    upcoming, live = services.upcoming, services.facts.live_generation()
    if upcoming is None or live is None or upcoming.fills(*live):
        return None
    return _plan(services, upcoming)


def build_generation(
    services: Services, *, seconds: float, may_switch: MaySwitch | None = None
) -> GenerationRun | None:
    """Fill the next collection for a while, and switch to it when nothing is missing.

    Args:
        services: as configured; the ones that serve have the RAG_NEXT_ settings beside them.
        seconds: after these no other group of documents is begun.
        may_switch: asked once, when everything is filled; its reason is kept, and ends the runs until somebody starts
            the generation again.

    Returns:
        What was done; None if nothing is to be filled, or another process is doing it.

    Raises:
        ConfigurationError: the settings do not name the embedder and the analyzer that fill it.
        TemporaryError: a store is down.
    """
    facts = services.facts.next_generations
    began = time.monotonic()
    with facts.alone() as mine:
        if not mine or facts.filling() is None:
            return None
        upcoming = _upcoming(services)
        following = _filling(upcoming)
        facts.rest(REST_SECONDS)
        run = GenerationRun(collection=following.generation.collection)
        while True:
            _fill(upcoming, following.generation, run, deadline=began + seconds)
            if run.left or run.failures:
                break
            if may_switch is not None:
                run.refusal = _ask(services, upcoming, following.generation, may_switch)
                may_switch = None
            if run.refusal is not None:
                facts.refuse(run.refusal)
                break
            run.left = facts.switch(run.collection)
            if not run.left:
                run.is_switched = True
                logger.info("%s answers queries from now on", run.collection)
                break
        if not run.failures:
            facts.rest(0.0)
    run.seconds = time.monotonic() - began
    return run


def _upcoming(services: Services) -> Services:
    if services.upcoming is None:
        raise ConfigurationError(
            "no next generation is configured: set what is to change, e.g. RAG_NEXT_EMBEDDING_MODEL and "
            "RAG_NEXT_EMBEDDING_DIMENSIONS, or RAG_NEXT_ANALYZER, for every process"
        )
    return services.upcoming


def _filling(upcoming: Services) -> NextGeneration:
    """The generation being filled, if it is that of these services."""
    found = upcoming.facts.next_generations.filling()
    if found is None:
        raise ConfigurationError("nothing is being filled: start it with `rag-pipeline reindex --next`")
    if not upcoming.fills(found.generation, found.embedder):
        raise ConfigurationError(
            f"{found.generation.collection} is being filled by {found.embedder} with the analyzer "
            f"{found.generation.analyzer}, the RAG_NEXT_ settings say {upcoming.embedder.identity.key} with "
            f"{upcoming.settings.analyzer}: set them back, or give it up with `rag-pipeline reindex --abandon`"
        )
    return found


def _probe(upcoming: Services) -> None:
    """Refuse an embedder that answers otherwise than configured, before anything is written."""
    expected = upcoming.embedder.identity.dimensions
    try:
        vectors = upcoming.embedder.embed_passages([PROBE])
    except EmbeddingRejectedError as error:
        raise ConfigurationError(
            f"the next embedder {upcoming.embedder.identity.key} does not do what RAG_NEXT_EMBEDDING_MODEL and "
            f"RAG_NEXT_EMBEDDING_DIMENSIONS={expected} say: {error}"
        ) from error
    if vectors.shape != (1, expected):
        raise ConfigurationError(
            f"RAG_NEXT_EMBEDDING_DIMENSIONS={expected}: the next embedder answers with {vectors.shape[-1]}"
        )


def _plan(services: Services, upcoming: Services) -> GenerationPlan:
    facts = services.facts.next_generations
    filling = facts.filling()
    if filling is not None and not upcoming.fills(filling.generation, filling.embedder):
        filling = None
    documents, tokens = facts.size(filling.generation.collection if filling else None)
    return GenerationPlan(
        embedder=upcoming.embedder.identity.key,
        analyzer=upcoming.settings.analyzer,
        is_started=filling is not None,
        refusal=filling.refusal if filling else None,
        documents=documents,
        tokens_to_embed=0 if _has_same_vectors(services, upcoming) else tokens,
    )


def _has_same_vectors(services: Services, upcoming: Services) -> bool:
    """Whether only the analyzer is another one."""
    prefixes = {each.settings.embedding_passage_prefix for each in (services, upcoming)}
    return services.embedder.identity == upcoming.embedder.identity and len(prefixes) == 1


def _ask(services: Services, upcoming: Services, generation: CollectionGeneration, may_switch: MaySwitch) -> str | None:
    serving = services.serving()
    old = SearchableGeneration(services=serving, generation=serving.generation())
    return may_switch(old, SearchableGeneration(services=upcoming, generation=generation))


def _fill(services: Services, generation: CollectionGeneration, run: GenerationRun, *, deadline: float) -> None:
    """Fill in what is missing, until the time is up or nothing goes any more; `run` is told."""
    facts = services.facts.next_generations
    services.vectors.ensure(generation)
    after = None
    while time.monotonic() < deadline:
        filling = facts.filling()
        if filling is None or filling.generation != generation:
            break  # it was abandoned
        items, after = facts.waiting(generation.collection, after=after, limit=DOCUMENTS_PER_PAGE)
        if not items:
            break
        done = run.documents
        for group in _groups(services, items, run):
            if time.monotonic() < deadline:
                _fill_group(services, generation, group, run)
        if run.failures and run.documents == done:
            break  # the embedder or a store is down: not every document has to find that out
    run.left, _ = facts.size(generation.collection)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Version:
    """A live version on its way to the next collection."""

    item: WorkItem
    chunks: list[Chunk]
    hashes: tuple[str, ...]
    embeddings_fingerprint: str
    index_fingerprint: str
    finished_key: str | None
    """Artefact of its present vectors, if they are those that the next embedder would give."""

    @property
    def key(self) -> str:
        """Where its vectors for the next collection are kept."""
        item = self.item
        return self.finished_key or vectors_key(item.kb_id, item.document_id, item.version, self.embeddings_fingerprint)


def _groups(services: Services, items: Sequence[WorkItem], run: GenerationRun) -> Iterator[list[_Version]]:
    """The versions with their chunks, as many together as the embedder likes."""
    artefacts = services.facts.claims.artefacts([item.document_id for item in items])
    versions: dict[str, _Version] = {}
    for item in items:
        try:
            versions[item.document_id] = _version(services, item, artefacts.get((item.document_id, item.version), {}))
        except RagPipelineError as error:
            run.failures.append((item, error))
    sizes = {document_id: len(each.chunks) for document_id, each in versions.items()}
    for group in in_groups([each.item for each in versions.values()], sizes, TEXTS_PER_GROUP):
        yield [versions[item.document_id] for item in group]


def _version(services: Services, item: WorkItem, finished: dict[Stage, StageArtefact]) -> _Version:
    missing = [stage for stage in Stage if stage not in finished]
    if missing or finished[Stage.CHUNKS].artefact_key is None:
        raise MissingArtefactError(f"{item.file_name} has no {missing or 'chunks'}: `rag-pipeline reindex` it")
    chunks = chunks_from_parquet(services.artefacts.get(str(finished[Stage.CHUNKS].artefact_key)))
    # From what the version was really made of: what is stale in it stays visible.
    embeddings, index = generation_fingerprints(
        chunks=finished[Stage.CHUNKS].fingerprint,
        snapshot=finished[Stage.CHUNK_SNAPSHOT].fingerprint,
        versions=stage_versions(services.settings, services.embedder.identity.key, item.file_name),
    )
    is_same = finished[Stage.EMBEDDINGS].fingerprint == embeddings
    return _Version(
        item=item,
        chunks=chunks,
        hashes=tuple(passage_hash(services, chunk.embedded_text) for chunk in chunks),
        embeddings_fingerprint=embeddings,
        index_fingerprint=index,
        finished_key=finished[Stage.EMBEDDINGS].artefact_key if is_same else None,
    )


def _fill_group(
    services: Services, generation: CollectionGeneration, group: Sequence[_Version], run: GenerationRun
) -> None:
    """Embed, write, count, and note some versions; an error of one leaves the others alone."""
    try:
        found = _embedded(services, group)
    except RagPipelineError as error:
        run.failures += [(each.item, error) for each in group]
        return
    run.embedded += len(found.vector_of.keys() - found.reused)
    # The embedder may have taken minutes: nothing is stored for what was deleted or replaced meanwhile.
    live = services.facts.next_generations.still_live([each.item for each in group])
    group = [each for each in group if each.item.document_id in live]
    rows: list[VersionRows] = []
    version_of = {each.item.document_id: each for each in group}
    for each in group:
        try:
            rows.append(VersionRows(item=each.item, chunks=each.chunks, vectors=_vectors(services, each, found)))
        except RagPipelineError as error:
            run.failures.append((each.item, error))
    try:
        services.vectors.upsert(generation, [row for each in rows for row in each.rows()])
        services.vectors.flush(generation)
        stored = services.vectors.existing(generation, [one for each in rows for one in each.ids])
    except RagPipelineError as error:
        run.failures += [(each.item, error) for each in rows]
        return
    complete: list[VersionRows] = []
    for written in rows:
        if stored.issuperset(written.ids):
            complete.append(written)
        else:
            reason = f"some of the {len(written.chunks)} chunks of {written.item.file_name} are not in Milvus"
            run.failures.append((written.item, InternalError(f"{reason} after writing")))
    _note(services, generation, complete, version_of, run)


def _embedded(services: Services, group: Sequence[_Version]) -> Embedded:
    text_of = {
        input_hash: chunk.embedded_text
        for each in group
        if each.finished_key is None
        for input_hash, chunk in zip(each.hashes, each.chunks, strict=True)
    }
    return embedded(services, text_of)


def _vectors(services: Services, version: _Version, found: Embedded) -> Vectors:
    """The vectors of a version, stored."""
    if version.finished_key is not None:
        vectors = vectors_from_parquet(services.artefacts.get(version.finished_key)).vectors
        if len(vectors) != len(version.chunks):
            raise MissingArtefactError(
                f"{version.item.file_name} has {len(version.chunks)} chunks and {len(vectors)} vectors: "
                "`rag-pipeline reindex` it"
            )
        return vectors
    refusal = found.refusal(version.hashes)
    if refusal is None:
        vectors, stored = put_vectors(services, version.item, version.key, version.hashes, found.vector_of)
        note_paid(services, [stored])
        return vectors
    have = [each for each in dict.fromkeys(version.hashes) if each in found.vector_of]
    if have:  # the next attempt pays only for the others
        _, stored = put_vectors(services, version.item, f"{version.key}.partial", have, found.vector_of)
        note_paid(services, [stored])
    raise refusal


def _note(
    services: Services,
    generation: CollectionGeneration,
    complete: Sequence[VersionRows],
    version_of: dict[str, _Version],
    run: GenerationRun,
) -> None:
    """Note complete versions, and take back the rows of those that do not answer any more."""
    filled = [
        FilledVersion(
            item=each.item,
            artefact_key=version_of[each.item.document_id].key,
            embeddings_fingerprint=version_of[each.item.document_id].embeddings_fingerprint,
            index_fingerprint=version_of[each.item.document_id].index_fingerprint,
        )
        for each in complete
    ]
    noted = services.facts.next_generations.add(generation.collection, filled)
    superfluous = [one for each in complete if each.item.document_id not in noted for one in each.ids]
    if superfluous:
        services.vectors.delete(generation, superfluous)
    run.documents += len(noted)
    run.rows += sum(len(each.chunks) for each in complete if each.item.document_id in noted)
