"""Plan, re-index and rollback: what is stale, what it costs, and which version answers meanwhile."""

import pytest
import sqlalchemy as sa

from rag_pipeline.adapters.postgres.schema import document_versions
from rag_pipeline.core.documents import Document, Stage, Status
from rag_pipeline.core.ports import SnapshotRef
from rag_pipeline.core.work import OutcomeKind
from rag_pipeline.errors import ConfigurationError, DocumentBusyError, IllegalTransitionError
from rag_pipeline.settings import Settings
from rag_pipeline.stages.cleanup import remove_superseded
from rag_pipeline.stages.reindex import plan_reindex, reindex_stale
from rag_pipeline_tests.embedding_server import POISON
from rag_pipeline_tests.stages.runner import KB, Runner, running, running_system_again

FIRST = "The first edition says that the pump rests on Mondays."
SECOND = "The second edition says that the pump rests on Fridays."


def test_nothing_is_stale_when_nothing_has_changed(runner: Runner) -> None:
    documents = ready(runner, 3)
    plan = runner.system.client.plan(KB)
    assert (plan.examined, plan.documents, plan.tokens_to_embed) == (3, (), 0)
    assert runner.system.client.reindex_stale(KB) == 0
    assert {runner.now(document).version for document in documents} == {1}


def test_plan_of_another_chunk_size_lists_documents_stages_tokens_and_cost(settings: Settings) -> None:
    with running(settings) as runner:
        documents = ready(runner, 3)
        tokens = sum(runner.now(document).token_count or 0 for document in documents)
        with running_system_again(runner, chunk_tokens=64, embedding_price_per_million_tokens=2.0) as changed:
            plan = plan_reindex(changed.services)
            assert plan.documents_by_stage == dict.fromkeys(list(Stage)[2:], 3)
            assert {each.first_stage for each in plan.documents} == {Stage.CHUNKS}
            assert plan.tokens_to_embed == tokens > 0
            assert plan.cost == pytest.approx(tokens / 1e6 * 2.0)
            assert plan.seconds > 0
            assert {runner.now(document).status for document in documents} == {Status.READY}


def test_stale_documents_are_rebuilt_from_the_first_stale_stage_and_unchanged_texts_are_not_paid_again(
    settings: Settings,
) -> None:
    with running(settings) as runner:
        documents = ready(runner, 3)
        paid = runner.system.embedding.requests
        with running_system_again(runner, chunk_tokens=64) as changed:
            assert reindex_stale(changed.services) == 3
            assert {runner.now(document).live_version for document in documents} == {1}
            run_queued(changed)
            assert set(changed.kinds(Stage.PARSED_BLOCKS)) == {OutcomeKind.UNCHANGED}
            assert set(changed.kinds(Stage.CHUNKS)) == {OutcomeKind.DONE}
            assert {changed.now(document).live_version for document in documents} == {2}
            assert plan_reindex(changed.services).documents == ()
        assert runner.system.embedding.requests == paid  # the texts are short: cut again, they are the same


def test_another_passage_prefix_has_everything_embedded_again(settings: Settings) -> None:
    with running(settings) as runner:
        documents = ready(runner, 3)
        embedding = runner.system.embedding
        sent = {text for request in embedding.received for text in request.texts}
        embedding.received.clear()
        with running_system_again(runner, embedding_passage_prefix="passage: ") as changed:
            assert plan_reindex(changed.services).documents_by_stage == {Stage.EMBEDDINGS: 3, Stage.INDEX_WRITES: 3}
            assert reindex_stale(changed.services) == 3
            run_queued(changed)
            assert {text for request in embedding.received for text in request.texts} == {
                f"passage: {text}" for text in sent
            }
            assert plan_reindex(changed.services).documents == ()
        paid = embedding.requests
        assert reindex_stale(runner.services) == 3
        run_queued(runner)
        assert embedding.requests == paid, "the vectors without the prefix are kept"
        assert {runner.now(document).live_version for document in documents} == {3}


def test_forced_reindex_does_every_stage_and_the_old_version_answers_meanwhile(runner: Runner) -> None:
    [document] = ready(runner, 1)
    after = runner.system.client.reindex(document.id, force=True)
    assert (after.status, after.version, after.live_version) == (Status.PENDING, 2, 1)
    assert {result.version for result in runner.system.client.search(KB, "pump 0")} == {1}
    with pytest.raises(DocumentBusyError, match="PENDING"):
        runner.system.client.reindex(document.id, force=True)
    run_queued(runner)
    assert {outcome.kind for outcome in runner.reported} == {OutcomeKind.DONE}
    assert {result.version for result in runner.system.client.search(KB, "pump 0")} == {2}


@pytest.mark.parametrize("is_forced", [True, False], ids=["forced", "stale"])
def test_a_run_from_the_embeddings_on_writes_the_snapshot_of_the_version_that_it_opens(
    settings: Settings, is_forced: bool
) -> None:
    with running(settings) as runner:
        [document] = ready(runner, 1)
        changes = {} if is_forced else {"embedding_passage_prefix": "passage: "}
        with running_system_again(runner, **changes) as changed:
            result = changed.run(document, stages=(Stage.EMBEDDINGS, Stage.INDEX_WRITES), force=is_forced)
            assert (result.ready, result.failures) == (1, [])
            assert {outcome.stage for outcome in changed.reported} == {Stage.EMBEDDINGS, Stage.INDEX_WRITES}
            after = changed.now(document)
            assert (after.status, after.live_version) == (Status.READY, 2)
            ref = SnapshotRef(kb_id=after.kb_id, document_id=after.id, version=2)
            assert changed.services.snapshots.read(ref) is not None
            assert plan_reindex(changed.services).documents == ()


def test_reindex_from_a_stage_keeps_what_is_before_it(runner: Runner) -> None:
    [document] = ready(runner, 1)
    runner.system.client.reindex(document.id, from_stage="chunks")
    run_queued(runner)
    assert runner.kinds(Stage.PARSED_BLOCKS) == [OutcomeKind.UNCHANGED]
    assert runner.kinds(Stage.CHUNKS) == [OutcomeKind.DONE]
    with pytest.raises(ConfigurationError, match="'chunk' is no stage; one of source_document"):
        runner.system.client.reindex(document.id, from_stage="chunk")


def test_reindex_without_anything_stale_changes_nothing(runner: Runner) -> None:
    [document] = ready(runner, 1)
    assert runner.system.client.reindex(document.id).version == 1


def test_rollback_lets_the_version_before_answer_at_once_and_reindex_goes_forward(runner: Runner) -> None:
    document = two_editions(runner)
    client = runner.system.client
    back = client.rollback(document.id)
    assert (back.status, back.version, back.live_version) == (Status.READY, 2, 1)
    assert [result.text for result in client.search(KB, "pump rests")] == [FIRST]
    snapshot = runner.snapshot(document)
    assert snapshot is not None
    assert snapshot["version"] == 1
    assert remove_superseded(runner.services, limit=10, kept_seconds=0) == 0
    forward = client.reindex(document.id)
    assert (forward.version, forward.live_version) == (2, 2)
    assert [result.text for result in client.search(KB, "pump rests")] == [SECOND]
    snapshot = runner.snapshot(document)
    assert snapshot is not None
    assert snapshot["version"] == 2


def test_rollback_beside_a_version_that_failed(runner: Runner) -> None:
    document = two_editions(runner)
    runner.submit("edition.txt", f"A third edition. {POISON}")
    assert len(runner.run(document).failures) == 1
    back = runner.system.client.rollback(document.id)
    assert (back.status, back.version, back.live_version) == (Status.FAILED, 3, 1)
    assert [result.text for result in runner.system.client.search(KB, "pump rests")] == [FIRST]


def test_rollback_of_what_never_answered_says_what_to_do(runner: Runner) -> None:
    document = runner.submit("edition.txt", f"The only edition. {POISON}")
    runner.run(document)
    with pytest.raises(IllegalTransitionError, match="no version of it answers: submit the former file again"):
        runner.system.client.rollback(document.id)


def test_the_newest_bytes_submitted_again_after_a_rollback_answer_again(runner: Runner) -> None:
    document = two_editions(runner)
    runner.system.client.rollback(document.id)
    again = runner.submit("edition.txt", SECOND)
    assert (again.duplicate, again.version, again.live_version) == (True, 2, 2)


def test_rollback_needs_a_version_that_is_kept_and_a_settled_document(runner: Runner) -> None:
    document = two_editions(runner)
    client = runner.system.client
    assert remove_superseded(runner.services, limit=10, kept_seconds=0) == 1
    with pytest.raises(IllegalTransitionError, match="RAG_VERSION_RETENTION_SECONDS"):
        client.rollback(document.id)
    client.reindex(document.id, force=True)
    with pytest.raises(DocumentBusyError, match="PENDING"):
        client.rollback(document.id)


def test_a_version_whose_removal_has_begun_cannot_be_gone_back_to(runner: Runner) -> None:
    document = two_editions(runner)
    assert len(runner.services.facts.versions.take_superseded(kept_seconds=0, limit=10)) == 1
    with pytest.raises(IllegalTransitionError):
        runner.system.client.rollback(document.id)


def test_superseded_versions_stay_as_long_as_the_settings_say(settings: Settings) -> None:
    with running(settings, version_retention_seconds=7200.0) as runner:
        document = two_editions(runner)
        age(runner, seconds=3600)
        assert remove_superseded(runner.services, limit=10) == 0
        assert runner.system.client.rollback(document.id).live_version == 1


def ready(runner: Runner, count: int) -> list[Document]:
    """READY documents of a few paragraphs."""
    documents = [
        runner.submit(f"{number}.txt", f"Pump {number} is old.\n\nValve {number} leaks a little.")
        for number in range(count)
    ]
    assert runner.run(*documents).ready == count
    return documents


def run_queued(runner: Runner) -> None:
    """What the sensor and its run do, with the report of this run only."""
    runner.reported.clear()
    runner.run_queued(lambda _, outcomes: runner.reported.extend(outcomes))


def two_editions(runner: Runner) -> Document:
    """A document whose second version is live and whose first is kept."""
    runner.run(runner.submit("edition.txt", FIRST))
    document = runner.submit("edition.txt", SECOND)
    assert runner.run(document).ready == 1
    return document


def age(runner: Runner, *, seconds: float) -> None:
    """Let time pass since versions were superseded."""
    with runner.services.facts.engine.begin() as connection:
        connection.execute(
            sa.update(document_versions).values(
                superseded_at=document_versions.c.superseded_at - sa.func.make_interval(0, 0, 0, 0, 0, 0, seconds)
            )
        )
