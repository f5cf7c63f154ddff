"""What the stages work with: ports, facts and settings, put together once per process."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rag_pipeline.adapters.artefacts import ArtefactStore
from rag_pipeline.adapters.postgres.facts import Facts
from rag_pipeline.core import chunking
from rag_pipeline.core.chunking import ChunkingOptions
from rag_pipeline.core.documents import Stage
from rag_pipeline.core.fingerprints import StageVersion, stage_fingerprints
from rag_pipeline.core.ports import Embedder, ObjectStore, ParseLimits, SnapshotStore, VectorIndex
from rag_pipeline.core.work import WorkItem
from rag_pipeline.errors import UnsupportedFormatError
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

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Real adapters for these settings; nothing is connected before it is used."""
        from rag_pipeline.adapters.embedders.factory import create_embedder
        from rag_pipeline.adapters.milvus import MilvusIndex
        from rag_pipeline.adapters.object_store import MinioObjectStore
        from rag_pipeline.adapters.snapshots import FileSnapshotStore

        objects = MinioObjectStore.from_settings(settings)
        return cls(
            settings=settings,
            facts=Facts.from_settings(settings),
            objects=objects,
            vectors=MilvusIndex.from_settings(settings),
            embedder=create_embedder(settings),
            snapshots=FileSnapshotStore(settings.snapshots),
            artefacts=ArtefactStore(objects),
        )

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
        settings = self.settings
        return ParseLimits(
            seconds=settings.parse_timeout_seconds,
            memory_bytes=settings.parse_memory_bytes,
            max_pages=settings.parse_max_pages,
            max_expanded_bytes=settings.parse_max_expanded_bytes,
        )

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
        self.embedder.close()
        self.facts.close()

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
