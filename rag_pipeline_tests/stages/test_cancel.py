"""Canceling documents that wait, that are in a run, and that were failed; what stays, and how a retry goes on."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from rag_pipeline.core.documents import Document, Stage, Status
from rag_pipeline.core.work import StageOutcome
from rag_pipeline.errors import IllegalTransitionError
from rag_pipeline_tests.contents import assert_consistent, contents
from rag_pipeline_tests.embedding_server import POISON, Answer
from rag_pipeline_tests.stages.runner import KB, Runner

Reporter = Callable[[Stage, Sequence[StageOutcome]], None]


def cancel_after(runner: Runner, stage: Stage, *found: Document) -> Reporter:
    """Cancels documents as soon as a stage is reported."""

    def report(reported: Stage, outcomes: Sequence[StageOutcome]) -> None:
        if reported is stage:
            for document in found:
                runner.system.client.cancel(document.id, reason=f"after {stage}")

    return report


def test_waiting_document_is_canceled_at_once_and_no_run_brings_it_back(runner: Runner) -> None:
    document = runner.submit("a.txt", "Some text.")
    canceled = runner.system.client.cancel(document.id, reason="wrong file")
    assert (canceled.status, canceled.cancel_reason) == (Status.CANCELED, "wrong file")
    assert runner.run_queued().ready == 0
    assert runner.now(document).status is Status.CANCELED


def test_claimed_document_is_canceled_at_once_and_its_run_leaves_it_alone(runner: Runner) -> None:
    document, other = runner.submit("a.txt", "Some text."), runner.submit("b.txt", "Other text.")
    runner.claim("batch")
    request = runner.request_of("batch")
    assert runner.system.client.cancel(document.id).status is Status.CANCELED
    result = runner.run_request(request)
    assert (result.ready, runner.now(document).status, runner.now(other).status) == (
        1,
        Status.CANCELED,
        Status.READY,
    )
    assert_consistent(runner.services)


def test_batch_of_which_everything_was_canceled_before_it_began_does_nothing(runner: Runner) -> None:
    document = runner.submit("a.txt", "Some text.")
    runner.claim("batch")
    request = runner.request_of("batch")
    runner.system.client.cancel(document.id)
    assert runner.services.facts.waiting.unlaunched(older_than_seconds=0) == []
    assert runner.run_request(request).ready == 0
    assert runner.now(document).status is Status.CANCELED
    assert runner.system.embedding.requests == 0


@pytest.mark.parametrize("stage", list(Stage)[:-1], ids=str)
def test_document_canceled_in_a_run_leaves_nothing_partial_and_a_retry_pays_for_nothing_twice(
    runner: Runner, stage: Stage
) -> None:
    document, other = runner.submit("a.txt", "Some text."), runner.submit("b.txt", "Other text.")
    result = runner.run_queued(cancel_after(runner, stage, document))
    assert (result.ready, result.lost, result.failures) == (1, 1, [])
    canceled = runner.now(document)
    assert (canceled.status, canceled.cancel_reason) == (Status.CANCELED, f"after {stage}")
    own = contents(runner.services).of(document.id)
    assert (own.vectors, own.chunk_rows, own.snapshots) == (frozenset(), frozenset(), frozenset())
    assert runner.now(other).status is Status.READY
    embedded = runner.system.embedding.texts
    runner.system.client.retry(document.id)
    assert runner.run_queued().ready == 1
    done = runner.now(document)
    assert (done.status, done.cancel_reason, done.progress) == (Status.READY, None, 1.0)
    assert runner.system.embedding.texts == embedded + (0 if stage is Stage.EMBEDDINGS else 1)
    assert_consistent(runner.services)


def test_document_canceled_while_it_is_embedded_gets_no_vectors(runner: Runner) -> None:
    document = runner.submit("a.txt", "Some text.")
    runner.system.embedding.script(Answer(wait_seconds=1.0))
    run = threading.Thread(target=runner.run_queued)
    run.start()
    while not runner.system.embedding.requests:
        assert run.is_alive()
    assert runner.system.client.cancel(document.id).status is Status.CANCELING
    run.join()
    assert runner.now(document).status is Status.CANCELED
    assert not any("embeddings" in key for key in contents(runner.services).objects)
    assert_consistent(runner.services)


def test_canceled_reindex_leaves_the_old_version_answering_with_its_snapshot(runner: Runner) -> None:
    document = runner.submit("a.txt", "The old text names the oak.")
    runner.run_queued()
    before = contents(runner.services).of(document.id)
    runner.system.client.submit(KB, b"The new text names the cedar.", filename="a.txt")

    def publish_and_cancel(stage: Stage, outcomes: Sequence[StageOutcome]) -> None:
        if stage is Stage.EMBEDDINGS:
            # As far as a run comes before READY: the new snapshot has taken the place of the old one.
            ref = outcomes[0].item
            runner.publish_snapshot(ref)
            runner.system.client.cancel(document.id)

    runner.run_queued(publish_and_cancel)
    after = runner.now(document)
    assert (after.status, after.version, after.live_version) == (Status.CANCELED, 2, 1)
    own = contents(runner.services).of(document.id)
    assert (own.vectors, own.chunk_rows, own.snapshots) == (before.vectors, before.chunk_rows, before.snapshots)
    snapshot = runner.snapshot(document)
    assert snapshot is not None
    assert "oak" in str(snapshot["chunks"])
    assert [each.version for each in runner.system.client.search(KB, "oak")] == [1]


def test_failed_document_is_canceled_and_not_retried_by_itself(runner: Runner) -> None:
    document = runner.submit("a.txt", f"Some text: {POISON}")
    assert len(runner.run_queued().failures) == 1
    assert runner.system.client.cancel(document.id).status in (Status.CANCELING, Status.CANCELED)
    runner.remove()
    assert runner.now(document).status is Status.CANCELED
    own = contents(runner.services).of(document.id)
    assert (own.vectors, own.chunk_rows, own.snapshots) == (frozenset(), frozenset(), frozenset())


def test_canceling_twice_changes_nothing_and_ready_cannot_be_canceled(runner: Runner) -> None:
    document = runner.submit("a.txt", "Some text.")
    first = runner.system.client.cancel(document.id, reason="first")
    assert replace(runner.system.client.cancel(document.id, reason="second"), updated_at=first.updated_at) == first
    runner.system.client.retry(document.id)
    runner.run_queued()
    with pytest.raises(IllegalTransitionError, match="READY"):
        runner.system.client.cancel(document.id)


def test_whole_knowledge_base_is_canceled_and_ready_documents_stay(runner: Runner) -> None:
    ready = runner.submit("ready.txt", "A text that is done.")
    runner.run_queued()
    waiting = [runner.submit(f"{number}.txt", f"Text {number}.") for number in range(5)]
    assert runner.system.client.cancel_knowledge_base(KB, reason="stop") == 5
    assert {runner.now(document).status for document in waiting} == {Status.CANCELED}
    assert {runner.now(document).cancel_reason for document in waiting} == {"stop"}
    assert runner.now(ready).status is Status.READY
    assert runner.run_queued().ready == 0
