"""The Python client. It never imports Dagster and works with it stopped: actions write state that sensors act on."""

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from rag_pipeline.adapters.dagster_runs import DagsterRuns
from rag_pipeline.adapters.postgres.conversations import Conversations
from rag_pipeline.adapters.postgres.node_log import NodeLogEntry, node_log
from rag_pipeline.core.documents import Deletion, Document, KnowledgeBase, Stage, Status
from rag_pipeline.core.reconciliation import Reconciled
from rag_pipeline.core.staleness import GenerationPlan, ReindexPlan
from rag_pipeline.errors import ConfigurationError
from rag_pipeline.intake.submission import Submission, SubmitResult
from rag_pipeline.query.answering import Answering, AnswerStream
from rag_pipeline.query.answers import Answer
from rag_pipeline.query.evidence import Subject, VisualEvidence
from rag_pipeline.query.lifecycle import Lifecycle
from rag_pipeline.query.options import RetrievalOptions
from rag_pipeline.query.results import RetrievalResult, RetrievalRun
from rag_pipeline.query.retriever import Retriever
from rag_pipeline.settings import Settings
from rag_pipeline.stages.generation import abandon_generation, start_generation
from rag_pipeline.stages.reconcile import reconcile
from rag_pipeline.stages.reindex import plan_reindex, reindex, reindex_stale, roll_back
from rag_pipeline.stages.services import Services

FIRST_POLL_SECONDS = 0.2
LONGEST_POLL_SECONDS = 2.0


class RagClient:
    """Submit documents, watch them, search them.

    Use it as a context manager:

        with RagClient.from_env() as client:
            client.create_knowledge_base("handbook")
            document = client.submit("handbook", "report.pdf")
            client.wait([document], timeout_seconds=120)
            results = client.search("handbook", "Who approves travel?")
    """

    def __init__(self, settings: Settings) -> None:
        self._services = services = Services.from_settings(settings)
        self._facts = services.facts
        self._retriever = Retriever.from_settings(
            settings,
            facts=services.facts,
            index=services.vectors,
            embedder=services.embedder,
            other_embedders=[each.embedder for each in services.configured()[1:]],
        )
        self.conversations = Conversations(self._facts.engine)
        self._answering = Answering(
            retriever=self._retriever, objects=services.objects, conversations=self.conversations
        )
        self._evidence = VisualEvidence(retriever=self._retriever, objects=services.objects)
        self._lifecycle = Lifecycle(self._facts, DagsterRuns(settings))
        self._submission = Submission(
            facts=self._facts, objects=services.objects, max_upload_bytes=settings.max_upload_bytes
        )

    @classmethod
    def from_env(cls) -> Self:
        """A client for the environment's settings and the embedded servers of the data folder.

        Raises:
            ConfigurationError: a server's address is not known.
        """
        return cls(Settings.load())

    def create_knowledge_base(self, name: str) -> KnowledgeBase:
        """The knowledge base of that name, made if it does not exist."""
        return self._facts.knowledge_bases.create(name)

    def knowledge_bases(self) -> list[KnowledgeBase]:
        """All knowledge bases, by name."""
        return self._facts.knowledge_bases.all()

    def submit(
        self,
        kb: str,
        content: str | Path | bytes,
        *,
        filename: str | None = None,
        source_path: str | None = None,
        metadata: Mapping[str, object] | None = None,
        created_by: str | None = None,
    ) -> Document:
        """Take one file in and return its PENDING document at once; see `Submission.submit` for names and errors."""
        return self._submission.submit(
            kb,
            Path(content) if isinstance(content, str) else content,
            file_name=filename,
            source_path=source_path,
            metadata=metadata,
            created_by=created_by,
        )

    def submit_many(
        self,
        kb: str,
        paths: Sequence[str | Path],
        *,
        metadata: Mapping[str, object] | None = None,
        created_by: str | None = None,
        progress: Callable[[SubmitResult], None] | None = None,
    ) -> list[SubmitResult]:
        """Take in files and folders, one result or error per file; see `Submission.submit_many`."""
        return self._submission.submit_many(kb, paths, metadata=metadata, created_by=created_by, progress=progress)

    def wait(
        self,
        documents: Sequence[Document | SubmitResult],
        *,
        timeout_seconds: float,
        progress: Callable[[list[Document]], None] | None = None,
    ) -> list[Document]:
        """Wait until every document is settled (READY, NO_CONTENT, FAILED or CANCELED) and return them as they are.

        A FAILED document that is tried again by itself within the time is waited for. Results of `submit_many` without
        a document are passed over. `progress` is called after every look.

        Raises:
            TimeoutError: some are not settled in time; the message counts them by status.
        """
        ids = [document.id for document in map(_document_of, documents) if document is not None]
        began = self._facts.now()
        deadline = time.monotonic() + timeout_seconds

        def is_done(document: Document) -> bool:
            retry_at = document.retry_at
            return document.is_settled and (retry_at is None or (retry_at - began).total_seconds() > timeout_seconds)

        pause = FIRST_POLL_SECONDS
        latest: dict[str, Document] = {}
        while True:
            open_ids = [each for each in ids if each not in latest or not is_done(latest[each])]
            latest.update({document.id: document for document in self._facts.documents.many(open_ids)})
            found = [latest[each] for each in ids if each in latest]
            if progress:
                progress(found)
            if all(map(is_done, found)):
                return found
            if time.monotonic() >= deadline:
                open_ones = [document.status for document in found if not is_done(document)]
                counts = ", ".join(f"{open_ones.count(status)} {status}" for status in dict.fromkeys(open_ones))
                raise TimeoutError(
                    f"after {timeout_seconds:.0f} s these documents are not done: {counts}; "
                    "does the Dagster daemon run? (`rag-pipeline up`)"
                )
            time.sleep(pause)
            pause = min(pause * 1.5, LONGEST_POLL_SECONDS)

    def documents(self, kb: str, *, status: str | None = None, page: int = 1, page_size: int = 20) -> list[Document]:
        """One page of a knowledge base's documents, oldest first.

        Raises:
            ResourceNotFoundError: no such knowledge base.
            ConfigurationError: no such status, or a page or size below 1.
        """
        try:
            wanted = Status(status.upper()) if status else None
        except ValueError as error:
            raise ConfigurationError(f"{status!r} is no status; one of {', '.join(Status)}") from error
        found = self._facts.knowledge_bases.active(kb)
        return self._facts.documents.list(found.id, status=wanted, page=page, page_size=page_size)

    def count_by_status(self, kb: str) -> dict[Status, int]:
        """How many documents of a knowledge base are in each status."""
        return self._facts.documents.count_by_status(self._facts.knowledge_bases.active(kb).id)

    def next_retry(self, kb: str) -> datetime | None:
        """When the first FAILED document of a knowledge base is tried again by itself; None if none is."""
        return self._facts.documents.next_retry(self._facts.knowledge_bases.active(kb).id)

    def document(self, document_id: str, *, kb: str | None = None) -> Document:
        """One document by id, partition key or source path, as in the methods below.

        Args:
            document_id: id (or its first 12 digits), partition key or path.
            kb: only in this knowledge base; None: in any.

        Raises:
            ResourceNotFoundError: no such document, or no such knowledge base.
            AmbiguousNameError: the path is in several knowledge bases.
        """
        return self._facts.documents.find(document_id, kb_id=self._kb_id(kb))

    def node_log(self, document_id: str) -> list[NodeLogEntry]:
        """What every stage did for a document, oldest first, and the stages of its newest version still to come."""
        return node_log(self._facts.engine, self.document(document_id).id)

    def retry(self, document_id: str) -> Document:
        """Hand a FAILED or CANCELED document back to the pipeline; it goes on from the failed stage."""
        return self._facts.documents.retry(self.document(document_id).id)

    def reindex(self, document_id: str, *, from_stage: str | None = None, force: bool = False) -> Document:
        """Build the document's next version from the same bytes while the live one answers; see `stages.reindex`.

        Args:
            document_id: id, partition key or path.
            from_stage: do this stage and all after it, whether or not something has changed, e.g. `"parsed_blocks"`.
            force: do every stage. Without either, only what is stale is done, and nothing if nothing is.

        Raises:
            ResourceNotFoundError: no such document.
            DocumentBusyError: it is being worked on, canceled or deleted.
            ConfigurationError: no such stage.
        """
        try:
            stage = None if from_stage is None else Stage(from_stage)
        except ValueError as error:
            raise ConfigurationError(f"{from_stage!r} is no stage; one of {', '.join(Stage)}") from error
        document = self.document(document_id)
        reindex(self._services, document, from_stage=stage, force=force)
        return self.document(document.id)

    def plan(self, kb: str | None = None) -> ReindexPlan:
        """What a change of parser, chunking, embedder or analyzer has made stale, and what it costs to do anew.

        Nothing runs. `kb`: only this knowledge base. With RAG_NEXT_ settings, `next_generation` of the plan says what
        `start_generation` would take, or how far it is, for all knowledge bases.
        """
        return plan_reindex(self._services, kb_id=self._kb_id(kb))

    def reindex_stale(self, kb: str | None = None) -> int:
        """Queue exactly what `plan` lists, from the first stale stage of each document; returns how many documents."""
        return reindex_stale(self._services, kb_id=self._kb_id(kb))

    def start_generation(self) -> GenerationPlan:
        """Move everything to the embedder and the analyzer of the RAG_NEXT_ settings, while the present ones answer.

        A second collection is filled by Dagster runs; when nothing is missing in it, it answers from one moment to the
        next. Every process has to know the RAG_NEXT_ settings before. `plan` shows how far it is. Doing it again
        changes nothing, but that a switch which was refused is tried again.

        Raises:
            ConfigurationError: no RAG_NEXT_ setting is set, they name what answers already, the next embedder answers
                with other dimensions than they say, or another generation is being filled.
            EmbeddingUnavailableError: the next embedder does not answer.
        """
        return start_generation(self._services)

    def abandon_generation(self) -> bool:
        """Give up the collection that `start_generation` began; False if there is none. Paid vectors are kept."""
        return abandon_generation(self._services) is not None

    def rollback(self, document_id: str) -> Document:
        """Let the newest older version that is kept (RAG_VERSION_RETENTION_SECONDS) answer again, at once.

        `reindex`, or the newest bytes submitted again, go forward again.

        Raises:
            ResourceNotFoundError: no such document.
            DocumentBusyError: a version is being built.
            IllegalTransitionError: it is not READY, or no older version is kept.
        """
        document = self.document(document_id)
        roll_back(self._services, document)
        return self.document(document.id)

    def cancel(self, document_id: str, *, reason: str | None = None) -> Document:
        """Stop the work on a document; its live version goes on answering, and `retry` goes on where it stopped.

        A document that waits is CANCELED at once. One in a run is CANCELING until the run notices, which is before its
        next write; its run is ended if it holds nothing else. Doing it again changes nothing.

        Raises:
            ResourceNotFoundError: no such document.
            IllegalTransitionError: nothing is going on with it.
        """
        return self._lifecycle.cancel(document_id, reason=reason)

    def cancel_knowledge_base(self, kb: str, *, reason: str | None = None) -> int:
        """Cancel every document that waits, is worked on, or would be retried by itself; returns how many."""
        return self._lifecycle.cancel_knowledge_base(kb, reason=reason)

    def delete(self, document_id: str, *, reason: str | None = None) -> Deletion:
        """Hide a document from search, lists and this client at once, and have it removed from every store.

        The work on it is canceled first. The removal is done by a Dagster sensor and tried again until every store
        shows zero; `deletions` shows how far it is. Doing it again changes nothing.

        Raises:
            ResourceNotFoundError: there is no such document and never was.
        """
        return self._lifecycle.delete(document_id, reason=reason)

    def delete_knowledge_base(self, name: str, *, reason: str | None = None) -> Deletion:
        """Hide a knowledge base at once and have everything in it removed; its name is free when that is done.

        Raises:
            ResourceNotFoundError: there is no knowledge base of that name and never was.
        """
        return self._lifecycle.delete_knowledge_base(name, reason=reason)

    def deletion(self, target_id: str) -> Deletion:
        """The record of a deleted document or knowledge base, by its id. Raises `ResourceNotFoundError`."""
        return self._facts.deletions.get(target_id)

    def deletions(self, *, only_unfinished: bool = False, limit: int = 100) -> list[Deletion]:
        """Records of what was deleted, newest first: what, when, how much from each store, and what hinders it."""
        return self._facts.deletions.list(only_unfinished=only_unfinished, limit=limit)

    def reconcile(self, *, repair: bool = False) -> Reconciled:
        """Compare PostgreSQL with objects, vectors and snapshots, both ways.

        Dagster's partitions are compared by the asset check `stores_agree`, which does the same on a schedule.

        Args:
            repair: remove what nothing names, and have READY documents that lack something rebuilt.

        Raises:
            TemporaryError: a store is down.
        """
        return reconcile(self._services, repair=repair)

    def search(
        self,
        kb: str,
        question: str,
        *,
        top_k: int = 5,
        document_ids: Sequence[str] | None = None,
        filters: Mapping[str, object] | None = None,
    ) -> list[RetrievalResult]:
        """The best passages for a question; `retrieve` has more options and gives the trace as well."""
        options = RetrievalOptions(
            top_k=top_k,
            document_ids=None if document_ids is None else tuple(document_ids),
            filters=filters or {},
        )
        return list(self.retrieve(kb, question, options=options).results)

    def retrieve(self, kb: str, question: str, *, options: RetrievalOptions | None = None) -> RetrievalRun:
        """Results with the trace of how they came about; see `Retriever.retrieve` for the errors."""
        return self._retriever.retrieve(kb, question, options=options or RetrievalOptions())

    def ask(
        self, kb: str, question: str, *, options: RetrievalOptions | None = None, conversation_id: str | None = None
    ) -> Answer:
        """An answer with citations; see `Answering.ask` for options, conversations and errors."""
        return self._answering.ask(kb, question, options=options, conversation_id=conversation_id)

    def stream(
        self, kb: str, question: str, *, options: RetrievalOptions | None = None, conversation_id: str | None = None
    ) -> AnswerStream:
        """An answer whose text comes piece by piece; its `answer` has the citations when it has ended."""
        return self._answering.stream(kb, question, options=options, conversation_id=conversation_id)

    def evidence(
        self, result_or_image_id: Subject, *, kb: str | None = None, principals: Sequence[str] | None = None
    ) -> bytes:
        """PNG of a stored image, or of the page that a result or citation stands on; see `VisualEvidence.png`."""
        asking = None if principals is None else tuple(principals)
        return self._evidence.png(result_or_image_id, kb=kb, principals=asking)

    def _kb_id(self, name: str | None) -> str | None:
        return None if name is None else self._facts.knowledge_bases.active(name).id

    def close(self) -> None:
        """Free connections."""
        self._evidence.close()
        self._retriever.close()
        self._services.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _document_of(given: Document | SubmitResult) -> Document | None:
    return given.document if isinstance(given, SubmitResult) else given
