"""The node log: what was written down, and what follows from the status for the stages that were not."""

import pytest

from rag_pipeline.adapters.postgres.facts import Facts
from rag_pipeline.adapters.postgres.node_log import NodeLogEntry, node_log
from rag_pipeline.core.documents import Document, KnowledgeBase, Stage, Status
from rag_pipeline.core.work import OutcomeKind
from rag_pipeline.errors import CorruptDocumentError
from rag_pipeline_tests.adapters.postgres.rows import (
    fingerprint_of,
    items,
    make_ready,
    outcome,
    register,
    set_status,
    start,
)


def newest(facts: Facts, document: Document) -> dict[str, NodeLogEntry]:
    """The last entry of every node."""
    return {entry.node: entry for entry in node_log(facts.engine, document.id)}


def statuses(facts: Facts, document: Document) -> list[str]:
    return [entry.status for entry in node_log(facts.engine, document.id)]


def test_everything_waits_for_a_new_document(facts: Facts, kb: KnowledgeBase) -> None:
    document = register(facts, kb, "a.txt", "four")
    assert statuses(facts, document) == ["WAITING"] * 6
    first = newest(facts, document)[Stage.SOURCE_DOCUMENT]
    assert (first.attempt, first.run_id, first.started_at) == (0, None, None)
    assert first.input_summary == {"file_name": "a.txt", "bytes": 4, "sha256": "four"}


def test_a_running_document_shows_what_it_did_what_it_does_and_what_comes(facts: Facts, kb: KnowledgeBase) -> None:
    document = register(facts, kb, "a.txt")
    ledger = facts.ledger(batch_id=start(facts), run_id="run 1")
    found = items(facts, document)
    summary: dict[str, object] = {"pages": 10, "characters": 23_000, "blocks": 5, "preview": "x"}
    for stage in (Stage.SOURCE_DOCUMENT, Stage.PARSED_BLOCKS):
        ledger.begin(stage, found)
        ledger.record(stage, [outcome(found[0], stage, summary=summary)], {document.id: "f"})
    ledger.begin(Stage.CHUNKS, found)
    assert statuses(facts, document) == ["SUCCESS", "SUCCESS", "RUNNING", "WAITING", "WAITING", "WAITING"]
    parsed, chunks = (newest(facts, document)[stage] for stage in (Stage.PARSED_BLOCKS, Stage.CHUNKS))
    assert (parsed.output_summary, parsed.duration_ms, parsed.run_id) == (summary, 12, "run 1")
    assert parsed.finished_at is not None
    assert chunks.input_summary == {"pages": 10, "characters": 23_000, "blocks": 5}
    assert facts.documents.get(document.id).progress == pytest.approx(2 / 6)


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        pytest.param(Status.PENDING, "WAITING", id="waits"),
        pytest.param(Status.FAILED, "WAITING", id="failed before it"),
        pytest.param(Status.CANCELING, "CANCELED", id="being canceled"),
        pytest.param(Status.CANCELED, "CANCELED", id="canceled"),
        pytest.param(Status.NO_CONTENT, "SKIPPED", id="nothing to index"),
    ],
)
def test_stages_that_were_never_begun(facts: Facts, kb: KnowledgeBase, status: Status, expected: str) -> None:
    document = register(facts, kb, "a.txt")
    set_status(facts, document, status)
    assert statuses(facts, document) == [expected] * 6


def test_a_failed_stage_keeps_its_error_and_waits_again_after_a_retry(facts: Facts, kb: KnowledgeBase) -> None:
    document = register(facts, kb, "a.txt")
    ledger = facts.ledger(batch_id=start(facts), run_id="run")
    found = items(facts, document)
    ledger.begin(Stage.PARSED_BLOCKS, found)
    failure = outcome(found[0], Stage.PARSED_BLOCKS, OutcomeKind.FAILED, error=CorruptDocumentError("broken"))
    ledger.record(Stage.PARSED_BLOCKS, [failure], {document.id: "f"})
    entry = newest(facts, document)[Stage.PARSED_BLOCKS]
    assert (entry.status, entry.error, entry.error_code, entry.attempt) == ("FAILED", "broken", "corrupt", 1)
    facts.documents.retry(document.id)
    log = [each.status for each in node_log(facts.engine, document.id) if each.node == Stage.PARSED_BLOCKS]
    assert log == ["FAILED", "WAITING"]


def test_stages_taken_over_from_the_version_before_are_skipped(facts: Facts, kb: KnowledgeBase) -> None:
    document = make_ready(facts, register(facts, kb, "a.txt"))
    (item,) = items(facts, document)
    kept = {stage: fingerprint_of(item, stage) for stage in (Stage.SOURCE_DOCUMENT, Stage.PARSED_BLOCKS)}
    facts.claims.open_versions([item], {document.id: kept})
    log = [entry for entry in node_log(facts.engine, document.id) if entry.version == 2]
    assert [entry.status for entry in log] == ["SKIPPED", "SKIPPED", "WAITING", "WAITING", "WAITING", "WAITING"]
    assert log[1].output_summary["pages"] == 3
    assert log[1].finished_at is not None


def test_a_ready_document_has_six_successes_and_is_done(facts: Facts, kb: KnowledgeBase) -> None:
    document = make_ready(facts, register(facts, kb, "a.txt"))
    log = node_log(facts.engine, document.id)
    assert [(entry.node, entry.status) for entry in log] == [(stage.value, "SUCCESS") for stage in Stage]
    assert document.progress == 1.0
    assert log[-1].input_summary == {"chunks": 2}


def test_an_unknown_document_has_no_log(facts: Facts) -> None:
    assert node_log(facts.engine, "unknown") == []
