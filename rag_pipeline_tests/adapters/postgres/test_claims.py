from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa

from rag_pipeline.adapters.postgres.facts import Facts
from rag_pipeline.adapters.postgres.schema import batches
from rag_pipeline.core.documents import WORKING, KnowledgeBase, Stage, Status
from rag_pipeline_tests.adapters.postgres.rows import (
    attempts,
    claim,
    items,
    owners,
    register,
    run_stages,
    set_attempt,
    set_status,
    silence,
    start,
)


def test_a_queued_batch_begins_once(facts: Facts, kb: KnowledgeBase) -> None:
    document = register(facts, kb, "a.txt")
    (batch,) = claim(facts)
    with ThreadPoolExecutor(4) as threads:
        begun = list(threads.map(lambda run: facts.claims.begin_queued(batch.batch_id, run), "1234"))
    assert sorted(begun) == [False, False, False, True]
    assert facts.documents.get(document.id).attempt == 1


def test_a_batch_that_was_taken_back_does_not_begin(facts: Facts, kb: KnowledgeBase) -> None:
    register(facts, kb, "a.txt")
    (batch,) = claim(facts)
    silence(facts, batch.batch_id, 100)
    assert facts.claims.take_back(batch.batch_id, reason="lost", lease_seconds=60) == 1
    assert not facts.claims.begin_queued(batch.batch_id, "run")


def test_a_run_started_by_hand_takes_only_what_nobody_works_on(facts: Facts, kb: KnowledgeBase) -> None:
    busy = register(facts, kb, "busy.txt")
    batch_id = start(facts)
    found = {status: register(facts, kb, f"{status}.txt") for status in Status}
    for status, document in found.items():
        set_status(facts, document, status)
    manual = facts.claims.begin_manual("by hand", [busy.id, *(document.id for document in found.values())])
    owned = owners(facts)
    assert owned[busy.id] == batch_id
    assert {status for status, document in found.items() if owned[document.id] == manual} == {
        Status.PENDING,
        Status.FAILED,
        Status.CANCELED,
    }


def test_finish_hands_back_what_is_not_done(facts: Facts, kb: KnowledgeBase) -> None:
    untouched, begun, canceling = (register(facts, kb, f"{number}.txt") for number in range(3))
    batch_id = start(facts)
    facts.ledger(batch_id=batch_id, run_id="run").begin(Stage.PARSED_BLOCKS, items(facts, begun, canceling))
    set_status(facts, canceling, Status.CANCELING)
    facts.claims.finish(batch_id)
    statuses = [facts.documents.get(document.id).status for document in (untouched, begun, canceling)]
    assert statuses == [Status.PENDING, Status.PENDING, Status.CANCELING]
    assert set(owners(facts).values()) == {None}
    assert facts.claims.open_batches() == []
    assert [entry.status for entry in attempts(facts, begun)] == ["CANCELED"]


def test_finish_gives_up_a_document_whose_runs_break_off_again_and_again(facts: Facts, kb: KnowledgeBase) -> None:
    document = register(facts, kb, "a.txt")
    for attempt in (1, 2, 3):
        assert facts.documents.get(document.id).status is Status.PENDING
        batch_id = start(facts)
        facts.ledger(batch_id=batch_id, run_id=f"run {attempt}").begin(Stage.PARSED_BLOCKS, items(facts, document))
        facts.claims.finish(batch_id)
    found = facts.documents.get(document.id)
    assert found.status is Status.FAILED
    assert found.error is not None
    assert (found.error.stage, found.error.error_class) == ("parsed_blocks", "dead")
    assert claim(facts) == []


def test_finishing_twice_does_not_move_the_end(facts: Facts, kb: KnowledgeBase) -> None:
    register(facts, kb, "a.txt")
    batch_id = start(facts)
    facts.claims.finish(batch_id)
    with facts.engine.connect() as connection:
        before = connection.execute(sa.select(batches.c.finished_at)).scalar_one()
    facts.claims.finish(batch_id)
    with facts.engine.connect() as connection:
        assert connection.execute(sa.select(batches.c.finished_at)).scalar_one() == before
    assert facts.claims.seconds_since_end("run") is not None
    assert facts.claims.seconds_since_end("another") is None


def test_a_batch_with_a_heartbeat_is_not_taken_back(facts: Facts, kb: KnowledgeBase) -> None:
    document = register(facts, kb, "a.txt")
    batch_id = start(facts)
    silence(facts, batch_id, 100)
    assert facts.claims.heartbeat(batch_id)
    assert facts.claims.take_back(batch_id, reason="lost", lease_seconds=60) == 0
    assert owners(facts) == {document.id: batch_id}


def test_a_silent_batch_is_taken_back_once_and_its_run_has_no_say_any_more(facts: Facts, kb: KnowledgeBase) -> None:
    document = register(facts, kb, "a.txt")
    batch_id = start(facts)
    ledger = facts.ledger(batch_id=batch_id, run_id="run")
    found = items(facts, document)
    ledger.begin(Stage.SOURCE_DOCUMENT, found)
    silence(facts, batch_id, 100)
    assert facts.claims.take_back(batch_id, reason="lost", lease_seconds=60) == 1
    assert facts.claims.take_back(batch_id, reason="lost", lease_seconds=60) == 0
    assert not facts.claims.heartbeat(batch_id)
    assert facts.documents.get(document.id).status is Status.PENDING
    new_batch = start(facts, run_id="next run")
    assert ledger.begin(Stage.PARSED_BLOCKS, found) == frozenset()
    assert ledger.still_owned(found) == frozenset()
    assert owners(facts) == {document.id: new_batch}
    facts.claims.finish(batch_id)
    assert owners(facts) == {document.id: new_batch}


@pytest.mark.parametrize(("attempt", "expected"), [(1, Status.PENDING), (2, Status.PENDING), (3, Status.FAILED)])
def test_a_document_whose_runs_die_is_dead_after_its_last_attempt(
    facts: Facts, kb: KnowledgeBase, attempt: int, expected: Status
) -> None:
    document = register(facts, kb, "a.txt")
    set_attempt(facts, document, attempt - 1)
    batch_id = start(facts)
    facts.ledger(batch_id=batch_id, run_id="run").begin(Stage.CHUNKS, items(facts, document))
    silence(facts, batch_id, 100)
    assert facts.claims.take_back(batch_id, reason="the run died", lease_seconds=60) == 1
    found = facts.documents.get(document.id)
    assert found.status is expected
    if expected is Status.FAILED:
        assert found.error is not None
        assert (found.error.stage, found.error.code, found.error.error_class) == ("chunks", "run_died", "dead")
    (entry,) = attempts(facts, document)
    assert (entry.status, entry.error) == ("CANCELED", "the run died")


def test_retry_by_hand_counts_attempts_anew_but_their_numbers_go_on(facts: Facts, kb: KnowledgeBase) -> None:
    document = register(facts, kb, "a.txt")
    set_attempt(facts, document, 3)
    set_status(facts, document, Status.FAILED)
    facts.documents.retry(document.id)
    batch_id = start(facts)
    assert [(item.attempt, item.counted_attempts) for item in items(facts, document)] == [(4, 1)]
    silence(facts, batch_id, 100)
    facts.claims.take_back(batch_id, reason="lost", lease_seconds=60)
    assert facts.documents.get(document.id).status is Status.PENDING


def test_a_run_started_by_hand_counts_anew_for_what_had_given_up(facts: Facts, kb: KnowledgeBase) -> None:
    waiting, failed = register(facts, kb, "waiting.txt"), register(facts, kb, "failed.txt")
    for document in (waiting, failed):
        set_attempt(facts, document, 2)
    set_status(facts, failed, Status.FAILED)
    facts.claims.begin_manual("run", [waiting.id, failed.id])
    assert [(item.attempt, item.counted_attempts) for item in items(facts, waiting, failed)] == [(3, 3), (3, 1)]


def test_items_come_in_the_order_of_the_partitions(facts: Facts, kb: KnowledgeBase) -> None:
    found = [register(facts, kb, f"{number}.txt") for number in range(3)]
    keys = [found[2].partition_key, "unknown", found[0].partition_key]
    assert [item.document_id for item in facts.claims.items(partition_keys=keys)] == [found[2].id, found[0].id]


def test_a_batch_that_went_through_owns_nothing(facts: Facts, kb: KnowledgeBase) -> None:
    document = register(facts, kb, "a.txt")
    batch_id = start(facts)
    run_stages(facts, batch_id, items(facts, document))
    facts.claims.finish(batch_id)
    assert owners(facts) == {document.id: None}
    assert facts.documents.get(document.id).status is Status.READY


def test_working_is_what_a_dead_run_leaves(facts: Facts, kb: KnowledgeBase) -> None:
    found = {status: register(facts, kb, f"{status}.txt") for status in Status}
    batch_id = start(facts)
    for status, document in found.items():
        set_status(facts, document, status)
    silence(facts, batch_id, 100)
    assert facts.claims.take_back(batch_id, reason="lost", lease_seconds=60) == len(WORKING) + 1
    for status, document in found.items():
        expected = Status.PENDING if status in WORKING else status
        assert items(facts, document)[0].status is expected
    assert set(owners(facts).values()) == {None}


def test_batches_that_ended_long_ago_are_forgotten(facts: Facts, kb: KnowledgeBase) -> None:
    old, young, running = (start_one(facts, kb, name) for name in ("old", "young", "running"))
    for batch_id in (old, young):
        facts.claims.finish(batch_id)
    with facts.engine.begin() as connection:
        connection.execute(
            sa.update(batches)
            .where(batches.c.id.in_([old, running]))
            .values(
                finished_at=sa.case((batches.c.id == old, sa.text("now() - interval '2 days'"))),
                created_at=sa.text("now() - interval '3 days'"),
            )
        )
    assert facts.claims.forget_finished(older_than_seconds=86_400) == 1
    with facts.engine.connect() as connection:
        assert set(connection.execute(sa.select(batches.c.id)).scalars()) == {young, running}


def start_one(facts: Facts, kb: KnowledgeBase, name: str) -> str:
    """A batch of one document that has begun."""
    register(facts, kb, f"{name}.txt")
    return start(facts, run_id=name)
