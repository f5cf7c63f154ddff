import uuid
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import sqlalchemy as sa

from rag_pipeline.adapters.postgres.facts import Facts
from rag_pipeline.adapters.postgres.schema import batches, documents
from rag_pipeline.core.documents import KnowledgeBase, Stage, Status
from rag_pipeline.core.work import BatchPlan, Candidate, OutcomeKind
from rag_pipeline.errors import EmbeddingUnavailableError
from rag_pipeline_tests.adapters.postgres.rows import (
    claim,
    create_knowledge_base,
    items,
    one_batch,
    outcome,
    owners,
    register,
    silence,
    start,
)


def test_four_threads_never_give_a_document_to_two_batches(facts: Facts, kb: KnowledgeBase) -> None:
    found = {register(facts, kb, f"{number}.txt").id for number in range(40)}
    together = Barrier(4)
    claimed: list[str] = []

    def plan(candidates: list[Candidate]) -> list[BatchPlan]:
        claimed.extend(candidate.document_id for candidate in candidates)
        return [BatchPlan(candidates=tuple(candidates[start : start + 3])) for start in range(0, len(candidates), 3)]

    def claim_all() -> None:
        together.wait()
        for _ in range(10):
            facts.waiting.claim(limit=7, plan=plan, new_batch_id=lambda: uuid.uuid4().hex)

    with ThreadPoolExecutor(4) as threads:
        for future in [threads.submit(claim_all) for _ in range(4)]:
            future.result()
    assert sorted(claimed) == sorted(found)
    owned = owners(facts)
    assert all(owned.values())
    with facts.engine.connect() as connection:
        counts = {row.id: row.document_count for row in connection.execute(sa.select(batches))}
    assert counts == {batch_id: list(owned.values()).count(batch_id) for batch_id in counts}


def test_the_oldest_waiting_documents_come_first(facts: Facts, kb: KnowledgeBase) -> None:
    found = [register(facts, kb, f"{number}.txt") for number in range(3)]
    seen: list[Candidate] = []

    def plan(candidates: list[Candidate]) -> list[BatchPlan]:
        seen.extend(candidates)
        return one_batch(candidates)

    (batch,) = facts.waiting.claim(limit=2, plan=plan, new_batch_id=lambda: "b")
    assert [candidate.document_id for candidate in seen] == [document.id for document in found[:2]]
    assert (batch.first_partition, batch.last_partition) == (found[0].partition_key, found[1].partition_key)
    assert owners(facts) == {found[0].id: "b", found[1].id: "b", found[2].id: None}


def test_a_plan_that_crashes_leaves_the_documents_waiting(facts: Facts, kb: KnowledgeBase) -> None:
    document = register(facts, kb, "a.txt")

    def plan(candidates: list[Candidate]) -> list[BatchPlan]:
        raise RuntimeError("no Dagster")

    with pytest.raises(RuntimeError):
        facts.waiting.claim(limit=5, plan=plan, new_batch_id=lambda: "b")
    assert owners(facts) == {document.id: None}
    assert facts.claims.open_batches() == []


def test_nothing_waiting_plans_nothing(facts: Facts) -> None:
    assert claim(facts) == []


def candidates_of(facts: Facts, *, limit: int = 100) -> list[Candidate]:
    """What a plan is given; nothing is claimed."""
    seen: list[Candidate] = []

    def plan(candidates: list[Candidate]) -> list[BatchPlan]:
        seen.extend(candidates)
        return []

    facts.waiting.claim(limit=limit, plan=plan, new_batch_id=lambda: "never")
    return seen


def test_every_knowledge_base_has_its_turn(facts: Facts, kb: KnowledgeBase) -> None:
    for number in range(10):
        register(facts, kb, f"{number}.txt")
    other = create_knowledge_base(facts, "small")
    late = register(facts, other, "late.txt")
    assert late.id in {candidate.document_id for candidate in candidates_of(facts, limit=2)}


def test_nothing_is_claimed_while_enough_batches_wait_for_a_run(facts: Facts, kb: KnowledgeBase) -> None:
    register(facts, kb, "a.txt")
    (queued,) = claim(facts)
    document = register(facts, kb, "b.txt")

    def claim_bounded() -> int:
        found = facts.waiting.claim(limit=5, plan=one_batch, new_batch_id=lambda: uuid.uuid4().hex, most_queued=1)
        return len(found)

    assert claim_bounded() == 0
    assert owners(facts)[document.id] is None
    facts.claims.begin_queued(queued.batch_id, "run")
    assert claim_bounded() == 1


def test_a_document_tells_how_many_of_its_runs_died(facts: Facts, kb: KnowledgeBase) -> None:
    register(facts, kb, "a.txt")
    seen = []
    for _ in range(2):
        seen += [candidate.died_runs for candidate in candidates_of(facts)]
        silence(facts, start(facts), 100)
        for batch in facts.claims.open_batches():
            facts.claims.take_back(batch["id"], reason="lost", lease_seconds=60)
    seen += [candidate.died_runs for candidate in candidates_of(facts)]
    assert seen == [0, 1, 2]


def test_runs_that_die_before_they_begin_count(facts: Facts, kb: KnowledgeBase) -> None:
    document = register(facts, kb, "a.txt")
    for expected in (Status.PENDING, Status.PENDING, Status.FAILED):
        (batch,) = claim(facts)
        silence(facts, batch.batch_id, 1_000)
        assert facts.claims.take_back(batch.batch_id, reason="never began", lease_seconds=60) == 1
        assert facts.documents.get(document.id).status is expected


def test_only_old_queued_batches_are_asked_for_again(facts: Facts, kb: KnowledgeBase) -> None:
    register(facts, kb, "a.txt")
    (old,) = claim(facts)
    silence(facts, old.batch_id, 100)
    register(facts, kb, "b.txt")
    (young,) = claim(facts)
    assert facts.waiting.unlaunched(older_than_seconds=60) == [old]
    assert {batch["id"] for batch in facts.claims.open_batches()} == {old.batch_id, young.batch_id}
    facts.claims.begin_queued(old.batch_id, "run")
    assert facts.waiting.unlaunched(older_than_seconds=60) == []


def fail_temporarily(facts: Facts, kb: KnowledgeBase, name: str, *, retry_after: float) -> str:
    document = register(facts, kb, name)
    batch_id = start(facts, run_id=name)
    ledger = facts.ledger(batch_id=batch_id, run_id=name)
    (item,) = items(facts, document)
    ledger.begin(Stage.EMBEDDINGS, [item])
    error = EmbeddingUnavailableError("down", retry_after_seconds=retry_after)
    ledger.record(
        Stage.EMBEDDINGS, [outcome(item, Stage.EMBEDDINGS, OutcomeKind.FAILED, error=error)], {item.document_id: "f"}
    )
    facts.claims.finish(batch_id)
    return document.id


def test_temporary_failures_come_back_when_their_time_has_come(facts: Facts, kb: KnowledgeBase) -> None:
    due = [fail_temporarily(facts, kb, f"due {number}.txt", retry_after=1) for number in range(3)]
    later = fail_temporarily(facts, kb, "later.txt", retry_after=5000)
    with facts.engine.begin() as connection:
        earlier = documents.c.available_at - sa.func.make_interval(0, 0, 0, 0, 0, 0, 60)
        connection.execute(sa.update(documents).values(available_at=earlier))
    assert facts.waiting.requeue_due(limit=2) == 2
    assert facts.waiting.requeue_due(limit=2) == 1
    assert facts.waiting.requeue_due(limit=2) == 0
    assert {facts.documents.get(each).status for each in due} == {Status.PENDING}
    assert facts.documents.get(later).status is Status.FAILED


@pytest.mark.parametrize("error_class", ["permanent", "dead"])
def test_other_failures_stay(facts: Facts, kb: KnowledgeBase, error_class: str) -> None:
    document = register(facts, kb, "a.txt")
    with facts.engine.begin() as connection:
        connection.execute(sa.update(documents).values(status=Status.FAILED, error_class=error_class))
    assert facts.waiting.requeue_due(limit=10) == 0
    assert facts.documents.get(document.id).status is Status.FAILED
