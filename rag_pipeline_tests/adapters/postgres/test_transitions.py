"""Random sequences of everything that changes a status, checked against the one table of legal changes."""

import contextlib
import uuid

import hypothesis
import pytest
import sqlalchemy as sa
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from rag_pipeline.adapters.postgres.facts import Facts
from rag_pipeline.adapters.postgres.ledger import StageLedger
from rag_pipeline.adapters.postgres.schema import batches, documents
from rag_pipeline.core.documents import STATUS_DURING, TRANSITIONS, KnowledgeBase, Stage, Status, allowed_from
from rag_pipeline.core.work import OutcomeKind, WorkItem
from rag_pipeline.errors import (
    CorruptDocumentError,
    DocumentBusyError,
    EmbeddingUnavailableError,
    IllegalTransitionError,
    ResourceNotFoundError,
)
from rag_pipeline_tests.adapters.postgres.rows import claim, items, outcome, register, set_status, silence, start

LOG = """
CREATE TABLE status_changes (id serial, was text, becomes text);
CREATE FUNCTION log_status() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.status <> OLD.status THEN
        INSERT INTO status_changes (was, becomes) VALUES (OLD.status, NEW.status);
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER log_status AFTER UPDATE ON documents FOR EACH ROW EXECUTE FUNCTION log_status();
"""
UNLOG = "DROP TRIGGER log_status ON documents; DROP FUNCTION log_status; DROP TABLE status_changes"

NAMES = ["a.txt", "b.txt", "c.txt"]


class Operations(RuleBasedStateMachine):
    """Ledgers of several batches, living and dead, and people, all at once on three documents."""

    facts: Facts
    kb: KnowledgeBase

    def __init__(self) -> None:
        super().__init__()
        with self.facts.engine.begin() as connection:
            connection.exec_driver_sql("TRUNCATE documents, batches, deletions CASCADE; TRUNCATE status_changes")
        self.documents = [register(self.facts, self.kb, name) for name in NAMES]
        self.batches: list[tuple[str, list[WorkItem]]] = []

    def ledger(self, pick: int) -> tuple[StageLedger, list[WorkItem]] | None:
        if not self.batches:
            return None
        batch_id, found = self.batches[pick % len(self.batches)]
        return self.facts.ledger(batch_id=batch_id, run_id=batch_id), found

    @rule()
    def claim_and_begin(self) -> None:
        for batch in claim(self.facts):
            self.facts.claims.begin_queued(batch.batch_id, batch.batch_id)
            self.batches.append((batch.batch_id, items(self.facts, *self.documents)))

    @rule()
    def begin_by_hand(self) -> None:
        run_id = uuid.uuid4().hex
        batch_id = self.facts.claims.begin_manual(run_id, [document.id for document in self.documents])
        self.batches.append((batch_id, items(self.facts, *self.documents)))

    @rule(pick=st.integers(0, 9), stage=st.sampled_from(list(Stage)))
    def begin_stage(self, pick: int, stage: Stage) -> None:
        if known := self.ledger(pick):
            ledger, found = known
            ledger.begin(stage, found)

    @rule(
        pick=st.integers(0, 9),
        stage=st.sampled_from(list(Stage)),
        kind=st.sampled_from([OutcomeKind.DONE, OutcomeKind.EMPTY, OutcomeKind.FAILED]),
        temporary=st.booleans(),
    )
    def record(self, pick: int, stage: Stage, kind: OutcomeKind, temporary: bool) -> None:
        if known := self.ledger(pick):
            ledger, found = known
            error = EmbeddingUnavailableError("down") if temporary else CorruptDocumentError("broken")
            ledger.record(
                stage,
                [outcome(item, stage, kind, error=error) for item in found],
                {item.document_id: "f" for item in found},
            )

    @rule(pick=st.integers(0, 9))
    def index_and_publish(self, pick: int) -> None:
        if known := self.ledger(pick):
            ledger, found = known
            ledger.begin(Stage.INDEX_WRITES, found)
            ledger.publish(found, collection="rag_1")

    @rule(pick=st.integers(0, 9))
    def publish(self, pick: int) -> None:
        if known := self.ledger(pick):
            ledger, found = known
            ledger.publish(found, collection="rag_1")

    @rule(pick=st.integers(0, 9))
    def hand_back(self, pick: int) -> None:
        if known := self.ledger(pick):
            ledger, found = known
            ledger.hand_back(found)

    @rule(pick=st.integers(0, 9), dead=st.booleans())
    def end(self, pick: int, dead: bool) -> None:
        if not self.batches:
            return
        batch_id, _ = self.batches[pick % len(self.batches)]
        if dead:
            silence(self.facts, batch_id, 100)
            self.facts.claims.take_back(batch_id, reason="dead", lease_seconds=60)
        else:
            self.facts.claims.finish(batch_id)

    @rule()
    def requeue(self) -> None:
        with self.facts.engine.begin() as connection:
            connection.execute(sa.update(documents).values(available_at=sa.func.now()))
        self.facts.waiting.requeue_due(limit=10)

    @rule(name=st.sampled_from(NAMES), content=st.sampled_from(["content", "other", "third"]))
    def submit(self, name: str, content: str) -> None:
        with contextlib.suppress(DocumentBusyError):
            register(self.facts, self.kb, name, content)

    @rule(pick=st.integers(0, 2))
    def retry(self, pick: int) -> None:
        with contextlib.suppress(IllegalTransitionError, ResourceNotFoundError):
            self.facts.documents.retry(self.documents[pick].id)

    @rule()
    def reindex(self) -> None:
        found = items(self.facts, *self.documents)
        self.facts.claims.open_versions(found, {item.document_id: {} for item in found})

    @rule(pick=st.integers(0, 2))
    def cancel(self, pick: int) -> None:
        self.facts.cancellations.cancel(self.documents[pick].id, reason="no more")

    @rule()
    def cancel_all(self) -> None:
        self.facts.cancellations.cancel_knowledge_base(self.kb.id, reason="no more")

    @rule(pick=st.integers(0, 9))
    def let_go(self, pick: int) -> None:
        if known := self.ledger(pick):
            ledger, found = known
            ledger.let_go(found)

    @rule()
    def settle(self) -> None:
        self.facts.cancellations.settle_next(lambda _: None)

    @rule(pick=st.integers(0, 2))
    def delete(self, pick: int) -> None:
        self.facts.deletions.delete_document(self.documents[pick].id, reason=None)

    @rule()
    def remove(self) -> None:
        due = self.facts.deletions.due(limit=1)
        self.facts.deletions.forget({document.document_id: {} for document in due})
        self.documents = [
            document if items(self.facts, document) else register(self.facts, self.kb, document.source_path)
            for document in self.documents
        ]

    def teardown(self) -> None:
        with self.facts.engine.connect() as connection:
            changes = connection.exec_driver_sql("SELECT DISTINCT was, becomes FROM status_changes").all()
            stuck = connection.execute(
                sa.select(documents.c.status).where(
                    documents.c.batch_id.is_not(None),
                    documents.c.batch_id.not_in(sa.select(batches.c.id).where(batches.c.state != "FINISHED")),
                )
            ).all()
        assert stuck == [], "held by a batch that is over"
        assert [change for change in changes if Status(change.becomes) not in TRANSITIONS[Status(change.was)]] == []


def test_no_sequence_of_operations_takes_a_forbidden_transition(facts: Facts, kb: KnowledgeBase) -> None:
    Operations.facts = facts
    Operations.kb = kb
    with facts.engine.begin() as connection:
        connection.exec_driver_sql(LOG)
    try:
        run_state_machine_as_test(
            Operations,
            settings=hypothesis.settings(
                max_examples=25,
                stateful_step_count=20,
                deadline=None,
                suppress_health_check=list(hypothesis.HealthCheck),
            ),
        )
    finally:
        with facts.engine.begin() as connection:
            connection.exec_driver_sql(UNLOG)


@pytest.mark.parametrize("stage", list(Stage), ids=str)
def test_begin_agrees_with_the_table(facts: Facts, kb: KnowledgeBase, stage: Stage) -> None:
    found = {status: register(facts, kb, f"{status}.txt") for status in Status}
    ledger = facts.ledger(batch_id=start(facts), run_id="run")
    for status, document in found.items():
        set_status(facts, document, status)
    begun = ledger.begin(stage, items(facts, *found.values()))
    expected = {status for status in Status if STATUS_DURING[stage] in TRANSITIONS[status]}
    assert {status for status, document in found.items() if document.id in begun} == expected


def test_publish_agrees_with_the_table(facts: Facts, kb: KnowledgeBase) -> None:
    found = {status: register(facts, kb, f"{status}.txt") for status in Status}
    ledger = facts.ledger(batch_id=start(facts), run_id="run")
    for status, document in found.items():
        set_status(facts, document, status)
    published = ledger.publish(items(facts, *found.values()), collection="rag_1")
    assert {status for status, document in found.items() if document.id in published} == set(allowed_from(Status.READY))
