from datetime import datetime

import pytest
import sqlalchemy as sa

from rag_pipeline.adapters.postgres.facts import Facts
from rag_pipeline.adapters.postgres.ledger import RetryPolicy
from rag_pipeline.adapters.postgres.schema import document_versions, documents
from rag_pipeline.core.documents import STATUS_DURING, WORKING, Document, KnowledgeBase, Stage, Status
from rag_pipeline.core.work import OutcomeKind
from rag_pipeline.errors import CorruptDocumentError, EmbeddingUnavailableError, RagPipelineError
from rag_pipeline_tests.adapters.postgres.rows import (
    attempts,
    fingerprint_of,
    items,
    make_ready,
    outcome,
    register,
    run_stages,
    set_attempt,
    set_status,
    start,
)

OUT_OF_REACH = [Status.CANCELING, Status.CANCELED, Status.DELETING]


def wait_seconds(facts: Facts, document: Document) -> float:
    """How far away the time is at which the document may be worked on again."""
    waiting = sa.extract("epoch", documents.c.available_at - documents.c.updated_at)
    with facts.engine.connect() as connection:
        return float(connection.execute(sa.select(waiting).where(documents.c.id == document.id)).scalar_one())


def superseded(facts: Facts, document: Document) -> dict[int, datetime | None]:
    with facts.engine.connect() as connection:
        rows = connection.execute(sa.select(document_versions).where(document_versions.c.document_id == document.id))
        return {row.version: row.superseded_at for row in rows}


@pytest.mark.parametrize("stage", list(Stage), ids=str)
def test_begin_sets_the_status_of_the_stage_and_opens_an_attempt(facts: Facts, kb: KnowledgeBase, stage: Stage) -> None:
    document = register(facts, kb, "a.txt")
    ledger = facts.ledger(batch_id=start(facts), run_id="run")
    assert ledger.begin(stage, items(facts, document)) == {document.id}
    assert facts.documents.get(document.id).status is STATUS_DURING[stage]
    (entry,) = attempts(facts, document)
    assert (entry.node, entry.status, entry.version, entry.attempt, entry.run_id) == (stage, "RUNNING", 1, 1, "run")
    assert entry.finished_at is None


def test_begin_for_nothing_begins_nothing(facts: Facts) -> None:
    assert facts.ledger(batch_id="b", run_id="run").begin(Stage.CHUNKS, []) == frozenset()


def test_stages_with_nothing_to_do_may_be_passed_over(facts: Facts, kb: KnowledgeBase) -> None:
    document = register(facts, kb, "a.txt")
    ledger = facts.ledger(batch_id=start(facts), run_id="run")
    found = items(facts, document)
    for stage in (Stage.CHUNK_SNAPSHOT, Stage.INDEX_WRITES):
        assert ledger.begin(stage, found) == {document.id}
        assert ledger.record(stage, [outcome(found[0], stage)], {document.id: "f"}) == {document.id}
    assert ledger.publish(found, collection="rag_1") == {document.id}


def test_documents_of_another_owner_are_left_alone(facts: Facts, kb: KnowledgeBase) -> None:
    document = register(facts, kb, "a.txt")
    owner = facts.ledger(batch_id=start(facts), run_id="run")
    stranger = facts.ledger(batch_id="another batch", run_id="another run")
    (item,) = items(facts, document)
    owner.begin(Stage.INDEX_WRITES, [item])
    before = facts.documents.get(document.id)
    assert stranger.begin(Stage.INDEX_WRITES, [item]) == frozenset()
    assert stranger.still_owned([item]) == frozenset()
    for kind in (OutcomeKind.DONE, OutcomeKind.EMPTY, OutcomeKind.FAILED):
        done = outcome(item, Stage.INDEX_WRITES, kind, error=CorruptDocumentError("broken"))
        assert stranger.record(Stage.INDEX_WRITES, [done], {document.id: "f"}) == frozenset()
    assert stranger.publish([item], collection="rag_1") == frozenset()
    stranger.hand_back([item])
    assert facts.documents.get(document.id) == before
    assert facts.claims.artefacts([document.id]) == {}
    assert [entry.status for entry in attempts(facts, document)] == ["RUNNING"]
    assert owner.still_owned([item]) == {document.id}


@pytest.mark.parametrize("status", OUT_OF_REACH, ids=str)
@pytest.mark.parametrize("kind", [OutcomeKind.DONE, OutcomeKind.EMPTY, OutcomeKind.FAILED], ids=str)
def test_what_was_canceled_or_is_being_deleted_is_never_overwritten(
    facts: Facts, kb: KnowledgeBase, status: Status, kind: OutcomeKind
) -> None:
    document = register(facts, kb, "a.txt")
    ledger = facts.ledger(batch_id=start(facts), run_id="run")
    (item,) = items(facts, document)
    ledger.begin(Stage.INDEX_WRITES, [item])
    set_status(facts, document, status)
    assert ledger.still_owned([item]) == frozenset()
    done = outcome(item, Stage.INDEX_WRITES, kind, error=CorruptDocumentError("broken"))
    assert ledger.record(Stage.INDEX_WRITES, [done], {document.id: "f"}) == frozenset()
    assert ledger.publish([item], collection="rag_1") == frozenset()
    ledger.hand_back([item])
    (now,) = items(facts, document)
    assert (now.status, now.live_version) == (status, None)
    assert facts.claims.artefacts([document.id]) == {}
    assert [entry.status for entry in attempts(facts, document)] == ["CANCELED"]


@pytest.mark.parametrize("status", [Status.CANCELING, Status.DELETING], ids=str)
def test_a_stage_does_not_begin_for_what_is_on_its_way_out(facts: Facts, kb: KnowledgeBase, status: Status) -> None:
    document = register(facts, kb, "a.txt")
    ledger = facts.ledger(batch_id=start(facts), run_id="run")
    set_status(facts, document, status)
    assert ledger.begin(Stage.CHUNKS, items(facts, document)) == frozenset()
    assert items(facts, document)[0].status is status


def test_record_keeps_artefact_attempt_and_description(facts: Facts, kb: KnowledgeBase) -> None:
    document = register(facts, kb, "a.txt")
    ledger = facts.ledger(batch_id=start(facts), run_id="run")
    (item,) = items(facts, document)
    ledger.begin(Stage.PARSED_BLOCKS, [item])
    summary: dict[str, object] = {"pages": 4, "warnings": ["page 2 is blank"], "preview": "a\0b\ud800 'é'"}
    done = outcome(item, Stage.PARSED_BLOCKS, summary=summary)
    assert ledger.record(Stage.PARSED_BLOCKS, [done], {document.id: "f1"}) == {document.id}
    artefact = facts.claims.artefacts([document.id])[document.id, 1][Stage.PARSED_BLOCKS]
    assert (artefact.fingerprint, artefact.artefact_key) == ("f1", done.artefact_key)
    assert artefact.summary["preview"] == "a\ufffdb\ufffd 'é'"
    (entry,) = attempts(facts, document)
    assert (entry.status, entry.duration_ms, entry.error) == ("SUCCESS", 12, None)
    assert entry.output_summary["pages"] == 4
    assert entry.finished_at is not None
    found = facts.documents.get(document.id)
    assert (found.pages, found.warnings, found.chunk_count) == (4, ("page 2 is blank",), None)


def test_a_later_stage_adds_to_the_description(facts: Facts, kb: KnowledgeBase) -> None:
    document = register(facts, kb, "a.txt")
    ledger = facts.ledger(batch_id=start(facts), run_id="run")
    (item,) = items(facts, document)
    for stage, summary in (
        (Stage.PARSED_BLOCKS, {"pages": 4, "warnings": ["w"]}),
        (Stage.CHUNKS, {"chunks": 7, "tokens": 90}),
    ):
        ledger.begin(stage, [item])
        ledger.record(stage, [outcome(item, stage, summary=dict(summary))], {document.id: "f"})
    found = facts.documents.get(document.id)
    assert (found.pages, found.warnings, found.chunk_count, found.token_count) == (4, ("w",), 7, 90)


def test_one_transaction_settles_each_document_by_itself(facts: Facts, kb: KnowledgeBase) -> None:
    good, bad, empty = (register(facts, kb, name) for name in ("good.txt", "bad.txt", "empty.txt"))
    ledger = facts.ledger(batch_id=start(facts), run_id="run")
    found = items(facts, good, bad, empty)
    ledger.begin(Stage.PARSED_BLOCKS, found)
    outcomes = [
        outcome(found[0], Stage.PARSED_BLOCKS),
        outcome(found[1], Stage.PARSED_BLOCKS, OutcomeKind.FAILED, error=CorruptDocumentError("it's\0 broken\ud800")),
        outcome(found[2], Stage.PARSED_BLOCKS, OutcomeKind.EMPTY),
    ]
    fingerprints = {item.document_id: "f" for item in found}
    assert ledger.record(Stage.PARSED_BLOCKS, outcomes, fingerprints) == {good.id}
    statuses = [facts.documents.get(document.id).status for document in (good, bad, empty)]
    assert statuses == [Status.PARSING, Status.FAILED, Status.NO_CONTENT]
    error = facts.documents.get(bad.id).error
    assert error is not None
    assert (error.stage, error.code, error.error_class) == ("parsed_blocks", "corrupt", "permanent")
    assert error.message == "it's\ufffd broken\ufffd"
    assert [entry.status for entry in attempts(facts, bad)] == ["FAILED"]
    assert [entry.status for entry in attempts(facts, empty)] == ["SUCCESS"]
    assert set(facts.claims.artefacts([good.id, bad.id, empty.id])) == {(good.id, 1), (empty.id, 1)}
    assert ledger.still_owned(found) == {good.id}


@pytest.mark.parametrize(
    ("attempt", "error", "error_class", "delay"),
    [
        pytest.param(1, CorruptDocumentError("x"), "permanent", 0.0, id="permanent"),
        pytest.param(1, EmbeddingUnavailableError("x"), "temporary", 5.0, id="first attempt"),
        pytest.param(2, EmbeddingUnavailableError("x"), "temporary", 10.0, id="second attempt"),
        pytest.param(3, EmbeddingUnavailableError("x"), "dead", 0.0, id="last attempt"),
        pytest.param(
            1, EmbeddingUnavailableError("x", retry_after_seconds=90), "temporary", 90.0, id="longer Retry-After"
        ),
        pytest.param(
            2, EmbeddingUnavailableError("x", retry_after_seconds=1), "temporary", 10.0, id="shorter Retry-After"
        ),
    ],
)
def test_verdict_on_a_failure(
    facts: Facts, kb: KnowledgeBase, attempt: int, error: RagPipelineError, error_class: str, delay: float
) -> None:
    document = register(facts, kb, "a.txt")
    set_attempt(facts, document, attempt - 1)
    ledger = facts.ledger(batch_id=start(facts), run_id="run")
    (item,) = items(facts, document)
    ledger.begin(Stage.EMBEDDINGS, [item])
    failed = outcome(item, Stage.EMBEDDINGS, OutcomeKind.FAILED, error=error)
    assert ledger.record(Stage.EMBEDDINGS, [failed], {document.id: "f"}) == frozenset()
    found = facts.documents.get(document.id)
    assert found.error is not None
    assert (found.status, found.error.error_class) == (Status.FAILED, error_class)
    assert delay - 0.001 <= wait_seconds(facts, document) <= 1.25 * delay


def test_a_failure_without_a_reason_is_a_fault_of_ours(facts: Facts, kb: KnowledgeBase) -> None:
    document = register(facts, kb, "a.txt")
    ledger = facts.ledger(batch_id=start(facts), run_id="run")
    (item,) = items(facts, document)
    ledger.begin(Stage.CHUNKS, [item])
    ledger.record(Stage.CHUNKS, [outcome(item, Stage.CHUNKS, OutcomeKind.FAILED)], {document.id: "f"})
    error = facts.documents.get(document.id).error
    assert error is not None
    assert error.code == "internal"


def test_attempts_after_a_retry_by_hand_count_anew(facts: Facts, kb: KnowledgeBase) -> None:
    document = register(facts, kb, "a.txt")
    set_attempt(facts, document, 7)
    set_status(facts, document, Status.FAILED)
    facts.documents.retry(document.id)
    ledger = facts.ledger(batch_id=start(facts), run_id="run")
    (item,) = items(facts, document)
    ledger.begin(Stage.EMBEDDINGS, [item])
    failed = outcome(item, Stage.EMBEDDINGS, OutcomeKind.FAILED, error=EmbeddingUnavailableError("x"))
    ledger.record(Stage.EMBEDDINGS, [failed], {document.id: "f"})
    found = facts.documents.get(document.id)
    assert found.error is not None
    assert (found.attempt, found.error.error_class) == (8, "temporary")
    assert 5.0 <= wait_seconds(facts, document) <= 6.25


def test_retry_delays_double_up_to_the_maximum() -> None:
    policy = RetryPolicy(max_attempts=9, base_seconds=5.0, maximum_seconds=60.0)
    delays = [policy.delay_seconds(attempt, asked=None, chance=0.0) for attempt in range(6)]
    assert delays == [5, 5, 10, 20, 40, 60]
    assert policy.delay_seconds(1, asked=300.0, chance=0.0) == 300


def test_retry_delays_have_jitter() -> None:
    policy = RetryPolicy(max_attempts=9, base_seconds=5.0)
    assert [policy.delay_seconds(1, asked=None, chance=chance) for chance in (0.0, 0.5, 1.0)] == [5, 5.625, 6.25]


@pytest.mark.parametrize("asked", [1_760_000_000.0, 1e17], ids=["seconds since 1970", "nonsense"])
def test_a_wait_that_nobody_means_is_cut(asked: float) -> None:
    assert RetryPolicy(max_attempts=3, base_seconds=5.0).delay_seconds(1, asked=asked, chance=0.0) == 3_600


def test_publish_makes_the_version_live_and_lets_go(facts: Facts, kb: KnowledgeBase) -> None:
    document = register(facts, kb, "a.txt")
    batch_id = start(facts)
    run_stages(facts, batch_id, items(facts, document))
    found = facts.documents.get(document.id)
    assert (found.status, found.live_version) == (Status.READY, 1)
    assert items(facts, document)[0].batch_id is None
    with facts.engine.connect() as connection:
        row = connection.execute(sa.select(document_versions)).one()
    assert row.ready_at is not None
    assert (row.collection, row.superseded_at) == ("rag_1", None)


def test_publish_supersedes_every_older_version(facts: Facts, kb: KnowledgeBase) -> None:
    document = make_ready(facts, register(facts, kb, "a.txt", "one"))
    neighbour = make_ready(facts, register(facts, kb, "b.txt", "one"))
    register(facts, kb, "a.txt", "two")
    set_status(facts, document, Status.FAILED)
    register(facts, kb, "a.txt", "three")
    assert facts.documents.get(document.id).live_version == 1
    make_ready(facts, document)
    found = facts.documents.get(document.id)
    assert (found.status, found.version, found.live_version) == (Status.READY, 3, 3)
    assert [version for version, when in superseded(facts, document).items() if when is not None] == [1, 2]
    assert superseded(facts, neighbour) == {1: None}


def test_publish_needs_the_index_stage(facts: Facts, kb: KnowledgeBase) -> None:
    document = register(facts, kb, "a.txt")
    ledger = facts.ledger(batch_id=start(facts), run_id="run")
    found = items(facts, document)
    ledger.begin(Stage.EMBEDDINGS, found)
    assert ledger.publish(found, collection="rag_1") == frozenset()
    assert ledger.publish([], collection="rag_1") == frozenset()
    assert facts.documents.get(document.id).live_version is None


def test_a_new_version_without_content_takes_the_old_one_out_of_the_search(facts: Facts, kb: KnowledgeBase) -> None:
    document = make_ready(facts, register(facts, kb, "a.txt", "one"))
    register(facts, kb, "a.txt", "two")
    ledger = facts.ledger(batch_id=start(facts), run_id="run")
    (item,) = items(facts, document)
    ledger.begin(Stage.PARSED_BLOCKS, [item])
    ledger.record(Stage.PARSED_BLOCKS, [outcome(item, Stage.PARSED_BLOCKS, OutcomeKind.EMPTY)], {document.id: "f"})
    found = facts.documents.get(document.id)
    assert (found.status, found.version, found.live_version) == (Status.NO_CONTENT, 2, None)
    assert [version for version, when in superseded(facts, document).items() if when is not None] == [1]


def test_a_failed_new_version_leaves_the_old_one_in_the_search(facts: Facts, kb: KnowledgeBase) -> None:
    document = make_ready(facts, register(facts, kb, "a.txt", "one"))
    register(facts, kb, "a.txt", "two")
    ledger = facts.ledger(batch_id=start(facts), run_id="run")
    (item,) = items(facts, document)
    ledger.begin(Stage.PARSED_BLOCKS, [item])
    failed = outcome(item, Stage.PARSED_BLOCKS, OutcomeKind.FAILED, error=CorruptDocumentError("x"))
    ledger.record(Stage.PARSED_BLOCKS, [failed], {document.id: "f"})
    found = facts.documents.get(document.id)
    assert (found.status, found.version, found.live_version) == (Status.FAILED, 2, 1)
    assert superseded(facts, document) == {1: None, 2: None}


def test_hand_back_returns_work_without_counting_and_never_reuses_an_attempt(facts: Facts, kb: KnowledgeBase) -> None:
    begun, untouched = register(facts, kb, "begun.txt"), register(facts, kb, "untouched.txt")
    ledger = facts.ledger(batch_id=start(facts), run_id="run")
    found = items(facts, begun, untouched)
    ledger.begin(Stage.CHUNKS, found[:1])
    ledger.hand_back(found)
    ledger.hand_back([])
    assert {facts.documents.get(each.id).status for each in (begun, untouched)} == {Status.PENDING}
    start(facts)
    assert [(item.attempt, item.counted_attempts) for item in items(facts, begun, untouched)] == [(2, 1), (2, 1)]


def test_a_begun_stage_clears_the_last_error(facts: Facts, kb: KnowledgeBase) -> None:
    document = register(facts, kb, "a.txt")
    ledger = facts.ledger(batch_id=start(facts), run_id="run")
    (item,) = items(facts, document)
    ledger.begin(Stage.CHUNKS, [item])
    failed = outcome(item, Stage.CHUNKS, OutcomeKind.FAILED, error=CorruptDocumentError("x"))
    ledger.record(Stage.CHUNKS, [failed], {document.id: "f"})
    facts.documents.retry(document.id)
    again = facts.ledger(batch_id=start(facts, run_id="second run"), run_id="second run")
    again.begin(Stage.CHUNKS, items(facts, document))
    found = facts.documents.get(document.id)
    assert found.error is None
    assert found.status in WORKING
    assert [(entry.attempt, entry.status) for entry in attempts(facts, document)] == [
        (1, "FAILED"),
        (2, "RUNNING"),
    ]


def test_the_last_record_of_a_stage_wins(facts: Facts, kb: KnowledgeBase) -> None:
    document = register(facts, kb, "a.txt")
    ledger = facts.ledger(batch_id=start(facts), run_id="run")
    (item,) = items(facts, document)
    for fingerprint in ("old", fingerprint_of(item, Stage.CHUNKS)):
        ledger.begin(Stage.CHUNKS, [item])
        ledger.record(Stage.CHUNKS, [outcome(item, Stage.CHUNKS)], {document.id: fingerprint})
    artefact = facts.claims.artefacts([document.id])[document.id, 1][Stage.CHUNKS]
    assert artefact.fingerprint == fingerprint_of(item, Stage.CHUNKS)
    assert len(attempts(facts, document)) == 1
