"""The facts database as one object: opened once per process, closed at the end."""

from datetime import datetime
from types import TracebackType
from typing import Self

import sqlalchemy as sa
from sqlalchemy import exc

from rag_pipeline.adapters.postgres.cancellation import Cancellations
from rag_pipeline.adapters.postgres.chunk_rows import ChunkRows
from rag_pipeline.adapters.postgres.claims import Claims
from rag_pipeline.adapters.postgres.deletion import Deletions
from rag_pipeline.adapters.postgres.documents import Documents
from rag_pipeline.adapters.postgres.engine import create_engine, transaction
from rag_pipeline.adapters.postgres.golden import GoldenSets
from rag_pipeline.adapters.postgres.knowledge_bases import KnowledgeBases
from rag_pipeline.adapters.postgres.ledger import RetryPolicy, StageLedger
from rag_pipeline.adapters.postgres.live_generation import add_generation, first_collection, generation_of
from rag_pipeline.adapters.postgres.next_generation import NextGenerations
from rag_pipeline.adapters.postgres.reconciliation import Reconciliation
from rag_pipeline.adapters.postgres.schema import collections
from rag_pipeline.adapters.postgres.staleness import Staleness
from rag_pipeline.adapters.postgres.versions import Versions
from rag_pipeline.adapters.postgres.waiting import WaitingDocuments
from rag_pipeline.core.ports import CollectionGeneration, EmbedderIdentity
from rag_pipeline.errors import ConfigurationError
from rag_pipeline.settings import Settings


class Facts:
    """Connections to PostgreSQL and what is done with them, by subject."""

    def __init__(self, engine: sa.Engine, *, retry: RetryPolicy) -> None:
        self.engine = engine
        self.knowledge_bases = KnowledgeBases(engine)
        self.documents = Documents(engine)
        self.waiting = WaitingDocuments(engine)
        self.claims = Claims(engine, max_attempts=retry.max_attempts)
        self.chunk_rows = ChunkRows(engine)
        self.versions = Versions(engine)
        self.staleness = Staleness(engine)
        self.cancellations = Cancellations(engine)
        self.deletions = Deletions(engine)
        self.next_generations = NextGenerations(engine)
        self.reconciliation = Reconciliation(engine)
        self.golden_sets = GoldenSets(engine)
        self._retry = retry

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Connect lazily; no query is sent yet."""
        return cls(
            create_engine(settings.require_postgres()),
            retry=RetryPolicy(max_attempts=settings.max_attempts, base_seconds=settings.retry_base_seconds),
        )

    def ledger(self, *, batch_id: str, run_id: str) -> StageLedger:
        """The ledger of one batch."""
        return StageLedger(self.engine, batch_id=batch_id, run_id=run_id, retry=self._retry)

    def now(self) -> datetime:
        """The database's clock, which all its times are of."""
        with transaction(self.engine) as connection:
            found: datetime = connection.execute(sa.select(sa.func.now())).scalar_one()
        return found

    def live_generation(self) -> tuple[CollectionGeneration, str] | None:
        """The collection that answers queries and the key of its embedder; None before the first index."""
        statement = sa.select(collections).where(collections.c.state == "LIVE")
        with transaction(self.engine) as connection:
            row = connection.execute(statement).mappings().first()
        if row is None:
            return None
        return generation_of(row), row["embedder"]

    def generations(self) -> list[CollectionGeneration]:
        """Every collection that may hold vectors: the one that answers queries and those beside it."""
        statement = sa.select(collections).where(collections.c.state != "DROPPED").order_by(collections.c.created_at)
        with transaction(self.engine) as connection:
            return [generation_of(row) for row in connection.execute(statement).mappings()]

    def ensure_generation(self, *, prefix: str, embedder: EmbedderIdentity, analyzer: str) -> CollectionGeneration:
        """The live collection, made on first use.

        Raises:
            ConfigurationError: the live collection was filled by another embedder or analyzer.
        """
        found = self.live_generation()
        if found is None:
            try:
                with transaction(self.engine) as connection:
                    add_generation(
                        connection, name=first_collection(prefix), embedder=embedder, analyzer=analyzer, state="LIVE"
                    )
            except exc.IntegrityError:
                pass  # another process was first
            found = self.live_generation()
        if found is None:
            raise ConfigurationError("the live collection has just been removed: start again")
        generation, key = found
        if (key, generation.analyzer) != (embedder.key, analyzer):
            raise ConfigurationError(
                f"the collection {generation.collection} was filled by {key} with the analyzer {generation.analyzer}, "
                f"the settings say {embedder.key} with {analyzer}: set RAG_EMBEDDER, RAG_EMBEDDING_MODEL, "
                "RAG_EMBEDDING_DIMENSIONS and RAG_ANALYZER back; to change them, put the new values into "
                "RAG_NEXT_EMBEDDER, RAG_NEXT_EMBEDDING_MODEL, ... and run `rag-pipeline reindex --next`"
            )
        return generation

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
