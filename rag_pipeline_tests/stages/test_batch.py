"""Batches without Dagster: resume, partial runs, rebuilds, and documents that are taken away meanwhile."""

from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from rag_pipeline.adapters.milvus import MilvusIndex
from rag_pipeline.core.documents import Stage, Status
from rag_pipeline.core.work import OutcomeKind
from rag_pipeline.errors import VectorStoreUnavailableError
from rag_pipeline.local.servers import EmbeddedServers
from rag_pipeline.settings import Settings
from rag_pipeline.stages.batch import BatchRequest, run_batch
from rag_pipeline_tests.embedding_server import POISON, Answer
from rag_pipeline_tests.stages.runner import ALL, KB, Runner, running, running_system_again


def test_all_stages_make_a_document_ready_and_searchable(runner: Runner) -> None:
    document = runner.submit("pump.md", "# Pump\n\nThe pump is serviced every 4000 hours.\n")
    result = runner.run(document)
    assert (result.ready, result.failures) == (1, [])
    assert [outcome.stage for outcome in runner.reported] == list(Stage)
    found = runner.system.client.search(KB, "pump serviced hours", top_k=1)[0]
    assert (found.document_id, found.heading_path) == (document.id, ("Pump",))
    snapshot = runner.services.settings.snapshots / document.kb_id / document.id / "chunks.json"
    assert snapshot.is_file()


def test_index_failure_is_temporary_and_resumes_without_the_embedder(settings: Settings, tmp_path: Path) -> None:
    folder = tmp_path / "milvus"
    folder.mkdir()
    milvus = EmbeddedServers()
    without_milvus = settings.model_copy(update={"data_dir": folder, "milvus_uri": None})
    own = milvus.start(without_milvus)
    try:
        with running(own) as runner:
            first = runner.submit("a.txt", "The first text, which makes the collection.")
            assert runner.run(first).ready == 1
            documents = [runner.submit(f"{number}.txt", f"Text number {number}.") for number in range(3)]
            milvus.stop()
            result = runner.run(*documents)
            assert [outcome.stage for outcome in result.failures] == [Stage.INDEX_WRITES] * 3
            for document in documents:
                error = runner.now(document).error
                assert error is not None
                assert (error.stage, error.code, error.error_class) == (
                    "index_writes",
                    "vector_store_unavailable",
                    "temporary",
                )
            asked = runner.system.embedding.requests
            assert milvus.start(without_milvus).milvus_uri == own.milvus_uri
            assert runner.run(*documents, stages=(Stage.INDEX_WRITES,)).ready == 3
            assert runner.system.embedding.requests == asked
            assert {outcome.stage for outcome in runner.reported} == {Stage.INDEX_WRITES}
    finally:
        milvus.stop()


def test_a_snapshot_that_was_lost_meanwhile_is_written_again(runner: Runner) -> None:
    document = runner.submit("a.txt", f"A text. {POISON}")
    assert len(runner.run(document).failures) == 1
    assert runner.services.snapshots.delete(document.kb_id, document.id) == 1
    runner.system.embedding.refuses_poison = False
    assert runner.run(document).ready == 1
    snapshot = runner.snapshot(document)
    assert snapshot is not None
    assert snapshot["version"] == 1


def test_ready_documents_are_left_alone_with_their_old_metadata(runner: Runner) -> None:
    document = runner.submit("a.txt", "Some text.")
    runner.run(document)
    chunks = [dict(outcome.summary) for outcome in runner.reported if outcome.stage is Stage.CHUNKS]
    result = runner.run(document)
    assert (result.ready, result.left_alone) == (0, 1)
    assert [outcome.kind for outcome in runner.reported] == [OutcomeKind.UNCHANGED] * len(Stage)
    assert [dict(outcome.summary) for outcome in runner.reported if outcome.stage is Stage.CHUNKS] == chunks
    assert runner.now(document).version == 1


def test_partial_materialization_hands_the_document_back(runner: Runner) -> None:
    document = runner.submit("a.txt", "Some text.")
    runner.run(document, stages=(Stage.SOURCE_DOCUMENT, Stage.PARSED_BLOCKS))
    assert runner.now(document).status is Status.PENDING
    runner.run(document)
    assert runner.kinds(Stage.PARSED_BLOCKS) == [OutcomeKind.UNCHANGED]
    assert runner.now(document).status is Status.READY


def test_stage_without_its_upstream_says_where_to_begin(runner: Runner) -> None:
    document = runner.submit("a.txt", "Some text.")
    result = runner.run(document, stages=(Stage.EMBEDDINGS,))
    error = result.failures[0].error
    assert error is not None
    assert error.code == "missing_artefact"
    assert "materialize from source_document" in str(error)


def test_the_time_of_stages_that_work_on_many_documents_is_shared_out_by_size(settings: Settings) -> None:
    with running(settings) as runner:
        long = "\n\n".join(f"Paragraph {number} speaks of valve {number}." * 9 for number in range(60))
        documents = [runner.submit("short.txt", "One valve."), runner.submit("long.txt", long)]
        runner.system.embedding.script(Answer(wait_seconds=0.5))
        assert runner.run(*documents).ready == 2
        for stage, least in ((Stage.EMBEDDINGS, 500), (Stage.INDEX_WRITES, 1)):
            spent = {each.item.file_name: each.milliseconds for each in runner.reported if each.stage is stage}
            assert sum(spent.values()) >= least
            assert spent["long.txt"] > spent["short.txt"]


def test_changed_chunking_builds_the_next_version_and_pays_only_for_new_texts(settings: Settings) -> None:
    text = "\n\n".join(f"Paragraph {number} speaks of valve {number} and of nothing else." * 3 for number in range(40))
    with running(settings) as runner:
        document = runner.submit("a.txt", text)
        runner.run(document)
        before = runner.now(document)
        with running_system_again(runner, chunk_tokens=64, chunk_overlap_tokens=0) as changed:
            assert changed.run(document).ready == 1
            assert changed.kinds(Stage.PARSED_BLOCKS) == [OutcomeKind.UNCHANGED]
            after = changed.now(document)
            assert (after.version, after.live_version) == (2, 2)
            assert (after.chunk_count or 0) > (before.chunk_count or 0)
            assert all(result.version == 2 for result in changed.system.client.search(KB, "valve 7"))


def test_same_bytes_under_another_name_are_not_embedded_again(runner: Runner) -> None:
    text = "The very same text under two names."
    runner.run(runner.submit("one.txt", text))
    asked = runner.system.embedding.requests
    second = runner.submit("two.txt", text)
    runner.run(second)
    assert runner.now(second).status is Status.READY
    assert runner.system.embedding.requests == asked


def test_text_without_content_is_no_content_and_costs_nothing(runner: Runner) -> None:
    document = runner.submit("blank.txt", "\n \n\t\n")
    runner.run(document)
    assert runner.now(document).status is Status.NO_CONTENT
    assert runner.system.embedding.requests == 0
    for _ in range(2):  # when it was found to be empty, and when it is left alone
        assert [outcome.stage for outcome in runner.reported] == list(Stage)
        assert {outcome.kind for outcome in runner.reported} <= {
            OutcomeKind.DONE,
            OutcomeKind.EMPTY,
            OutcomeKind.UNCHANGED,
        }
        runner.run(document)


def test_document_that_is_being_deleted_is_not_overwritten(runner: Runner) -> None:
    document = runner.submit("a.txt", "Some text.")

    def delete_after_chunking(stage: Stage, outcomes: object) -> None:
        if stage is Stage.CHUNKS:
            with runner.services.facts.engine.begin() as connection:
                connection.execute(sa.text("UPDATE documents SET status = 'DELETING'"))

    request = BatchRequest(run_id="run", partition_keys=(document.partition_key,), stages=ALL)
    result = run_batch(runner.services, request, delete_after_chunking)
    assert (result.ready, result.lost) == (0, 1)
    (item,) = runner.services.facts.claims.items(partition_keys=[document.partition_key])
    assert (item.status, item.batch_id) == (Status.DELETING, None)
    assert runner.system.embedding.requests == 0


def test_no_collection_is_named_before_it_exists(runner: Runner) -> None:
    """A query would find it missing."""
    vectors = MilvusIndex(uri="http://127.0.0.1:1", token="")
    try:
        with pytest.raises(VectorStoreUnavailableError):
            replace(runner.services, vectors=vectors).generation()
    finally:
        vectors.close()
    assert runner.services.facts.live_generation() is None
