"""The retrieval with its real adapters: which collection answers, which knowledge base is asked."""

from collections.abc import Sequence
from typing import Self

from rag_pipeline.adapters.chat import OpenAICompatibleChat
from rag_pipeline.adapters.postgres.facts import Facts
from rag_pipeline.adapters.postgres.passages import Passages, search_target
from rag_pipeline.adapters.rerank import HttpReranker
from rag_pipeline.core.filters import DocumentScope
from rag_pipeline.core.ports import Embedder, VectorIndex
from rag_pipeline.errors import ConfigurationError
from rag_pipeline.query.options import RetrievalOptions
from rag_pipeline.query.results import RetrievalRun, Trace
from rag_pipeline.query.retrieval import SearchEngine, retrieve
from rag_pipeline.settings import Settings


class Retriever:
    """Searches knowledge bases by name."""

    def __init__(self, *, facts: Facts, engine: SearchEngine) -> None:
        self.facts = facts
        self.engine = engine

    @classmethod
    def from_settings(cls, settings: Settings, *, facts: Facts, index: VectorIndex, embedder: Embedder) -> Self:
        """With the rerank and chat endpoints that the settings name. Raises `ConfigurationError`."""
        engine = SearchEngine(
            index=index,
            embedder=embedder,
            reranker=HttpReranker.from_settings(settings),
            chat=OpenAICompatibleChat.from_settings(settings),
            rewrite_timeout_seconds=settings.rewrite_timeout_seconds,
        )
        return cls(facts=facts, engine=engine)

    def retrieve(
        self, kb: str, question: str, *, options: RetrievalOptions, earlier_questions: Sequence[str] = ()
    ) -> RetrievalRun:
        """Search one knowledge base.

        Args:
            kb: its name.
            question: in any language.
            options: how to search.
            earlier_questions: of the same conversation, for rewriting.

        Raises:
            ResourceNotFoundError: no such knowledge base.
            KnowledgeBaseInactiveError: it is being deleted.
            ConfigurationError: the collection was filled by another embedder than the settings name.
            FactsUnavailableError: PostgreSQL does not answer, so nobody knows what may be shown.
            RagPipelineError: every recall channel failed; the error is that of the first.
        """
        target = search_target(self.facts.engine, kb)
        if target is None:
            self.facts.knowledge_bases.active(kb)  # raises unless it is only that nothing is indexed
            return RetrievalRun(results=(), trace=Trace(query=question, notes=("nothing has been indexed yet",)))
        kb_id, generation, embedder_key = target
        own_key = self.engine.embedder.identity.key
        if embedder_key != own_key:
            raise ConfigurationError(
                f"the collection was filled by {embedder_key}, the settings say {own_key}: "
                "set RAG_EMBEDDER, RAG_EMBEDDING_MODEL and RAG_EMBEDDING_DIMENSIONS to what filled it"
            )
        return retrieve(
            question,
            kb_id=kb_id,
            engine=self.engine,
            generation=generation,
            passages=self.passages(kb_id, options.scope),
            options=options,
            earlier_questions=earlier_questions,
        )

    def passages(self, kb_id: str, scope: DocumentScope) -> Passages:
        """The facts of a knowledge base within a scope."""
        return Passages(self.facts.engine, kb_id=kb_id, scope=scope)

    def close(self) -> None:
        """Close the connections to the endpoints; facts, index and embedder belong to the caller."""
        self.engine.threads.shutdown(wait=False, cancel_futures=True)
        for endpoint in (self.engine.reranker, self.engine.chat):
            if endpoint is not None:
                endpoint.close()
