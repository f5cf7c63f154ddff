"""Canceling and deleting as the client does it: state first, which sensors act on, then a hint to Dagster."""

from rag_pipeline.adapters.dagster_runs import DagsterRuns
from rag_pipeline.adapters.postgres.facts import Facts
from rag_pipeline.core.documents import Deletion, Document, Status
from rag_pipeline.errors import IllegalTransitionError, KnowledgeBaseInactiveError, ResourceNotFoundError

_CANCELED = (Status.CANCELING, Status.CANCELED)


class Lifecycle:
    """Ends of documents and knowledge bases."""

    def __init__(self, facts: Facts, runs: DagsterRuns) -> None:
        self._facts = facts
        self._runs = runs

    def cancel(self, document_id: str, *, reason: str | None) -> Document:
        """See `RagClient.cancel`."""
        document = self._facts.documents.find(document_id)
        self._runs.end(self._facts.cancellations.cancel(document.id, reason=reason))
        after = self._facts.documents.get(document.id)
        if after.status not in _CANCELED:
            raise IllegalTransitionError(f"{after.source_path} is {after.status}: there is nothing to cancel")
        return after

    def cancel_knowledge_base(self, name: str, *, reason: str | None) -> int:
        """See `RagClient.cancel_knowledge_base`."""
        kb = self._facts.knowledge_bases.active(name)
        count, batches = self._facts.cancellations.cancel_knowledge_base(kb.id, reason=reason)
        self._runs.end(batches)
        return count

    def delete(self, document_id: str, *, reason: str | None) -> Deletion:
        """See `RagClient.delete`."""
        try:
            found = self._facts.documents.find(document_id).id
        except ResourceNotFoundError:
            earlier = self._facts.deletions.find(document_id, kind="document")
            if earlier is None:
                raise
            return earlier
        deletion, batches = self._facts.deletions.delete_document(found, reason=reason)
        self._runs.end(batches)
        return deletion

    def delete_knowledge_base(self, name: str, *, reason: str | None) -> Deletion:
        """See `RagClient.delete_knowledge_base`."""
        try:
            kb = self._facts.knowledge_bases.active(name)
        except (ResourceNotFoundError, KnowledgeBaseInactiveError):
            earlier = self._facts.deletions.find(name, kind="knowledge_base")
            if earlier is None:
                raise
            return earlier
        deletion, batches = self._facts.deletions.delete_knowledge_base(kb.id, reason=reason)
        self._runs.end(batches)
        return deletion
