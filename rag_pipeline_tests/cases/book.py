"""A knowledge base as the cases use it: upload, let the pipeline work, ask by words."""

from dataclasses import dataclass

import sqlalchemy as sa

from rag_pipeline.adapters.postgres.schema import chunks
from rag_pipeline.core.documents import Document
from rag_pipeline.query.client import RagClient
from rag_pipeline.query.options import RetrievalOptions
from rag_pipeline.query.results import RetrievalResult
from rag_pipeline_tests.contents import contents
from rag_pipeline_tests.embedding_server import EmbeddingServer
from rag_pipeline_tests.stages.runner import Runner


@dataclass(frozen=True, kw_only=True)
class Book:
    """One knowledge base of a runner's stores."""

    runner: Runner
    name: str

    @property
    def client(self) -> RagClient:
        return self.runner.system.client

    @property
    def embedding(self) -> EmbeddingServer:
        return self.runner.system.embedding

    def upload(self, name: str, text: str) -> Document:
        return self.client.submit(self.name, text.encode(), filename=name)

    def ingest(self, name: str, text: str) -> Document:
        """Upload, work, and look at the result."""
        document = self.upload(name, text)
        self.runner.run_queued()
        return self.client.document(document.id)

    def try_again(self) -> None:
        """Let the time pass after which temporary failures are tried again, and work."""
        self.runner.make_due()
        self.runner.services.facts.waiting.requeue_due(limit=100)
        self.runner.run_queued()

    def hits(self, words: str) -> list[RetrievalResult]:
        """Passages that hold the words: the vectors of the loopback service mean nothing."""
        options = RetrievalOptions(top_k=50, mode="bm25")
        return list(self.client.retrieve(self.name, words, options=options).results)

    def sources(self, words: str) -> list[str]:
        return sorted({hit.source_path for hit in self.hits(words)})

    def stored(self, document: Document) -> tuple[int, int]:
        """Rows of chunks in PostgreSQL and vectors in Milvus."""
        own = contents(self.runner.services).of(document.id)
        return len(own.chunk_rows), len(own.vectors)

    def live_text(self, document: Document) -> str:
        """All chunk texts of the live version."""
        live = self.client.document(document.id).live_version
        with self.runner.services.facts.engine.connect() as connection:
            texts = connection.execute(
                sa.select(chunks.c.content)
                .where(chunks.c.document_id == document.id, chunks.c.version == live)
                .order_by(chunks.c.chunk_index)
            ).scalars()
            return "\n".join(texts)
