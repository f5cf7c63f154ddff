"""What a cancel and a delete do to the rows of documents in every status, and to the batches that held them."""

import threading

import pytest
import sqlalchemy as sa

from rag_pipeline.adapters.postgres.cancellation import CanceledVersion
from rag_pipeline.adapters.postgres.facts import Facts
from rag_pipeline.adapters.postgres.schema import batches, documents
from rag_pipeline.core.documents import WORKING, KnowledgeBase, Stage, Status
from rag_pipeline.core.work import WorkItem
from rag_pipeline.errors import IllegalTransitionError, ResourceNotFoundError, VectorStoreUnavailableError
from rag_pipeline_tests.adapters.postgres.rows import (
    claim,
    items,
    make_ready,
    outcome,
    register,
    run_stages,
    set_status,
    start,
)


def state_of(facts: Facts, batch_id: str) -> str:
    with facts.engine.connect() as connection:
        return str(connection.execute(sa.select(batches.c.state).where(batches.c.id == batch_id)).scalar_one())


@pytest.mark.parametrize("status", list(Status), ids=str)
def test_cancel_in_every_status(facts: Facts, kb: KnowledgeBase, status: Status) -> None:
    document = register(facts, kb, "a.txt")
    batch_id = start(facts)
    set_status(facts, document, status)
    abandoned = facts.cancellations.cancel(document.id, reason="why")
    (item,) = items(facts, document)
    expected = {
        **dict.fromkeys(WORKING, (Status.CANCELING, batch_id)),
        Status.PENDING: (Status.CANCELED, None),
        Status.FAILED: (Status.CANCELED, None),
        Status.CANCELED: (Status.CANCELED, None),
    }.get(status, (status, batch_id))
    assert (item.status, item.batch_id) == expected
    assert [each.batch_id for each in abandoned] == (
        [batch_id] if item.status in (Status.CANCELING, Status.CANCELED, Status.DELETING) else []
    )


@pytest.mark.parametrize("status", list(Status), ids=str)
def test_delete_in_every_status(facts: Facts, kb: KnowledgeBase, status: Status) -> None:
    document = register(facts, kb, "a.txt")
    batch_id = start(facts)
    set_status(facts, document, status)
    facts.deletions.delete_document(document.id, reason=None)
    (item,) = items(facts, document)
    keeps_batch = status not in (Status.PENDING, Status.FAILED, Status.CANCELED)
    assert (item.status, item.batch_id) == (Status.DELETING, batch_id if keeps_batch else None)
    assert len(facts.deletions.due(limit=5)) == (0 if keeps_batch else 1)


def test_a_queued_batch_without_work_is_closed_and_one_with_work_is_not(facts: Facts, kb: KnowledgeBase) -> None:
    first, second = register(facts, kb, "a.txt"), register(facts, kb, "b.txt")
    (batch,) = claim(facts)
    assert facts.cancellations.cancel(first.id, reason=None) == []
    assert state_of(facts, batch.batch_id) == "QUEUED"
    (abandoned,) = facts.cancellations.cancel(second.id, reason=None)
    assert (abandoned.batch_id, abandoned.run_id) == (batch.batch_id, None)
    assert state_of(facts, batch.batch_id) == "FINISHED"
    assert not facts.claims.begin_queued(batch.batch_id, "run")


def test_a_running_batch_without_work_is_named_with_its_run(facts: Facts, kb: KnowledgeBase) -> None:
    document = register(facts, kb, "a.txt")
    batch_id = start(facts, run_id="run 1")
    facts.ledger(batch_id=batch_id, run_id="run 1").begin(Stage.CHUNKS, items(facts, document))
    (abandoned,) = facts.cancellations.cancel(document.id, reason=None)
    assert (abandoned.batch_id, abandoned.run_id) == (batch_id, "run 1")
    assert state_of(facts, batch_id) == "RUNNING"


def canceled_in_a_stage(facts: Facts, kb: KnowledgeBase, stage: Stage) -> WorkItem:
    document = register(facts, kb, "a.txt")
    batch_id = start(facts)
    (item,) = items(facts, document)
    ledger = facts.ledger(batch_id=batch_id, run_id="run")
    ledger.begin(stage, [item])
    ledger.record(stage, [outcome(item, stage)], {item.document_id: "f"})
    facts.cancellations.cancel(document.id, reason=None)
    assert facts.cancellations.settle_next(lambda _: None) is None, "its batch has not let go"
    assert ledger.let_go([item]) == {document.id}
    return items(facts, document)[0]


@pytest.mark.parametrize(
    ("stage", "kept"),
    [
        pytest.param(Stage.EMBEDDINGS, {Stage.EMBEDDINGS}, id="paid for"),
        pytest.param(Stage.CHUNK_SNAPSHOT, set(), id="snapshot"),
        pytest.param(Stage.INDEX_WRITES, set(), id="index rows"),
    ],
)
def test_a_canceled_version_loses_what_is_partial(
    facts: Facts, kb: KnowledgeBase, stage: Stage, kept: set[Stage]
) -> None:
    item = canceled_in_a_stage(facts, kb, stage)
    assert item.status is Status.CANCELING
    cleaned: list[CanceledVersion] = []
    settled = facts.cancellations.settle_next(cleaned.append)
    assert settled is not None
    assert [each.document_id for each in cleaned] == [item.document_id]
    found = facts.documents.get(item.document_id)
    assert (found.status, found.stages_done) == (Status.CANCELED, len(kept))
    assert set(facts.claims.artefacts([item.document_id]).get((item.document_id, 1), {})) == kept


def test_a_store_that_is_down_postpones_the_end_of_a_cancellation(facts: Facts, kb: KnowledgeBase) -> None:
    item = canceled_in_a_stage(facts, kb, Stage.INDEX_WRITES)

    def fail(_: object) -> None:
        raise VectorStoreUnavailableError("down")

    settled = facts.cancellations.settle_next(fail)
    assert settled is not None
    assert str(settled.error) == "down"
    assert facts.documents.get(item.document_id).status is Status.CANCELING
    assert facts.cancellations.settle_next(lambda _: None) is None, "not again at once"
    assert facts.cancellations.settle_next(lambda _: None, document_ids=[item.document_id]) is not None
    assert facts.documents.get(item.document_id).status is Status.CANCELED


def test_neither_a_retry_nor_a_second_cleaner_comes_between(facts: Facts, kb: KnowledgeBase) -> None:
    item = canceled_in_a_stage(facts, kb, Stage.INDEX_WRITES)

    def clean(_: object) -> None:
        # A retry in between would let a run write what this cleaner is about to remove.
        with pytest.raises(IllegalTransitionError):
            facts.documents.retry(item.document_id)
        assert facts.cancellations.settle_next(lambda _: None) is None

    assert facts.cancellations.settle_next(clean) is not None
    assert facts.documents.retry(item.document_id).status is Status.PENDING


def test_a_whole_knowledge_base_is_canceled_beside_running_ledgers(facts: Facts, kb: KnowledgeBase) -> None:
    """Rows in many orders, locked by many transactions: nobody may deadlock."""
    found = [register(facts, kb, f"{number}.txt") for number in range(60)]
    batch_id = start(facts)
    begun = items(facts, *found)
    stop = threading.Event()
    errors: list[Exception] = []

    def work() -> None:
        ledger = facts.ledger(batch_id=batch_id, run_id="run")
        try:
            while not stop.is_set():
                begun.reverse()
                ledger.begin(Stage.PARSED_BLOCKS, begun)
        except Exception as error:  # noqa: BLE001 - reported by the test
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    count, _ = facts.cancellations.cancel_knowledge_base(kb.id, reason=None)
    stop.set()
    thread.join()
    assert errors == []
    assert count == len(found)
    assert {item.status for item in items(facts, *found)} <= {Status.CANCELING, Status.CANCELED}


def test_only_what_would_be_retried_by_itself_is_canceled_of_the_failed(facts: Facts, kb: KnowledgeBase) -> None:
    found = {kind: register(facts, kb, f"{kind}.txt") for kind in ("temporary", "permanent", "dead")}
    ready = make_ready(facts, register(facts, kb, "ready.txt"))
    for kind, document in found.items():
        with facts.engine.begin() as connection:
            connection.execute(
                sa.update(documents)
                .where(documents.c.id == document.id)
                .values(status=Status.FAILED, error_class=kind, batch_id=None)
            )
    assert facts.cancellations.cancel_knowledge_base(kb.id, reason=None)[0] == 1
    assert {kind: items(facts, document)[0].status for kind, document in found.items()} == {
        "temporary": Status.CANCELED,
        "permanent": Status.FAILED,
        "dead": Status.FAILED,
    }
    assert facts.documents.get(ready.id).status is Status.READY


def test_counts_of_several_tries_add_up_in_the_record(facts: Facts, kb: KnowledgeBase) -> None:
    document = register(facts, kb, "a.txt")
    run_stages(facts, start(facts), items(facts, document))
    facts.deletions.delete_document(document.id, reason="old")
    facts.deletions.postpone({document.id: {"vectors": 2}}, "Milvus does not answer")
    waiting = facts.deletions.get(document.id)
    assert (waiting.counts, waiting.last_error, waiting.finished_at) == ({"vectors": 2}, "Milvus does not answer", None)
    assert facts.deletions.due(limit=5) == []
    facts.deletions.forget({document.id: {"vectors": 1, "objects": 4}})
    done = facts.deletions.get(document.id)
    assert done.counts == {"vectors": 3, "objects": 4, "chunk_rows": 0, "documents": 1}
    assert (done.last_error, done.reason, done.finished_at is not None) == (None, "old", True)
    with pytest.raises(ResourceNotFoundError):
        facts.documents.get(document.id)


def test_ends_of_ranges_of_open_batches_are_in_use(facts: Facts, kb: KnowledgeBase) -> None:
    found = [register(facts, kb, f"{number}.txt") for number in range(3)]
    (batch,) = claim(facts)
    assert facts.deletions.partitions_in_use() == {batch.first_partition, batch.last_partition}
    assert {batch.first_partition, batch.last_partition} <= {document.partition_key for document in found}
    facts.claims.finish(batch.batch_id)
    assert facts.deletions.partitions_in_use() == frozenset()
