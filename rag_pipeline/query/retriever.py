"""The retrieval with its real adapters: which collection answers, which knowledge base is asked."""

from collections.abc import Sequence
from dataclasses import replace
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

    def __init__(self, *, facts: Facts, engine: SearchEngine, other_embedders: Sequence[Embedder] = ()) -> None:
        """`other_embedders`: used, in the place of the engine's, while a collection that they filled answers."""
        self.facts = facts
        self.engine = engine
        self._embedders = {each.identity.key: each for each in (*other_embedders, engine.embedder)}

    @classmethod
    def from_settings(
        cls,
        settings: Settings,
        *,
        facts: Facts,
        index: VectorIndex,
        embedder: Embedder,
        other_embedders: Sequence[Embedder] = (),
    ) -> Self:
        """With the rerank and chat endpoints that the settings name. Raises `ConfigurationError`."""
        engine = SearchEngine(
            index=index,
            embedder=embedder,
            reranker=HttpReranker.from_settings(settings),
            chat=OpenAICompatibleChat.from_settings(settings),
            rewrite_timeout_seconds=settings.rewrite_timeout_seconds,
        )
        return cls(facts=facts, engine=engine, other_embedders=other_embedders)

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
            ConfigurationError: the collection was filled by an embedder that the settings do not name.
            FactsUnavailableError: PostgreSQL does not answer, so nobody knows what may be shown.
            RagPipelineError: every recall channel failed; the error is that of the first.
        """
        target = search_target(self.facts.engine, kb)
        if target is None:
            self.facts.knowledge_bases.active(kb)  # raises unless it is only that nothing is indexed
            return RetrievalRun(results=(), trace=Trace(query=question, notes=("nothing has been indexed yet",)))
        kb_id, generation, embedder_key = target
        return retrieve(
            question,
            kb_id=kb_id,
            engine=replace(self.engine, embedder=self._embedder(embedder_key)),
            generation=generation,
            passages=self.passages(kb_id, options.scope),
            options=options,
            earlier_questions=earlier_questions,
        )

    def passages(self, kb_id: str, scope: DocumentScope) -> Passages:
        """The facts of a knowledge base within a scope."""
        return Passages(self.facts.engine, kb_id=kb_id, scope=scope)

    def embedder(self) -> Embedder:
        """The one that the collection which answers now was filled by; the engine's before there is one.

        Raises:
            ConfigurationError: the settings do not name it.
        """
        live = self.facts.live_generation()
        return self.engine.embedder if live is None else self._embedder(live[1])

    def _embedder(self, key: str) -> Embedder:
        found = self._embedders.get(key)
        if found is None:
            raise ConfigurationError(
                f"the collection was filled by {key}, the settings say {' and '.join(self._embedders)}: "
                "set RAG_EMBEDDER, RAG_EMBEDDING_MODEL and RAG_EMBEDDING_DIMENSIONS to what filled it"
            )
        return found

    def close(self) -> None:
        """Close the connections to the endpoints; facts, index and embedder belong to the caller."""
        self.engine.threads.shutdown(wait=False, cancel_futures=True)
        for endpoint in (self.engine.reranker, self.engine.chat):
            if endpoint is not None:
                endpoint.close()
