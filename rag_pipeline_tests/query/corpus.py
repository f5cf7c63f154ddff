"""A small searchable corpus on the real servers: rows in Milvus and PostgreSQL, written without the pipeline."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from rag_pipeline.adapters.embedders.openai import OpenAICompatibleEmbedder
from rag_pipeline.adapters.milvus import MilvusIndex
from rag_pipeline.adapters.postgres.facts import Facts
from rag_pipeline.adapters.postgres.passages import Passages
from rag_pipeline.adapters.postgres.schema import chunks, document_versions, documents, knowledge_bases
from rag_pipeline.core.chunk import chunk_id, parent_id
from rag_pipeline.core.passages import StoredChunk
from rag_pipeline.core.ports import ChatModel, CollectionGeneration, Reranker, SearchScope, VectorHit, VectorRow
from rag_pipeline.errors import FactsUnavailableError, VectorStoreUnavailableError
from rag_pipeline.query.options import RetrievalOptions
from rag_pipeline.query.results import RetrievalRun
from rag_pipeline.query.retrieval import PassageSource, SearchEngine, retrieve
from rag_pipeline_tests.embedding_server import EmbeddingServer, unit_vector

DIMENSIONS = 16


class WatchedPassages(Passages):
    """The real facts; counts what is asked, does something before a look at the hits, fails on demand."""

    corpus: "Corpus"

    def live(self, chunk_ids: Sequence[str]) -> dict[str, StoredChunk]:
        self.corpus.before_live(len(self.corpus.asked))
        self.corpus.asked.append(list(chunk_ids))
        if self.corpus.facts_fail:
            raise FactsUnavailableError("from the test")
        return super().live(chunk_ids)

    def sections(self, found: Sequence[StoredChunk]) -> dict[str, list[StoredChunk]]:
        if self.corpus.sections_fail:
            raise FactsUnavailableError("from the test")
        return super().sections(found)


class WatchedIndex(MilvusIndex):
    """The real index; notes the scopes it is asked for, and fails in BM25 from a certain call on."""

    text_searches_before_failure: int | None = None

    def __init__(self, *, uri: str, token: str = "") -> None:
        super().__init__(uri=uri, token=token)
        self.scopes: list[SearchScope] = []

    def search_text(
        self, generation: CollectionGeneration, query: str, *, scope: SearchScope, limit: int
    ) -> list[VectorHit]:
        self.scopes.append(scope)
        if self.text_searches_before_failure is not None:
            self.text_searches_before_failure -= 1
            if self.text_searches_before_failure < 0:
                raise VectorStoreUnavailableError("from the test")
        return super().search_text(generation, query, scope=scope, limit=limit)


@dataclass(kw_only=True)
class Corpus:
    """A filled collection, the facts about it, and the services that a test may break."""

    index: WatchedIndex
    generation: CollectionGeneration
    server: EmbeddingServer
    embedder: OpenAICompatibleEmbedder
    facts: Facts
    reranker: Reranker | None = None
    chat: ChatModel | None = None
    asked: list[list[str]] = field(default_factory=list)
    """Chunk ids of each look at the hits."""
    facts_fail: bool = False
    sections_fail: bool = False
    _count: int = 0

    def before_live(self, looks: int) -> None:
        """Called before each look at the hits with the number of earlier ones; a test may replace it."""

    def add(
        self,
        text: str,
        *,
        document_id: str = "doc",
        version: int = 1,
        kb_id: str = "kb",
        number: int | None = None,
        live: bool = True,
        near: str | None = None,
        section: int = 0,
        start: int = 10,
        metadata: Mapping[str, object] | None = None,
        locator: Mapping[str, object] | None = None,
    ) -> str:
        """Store a passage; its vector is that of the text `near` (its own by default).

        `live` makes its version the live one of its document, or leaves it without any.
        """
        place = self._count if number is None else number
        self._count += 1
        row = VectorRow(
            chunk_id=chunk_id(document_id, version, place),
            kb_id=kb_id,
            document_id=document_id,
            version=version,
            chunk_index=place,
            content=text,
            dense=unit_vector(near or text, DIMENSIONS),
        )
        self.index.upsert(self.generation, [row])
        with self.facts.engine.begin() as connection:
            connection.execute(insert(knowledge_bases).values(id=kb_id, name=kb_id).on_conflict_do_nothing())
            values = {
                "id": document_id,
                "kb_id": kb_id,
                "source_path": f"docs/{document_id}.pdf",
                "file_name": f"{document_id}.pdf",
                "partition_key": document_id,
                "status": "READY",
                "version": version,
                "live_version": version if live else None,
            }
            changed = {name: values[name] for name in ("version", "live_version")}
            connection.execute(
                insert(documents).values(values).on_conflict_do_update(index_elements=["id"], set_=changed)
            )
            described = {"metadata": dict(metadata or {})}
            connection.execute(
                insert(document_versions)
                .values(document_id=document_id, version=version, sha256="", size_bytes=0, object_key="", **described)
                .on_conflict_do_update(index_elements=["document_id", "version"], set_=described)
            )
            connection.execute(
                sa.insert(chunks).values(
                    id=row.chunk_id,
                    document_id=document_id,
                    version=version,
                    chunk_index=place,
                    parent_id=parent_id(document_id, version, section),
                    content=text,
                    heading_path=["Title", "Section"],
                    page=2,
                    page_end=3,
                    start_offset=start,
                    end_offset=start + len(text),
                    tokens=len(text.split()),
                    content_hash="",
                    locator=dict(locator or {}),
                )
            )
        return row.chunk_id

    def passages(self, options: RetrievalOptions, *, kb_id: str = "kb") -> PassageSource:
        """The facts within the options' scope."""
        found = WatchedPassages(self.facts.engine, kb_id=kb_id, scope=options.scope)
        found.corpus = self
        return found

    def retrieve(
        self,
        query: str,
        *,
        options: RetrievalOptions | None = None,
        kb_id: str = "kb",
        engine: SearchEngine | None = None,
        earlier_questions: Sequence[str] = (),
    ) -> RetrievalRun:
        """Search with the corpus's services, or with an engine of the test's own."""
        options = options or RetrievalOptions()
        return retrieve(
            query,
            kb_id=kb_id,
            engine=engine or self.engine,
            generation=self.generation,
            passages=self.passages(options, kb_id=kb_id),
            options=options,
            earlier_questions=earlier_questions,
        )

    @property
    def engine(self) -> SearchEngine:
        """The corpus's services."""
        return SearchEngine(
            index=self.index,
            embedder=self.embedder,
            reranker=self.reranker,
            chat=self.chat,
            rewrite_timeout_seconds=2.0,
        )

    def with_index(self, index: MilvusIndex) -> SearchEngine:
        """The corpus's services with another index."""
        return replace(self.engine, index=index)


def ids(run: RetrievalRun) -> list[str]:
    """Chunk ids of the results, in order."""
    return [result.chunk_id for result in run.results]
