"""Cancel, delete, reconcile and golden sets through the real daemon, with runs in flight."""

from pathlib import Path

import pytest

from rag_pipeline.core.documents import Status
from rag_pipeline.evaluation.dataset import read_dataset
from rag_pipeline.evaluation.golden_sets import attach
from rag_pipeline.stages.services import Services
from rag_pipeline_tests.contents import assert_consistent, contents
from rag_pipeline_tests.defs.system import LAUNCH, System, wait_until
from rag_pipeline_tests.embedding_server import Answer
from rag_pipeline_tests.evaluation.questions import write_questions

IN_FLIGHT = 40

ADD_PARTITION = """
mutation Add($key: String!) {
  addDynamicPartition(
    partitionsDefName: "documents", partitionKey: $key,
    repositorySelector: { repositoryName: "__repository__", repositoryLocationName: "rag_pipeline" }
  ) { __typename }
}
"""
CHECKS = """
{ assetCheckExecutions(assetKey: { path: ["document_stores"] }, checkName: "stores_agree", limit: 1) {
    status evaluation { success description } } }
"""
QUALITY = """
{ assetOrError(assetKey: { path: ["retrieval_quality"] }) { ... on Asset {
    assetMaterializations(limit: 1) { metadataEntries { label ... on FloatMetadataEntry { floatValue } } } } } }
"""


@pytest.fixture(scope="module")
def dagster(system: System) -> System:
    system.start_dagster()
    return system


def partitions(system: System) -> set[str]:
    """Partition keys of the document assets."""
    nodes = system.graphql("{ assetNodes { assetKey { path } partitionKeys } }")["assetNodes"]
    return {key for node in nodes for key in node["partitionKeys"]}


def run_job(system: System, name: str) -> str:
    """Launch a job as Dagster's page does, and return how its run ended."""
    selector = {"repositoryName": "__repository__", "repositoryLocationName": "rag_pipeline", "pipelineName": name}
    parameters = {"mode": "default", "runConfigData": "{}", "selector": selector}
    answer = system.graphql(LAUNCH, executionParams=parameters)["launchPipelineExecution"]
    assert answer["__typename"] == "LaunchRunSuccess", answer
    run_id = answer["run"]["runId"]
    return wait_until(
        lambda: str({run["runId"]: run["status"] for run in system.runs()}[run_id]),
        lambda status: status in ("SUCCESS", "FAILURE", "CANCELED"),
    )


def test_run_that_holds_only_canceled_documents_is_terminated(dagster: System) -> None:
    client = dagster.client
    client.create_knowledge_base("canceled")
    asked = dagster.embedding.requests
    dagster.embedding.script(*[Answer(wait_seconds=300)] * 8)
    found = [client.submit("canceled", f"Slow {number}.".encode(), filename=f"{number}.txt") for number in range(4)]
    wait_until(lambda: dagster.embedding.requests, lambda count: count > asked)
    ids = [document.id for document in found]
    assert client.cancel_knowledge_base("canceled", reason="too slow") == 4
    runs = dagster.wait_for_runs(count=1)
    # A run of which everything was canceled before it began has nothing to do and succeeds.
    assert "CANCELED" in {run["status"] for run in runs}
    assert "FAILURE" not in {run["status"] for run in runs}
    done = wait_until(
        lambda: [client.document(each) for each in ids],
        lambda documents: all(document.status is Status.CANCELED for document in documents),
    )
    assert {document.cancel_reason for document in done} == {"too slow"}
    dagster.embedding.forget_script()
    for each in ids:
        client.retry(each)
    retried = client.wait(done, timeout_seconds=240)
    assert {document.status for document in retried} == {Status.READY}


def test_knowledge_base_is_deleted_with_documents_in_flight(dagster: System) -> None:
    client = dagster.client
    kb = client.create_knowledge_base("deleted")
    client.create_knowledge_base("bystander")
    other = client.submit("bystander", b"A text that stays.", filename="stays.txt")
    ready = [client.submit("deleted", f"Text {number}.".encode(), filename=f"{number}.txt") for number in range(20)]
    client.wait([other, *ready], timeout_seconds=240)
    asked = dagster.embedding.requests
    dagster.embedding.script(*[Answer(wait_seconds=2)] * IN_FLIGHT)
    for number in range(IN_FLIGHT):
        client.submit("deleted", f"In flight {number}.".encode(), filename=f"flight {number}.txt")
    wait_until(lambda: dagster.embedding.requests, lambda count: count > asked)
    deletion = client.delete_knowledge_base("deleted", reason="over")
    done = wait_until(
        lambda: client.deletion(deletion.target_id), lambda found: found.finished_at is not None, timeout_seconds=300
    )
    assert done.counts["documents"] == len(ready) + IN_FLIGHT
    assert {key for key in partitions(dagster) if key.startswith("deleted.")} == set()
    with Services.from_settings(dagster.settings) as services:
        left = contents(services)
        assert {key for key in left.objects if kb.id in key} == set()
        assert {path for path in left.snapshots if kb.id in path} == set()
        assert_consistent(services)
    assert client.document(other.id).status is Status.READY
    assert client.create_knowledge_base("deleted").id != kb.id
    dagster.embedding.forget_script()


def test_check_finds_and_removes_a_partition_without_document(dagster: System) -> None:
    dagster.graphql(ADD_PARTITION, key="ghost.txt~000000000000")
    assert "ghost.txt~000000000000" in partitions(dagster)
    assert run_job(dagster, "reconcile_job") == "SUCCESS"
    (execution,) = dagster.graphql(CHECKS)["assetCheckExecutions"]
    assert execution["status"] == "SUCCEEDED"
    assert "1 partitions orphaned (1 repaired)" in execution["evaluation"]["description"]
    assert "ghost.txt~000000000000" not in partitions(dagster)


def test_a_run_asks_the_golden_sets_and_its_figures_are_numbers_on_the_asset_s_page(
    dagster: System, tmp_path: Path
) -> None:
    client = dagster.client
    client.create_knowledge_base("birds")
    client.wait([client.submit("birds", b"The kestrel hovers.", filename="kestrel.txt")], timeout_seconds=240)
    folder = write_questions(tmp_path / "questions", {"kestrel": "kestrel"})
    with Services.from_settings(dagster.settings) as services:
        attach(services, "birds", read_dataset(folder))
    assert run_job(dagster, "quality_job") == "SUCCESS"
    (materialization,) = dagster.graphql(QUALITY)["assetOrError"]["assetMaterializations"]
    figures = {entry["label"]: entry.get("floatValue") for entry in materialization["metadataEntries"]}
    assert figures["birds/bm25/ndcg@10"] == 1.0
    assert figures["birds/hybrid/hit@1"] == 1.0
