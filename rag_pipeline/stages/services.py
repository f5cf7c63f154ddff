"""What the stages work with: ports, facts and settings, put together once per process."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from rag_pipeline.adapters.artefacts import ArtefactStore
from rag_pipeline.adapters.postgres.facts import Facts
from rag_pipeline.adapters.postgres.live_generation import first_collection
from rag_pipeline.core import chunking
from rag_pipeline.core.chunking import ChunkingOptions
from rag_pipeline.core.documents import Stage
from rag_pipeline.core.fingerprints import StageVersion, stage_fingerprints
from rag_pipeline.core.ports import CollectionGeneration, Embedder, ObjectStore, ParseLimits, SnapshotStore, VectorIndex
from rag_pipeline.core.work import WorkItem
from rag_pipeline.errors import ConfigurationError, GenerationSwitchedError, UnsupportedFormatError
from rag_pipeline.parsing.limits import limits_of
from rag_pipeline.parsing.registry import resolve
from rag_pipeline.settings import Settings

CODE_VERSIONS: Mapping[Stage, str] = {
    Stage.SOURCE_DOCUMENT: "1",
    Stage.PARSED_BLOCKS: "1",
    Stage.CHUNKS: chunking.VERSION,
    Stage.CHUNK_SNAPSHOT: "1",
    Stage.EMBEDDINGS: "1",
    Stage.INDEX_WRITES: "1",
}
"""Raised by hand when the output of a stage changes; the assets' `code_version` and the fingerprints both use it.

Each parser has a version of its own besides.
"""


@dataclass(frozen=True, kw_only=True)
class Services:
    """Everything outside that a batch needs."""

    settings: Settings
    facts: Facts
    objects: ObjectStore
    vectors: VectorIndex
    embedder: Embedder
    snapshots: SnapshotStore
    artefacts: ArtefactStore
    upcoming: "Services | None" = None
    """The same with the embedder and the analyzer of the RAG_NEXT_ settings; None if there are none."""

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Real adapters for these settings; nothing is connected before it is used.

        Raises:
            ConfigurationError: an address is not known, or an embedder's settings do not fit it.
        """
        from rag_pipeline.adapters.embedders.factory import create_embedder
        from rag_pipeline.adapters.milvus import MilvusIndex
        from rag_pipeline.adapters.object_snapshots import ObjectSnapshotStore
        from rag_pipeline.adapters.object_store import MinioObjectStore
        from rag_pipeline.adapters.snapshots import FileSnapshotStore

        objects = MinioObjectStore.from_settings(settings)
        present = cls(
            settings=settings,
            facts=Facts.from_settings(settings),
            objects=objects,
            vectors=MilvusIndex.from_settings(settings),
            embedder=create_embedder(settings),
            snapshots=FileSnapshotStore(settings.snapshots)
            if settings.snapshot_prefix is None
            else ObjectSnapshotStore(objects, prefix=settings.snapshot_prefix),
            artefacts=ArtefactStore(objects),
        )
        following = settings.next_generation()
        if following is None:
            return present
        embedder = present.embedder
        if not following.has_embedder_of(settings):
            try:
                embedder = create_embedder(following)
            except ConfigurationError as error:
                raise ConfigurationError(f"with the RAG_NEXT_ settings in their place: {error}") from error
        return replace(present, upcoming=replace(present, settings=following, embedder=embedder))

    def configured(self) -> tuple["Services", ...]:
        """These, and those of the RAG_NEXT_ settings."""
        return (self,) if self.upcoming is None else (self, self.upcoming)

    def fills(self, generation: CollectionGeneration, embedder: str) -> bool:
        """Whether this embedder and this analyzer are what a generation is filled by (`embedder`: its key)."""
        return (self.embedder.identity.key, self.settings.analyzer) == (embedder, generation.analyzer)

    def serving(self) -> "Services":
        """Of the configured ones those that the answering collection was filled by; these if there is none.

        When none fits these are given as well: `generation` refuses them, with the reason.
        """
        live = self.facts.live_generation()
        fitting = [each for each in self.configured() if live is not None and each.fills(*live)]
        return fitting[0] if fitting else self

    def generation(self) -> CollectionGeneration:
        """The answering collection, which must be filled by this embedder and this analyzer.

        The first one is made before PostgreSQL names it: a query never finds it missing.

        Raises:
            GenerationSwitchedError: since a moment ago it is filled by what was the next embedder and analyzer.
            ConfigurationError: it was filled by some that the settings do not name.
            VectorStoreUnavailableError: the first one cannot be made.
        """
        live = self.check_generation()
        if live is not None:
            return live
        first = CollectionGeneration(
            collection=first_collection(self.settings.milvus_collection_prefix),
            dimensions=self.embedder.identity.dimensions,
            analyzer=self.settings.analyzer,
        )
        self.vectors.ensure(first)
        return self._named_generation()

    def check_generation(self) -> CollectionGeneration | None:
        """The answering collection, None before the first; raises as `generation` does."""
        live = self.facts.live_generation()
        if live is None or self.fills(*live):
            return None if live is None else live[0]
        if any(each.fills(*live) for each in self.configured()):
            raise GenerationSwitchedError(
                f"{live[0].collection}, filled by {live[1]}, answers queries since a moment ago: done again for that"
            )
        return self._named_generation()  # raises, with the reason

    def _named_generation(self) -> CollectionGeneration:
        return self.facts.ensure_generation(
            prefix=self.settings.milvus_collection_prefix,
            embedder=self.embedder.identity,
            analyzer=self.settings.analyzer,
        )

    def stored_generations(self) -> Iterator[CollectionGeneration]:
        """Every generation that the vector store holds a collection of."""
        return (each for each in self.facts.generations() if self.vectors.exists(each))

    @property
    def chunking_options(self) -> ChunkingOptions:
        """How documents are cut."""
        settings = self.settings
        return ChunkingOptions(
            target_tokens=settings.chunk_tokens,
            max_tokens=settings.chunk_max_tokens,
            overlap_tokens=settings.chunk_overlap_tokens,
        )

    @property
    def parse_limits(self) -> ParseLimits:
        """What one file may cost."""
        return limits_of(self.settings)

    def fingerprints(self, item: WorkItem) -> dict[Stage, str]:
        """Fingerprints of every stage of the item's version under the present code and configuration."""
        return stage_fingerprints(
            sha256=item.sha256,
            file_name=item.file_name,
            metadata=item.metadata,
            versions=stage_versions(self.settings, self.embedder.identity.key, item.file_name),
        )

    def close(self) -> None:
        """Free connections."""
        with ExitStack() as stack:  # one that cannot be closed leaves none of the others open
            stack.callback(self.facts.close)
            stack.callback(self.vectors.close)
            for embedder in {id(each.embedder): each.embedder for each in self.configured()}.values():
                stack.callback(embedder.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def stage_versions(settings: Settings, embedder: str, file_name: str) -> dict[Stage, StageVersion]:
    """Code version and configuration of every stage for a file of that name."""
    try:
        parser = resolve(file_name)
        parser_version = f"{parser.name}/{parser.version}"
    except UnsupportedFormatError:
        parser_version = "none"
    configurations: dict[Stage, dict[str, object]] = {
        Stage.SOURCE_DOCUMENT: {},
        Stage.PARSED_BLOCKS: {"parser": parser_version},
        Stage.CHUNKS: {
            "tokens": settings.chunk_tokens,
            "max_tokens": settings.chunk_max_tokens,
            "overlap_tokens": settings.chunk_overlap_tokens,
        },
        Stage.CHUNK_SNAPSHOT: {},
        Stage.EMBEDDINGS: {"embedder": embedder, "passage_prefix": settings.embedding_passage_prefix},
        Stage.INDEX_WRITES: {"analyzer": settings.analyzer},
    }
    return {
        stage: StageVersion(code_version=CODE_VERSIONS[stage], configuration=configuration)
        for stage, configuration in configurations.items()
    }
