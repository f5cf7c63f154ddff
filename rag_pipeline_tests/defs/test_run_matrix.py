"""One batch with good and bad documents, as Dagster's GraphQL reports it, and how the bad ones are finished.

The whole matrix (asset x document) is compared, because the batched events are written through Dagster's private API.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rag_pipeline.core.documents import Document, Stage, Status
from rag_pipeline.local.dagster import dagster_environment
from rag_pipeline.query.client import RagClient
from rag_pipeline.query.options import RetrievalOptions
from rag_pipeline.query.results import RetrievalResult
from rag_pipeline_tests import files
from rag_pipeline_tests.defs.system import LAUNCH, System, materialize_mutation, wait_until
from rag_pipeline_tests.embedding_server import POISON

KB = "handbook"
GOOD = 60
BLANK = "blank.txt"
"""Has no text: kept, not searchable, no failure."""
BAD = {
    "corrupt.pdf": (Stage.PARSED_BLOCKS, "corrupt", files.corrupt_pdf()),
    "encrypted.pdf": (Stage.PARSED_BLOCKS, "encrypted", files.encrypted_pdf("s3cret")),
    "truncated.docx": (Stage.PARSED_BLOCKS, "corrupt", files.truncated_docx()),
    "refused.txt": (Stage.EMBEDDINGS, "embedding_rejected", f"a text the service refuses: {POISON}".encode()),
}


@pytest.fixture(scope="module")
def batch(system: System, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Document]:
    """Sixty-four documents, four of them bad, and a blank one, submitted before Dagster starts and settled by it."""
    folder = tmp_path_factory.mktemp("documents")
    for number in range(GOOD):
        (folder / f"note {number:02d}.txt").write_text(f"Pump {number} is serviced every {number + 100} hours.\n")
    for name, (_, _, content) in BAD.items():
        (folder / name).write_bytes(content)
    (folder / BLANK).write_text("\n \n")
    system.client.create_knowledge_base(KB)
    submitted = system.client.submit_many(KB, [folder])
    assert [result.error for result in submitted] == [None] * (GOOD + len(BAD) + 1)
    system.start_dagster()
    system.wait_for_runs(count=1)
    done = system.client.wait(submitted, timeout_seconds=60)
    return {document.file_name: document for document in done}


def test_one_run_settles_all_and_the_bad_fail_at_their_stage(system: System, batch: dict[str, Document]) -> None:
    first_run = system.runs()[-1]  # other tests may have started more
    assert first_run["status"] == "FAILURE"
    assert {"key": "rag/documents", "value": str(len(batch))} in first_run["tags"]
    by_status = {name: document.status for name, document in batch.items()}
    assert {name for name, status in by_status.items() if status is Status.FAILED} == set(BAD)
    assert sum(status is Status.READY for status in by_status.values()) == GOOD
    assert by_status[BLANK] is Status.NO_CONTENT
    for name, (stage, code, _) in BAD.items():
        error = batch[name].error
        assert error is not None
        assert (error.stage, error.code, error.error_class) == (stage, code, "permanent")
        assert "Traceback" not in error.message


def test_matrix_of_assets_and_documents_in_graphql(system: System, batch: dict[str, Document]) -> None:
    states = system.partition_states()
    for stage in Stage:
        expected = {
            document.partition_key: "failed" if name in BAD and stage in _from(BAD[name][0]) else "materialized"
            for name, document in batch.items()
        }
        # `refused.txt` may have been finished by the test that materializes it.
        for partition in (batch["refused.txt"].partition_key, batch["corrupt.pdf"].partition_key):
            expected.pop(partition), states[stage].pop(partition, None)
        assert {key: state for key, state in states[stage].items() if key in expected} == expected


def test_good_documents_are_searchable(system: System, batch: dict[str, Document]) -> None:
    results = _by_words(system, "Pump 17 is serviced", top_k=GOOD)
    assert results[0].file_name == "note 17.txt"
    assert {result.file_name for result in results}.isdisjoint({"corrupt.pdf", "encrypted.pdf", "truncated.docx"})


def test_materializing_from_embeddings_in_the_ui_finishes_without_parsing(
    system: System, batch: dict[str, Document]
) -> None:
    system.embedding.refuses_poison = False
    document = batch["refused.txt"]
    answer = system.graphql(
        LAUNCH, **materialize_mutation(document.partition_key, [Stage.EMBEDDINGS, Stage.INDEX_WRITES])
    )["launchPipelineExecution"]
    assert answer["__typename"] == "LaunchRunSuccess", answer
    _assert_finished_from_embeddings(system, document)
    states = system.partition_states()
    assert {states[stage][document.partition_key] for stage in Stage} == {"materialized"}


def test_materializing_from_embeddings_on_the_command_line_finishes_without_parsing(
    system: System, batch: dict[str, Document]
) -> None:
    system.embedding.refuses_poison = True
    submitted = system.client.submit(KB, f"another refused text: {POISON}".encode(), filename="refused too.txt")
    document = system.client.wait([submitted], timeout_seconds=120)[0]
    assert document.status is Status.FAILED
    system.embedding.refuses_poison = False
    environment = {**os.environ, **dagster_environment(system.settings, system.settings.data_dir / "dagster_home")}
    command = [
        *(sys.executable, "-m", "dagster", "asset", "materialize", "-m", "rag_pipeline.definitions"),
        *("--select", "embeddings,index_writes", "--partition", document.partition_key),
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    _assert_finished_from_embeddings(system, document)


def test_mended_file_under_the_same_name_becomes_a_new_ready_version(
    system: System, batch: dict[str, Document], tmp_path: Path
) -> None:
    mended = tmp_path / "corrupt.pdf"
    mended.write_bytes(files.pdf(["The mended report names the valve V17."]))
    again = system.client.submit(KB, mended)
    assert (again.id, again.version, again.status) == (batch["corrupt.pdf"].id, 2, Status.PENDING)
    done = system.client.wait([again], timeout_seconds=120)[0]
    assert (done.status, done.live_version) == (Status.READY, 2)
    found = _by_words(system, "the valve V17", top_k=1)[0]
    assert (found.document_id, found.page) == (again.id, 1)


def _by_words(system: System, question: str, *, top_k: int) -> tuple[RetrievalResult, ...]:
    """BM25 alone: the vectors of the loopback service mean nothing."""
    return system.client.retrieve(KB, question, options=RetrievalOptions(top_k=top_k, mode="bm25")).results


def _from(stage: Stage) -> list[Stage]:
    stages = list(Stage)
    return stages[stages.index(stage) :]


def _assert_finished_from_embeddings(system: System, document: Document) -> None:
    def look() -> Document:
        return system.client.document(document.id)

    done = wait_until(look, lambda found: found.status is Status.READY)
    assert (done.version, done.error) == (1, None)
    assert _attempts(system.client, document.id, Stage.PARSED_BLOCKS) == 1
    assert _attempts(system.client, document.id, Stage.EMBEDDINGS) == 2


def _attempts(client: RagClient, document_id: str, stage: Stage) -> int:
    return sum(entry.node == stage for entry in client.node_log(document_id))
