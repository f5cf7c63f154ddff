"""The next generation and golden sets through the real daemon, whose runs hold no documents."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rag_pipeline.core.documents import Status
from rag_pipeline.evaluation.dataset import read_dataset
from rag_pipeline.evaluation.golden_sets import attach
from rag_pipeline.settings import Settings
from rag_pipeline.stages.services import Services
from rag_pipeline_tests.conftest import own_settings
from rag_pipeline_tests.defs.system import LAUNCH, System, running_system, wait_until
from rag_pipeline_tests.embedding_server import EmbeddingServer
from rag_pipeline_tests.evaluation.questions import write_questions

NEW = 24
MATERIALIZATION = """
{ assetOrError(assetKey: { path: ["index_generation"] }) { ... on Asset {
    assetMaterializations(limit: 1) { metadataEntries { label ... on IntMetadataEntry { intValue }
      ... on BoolMetadataEntry { boolValue } } } } } }
"""


QUALITY = """
{ assetOrError(assetKey: { path: ["retrieval_quality"] }) { ... on Asset {
    assetMaterializations(limit: 1) { metadataEntries { label ... on FloatMetadataEntry { floatValue } } } } } }
"""


@pytest.fixture(scope="module")
def system(servers: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """A system that is configured to move to another embedding service."""
    with (
        own_settings(servers, tmp_path_factory.mktemp("generation")) as own,
        EmbeddingServer(dimensions=NEW) as following,
        running_system(
            own,
            next_embedding_url=following.url,
            next_embedding_model="following",
            next_embedding_dimensions=NEW,
        ) as running,
    ):
        running.start_dagster()
        yield running


def test_sensor_and_asset_move_everything_and_later_documents_go_to_the_new_collection(system: System) -> None:
    client = system.client
    client.create_knowledge_base("moved")
    found = [client.submit("moved", f"The pump {number}.".encode(), filename=f"{number}.txt") for number in range(3)]
    client.wait(found, timeout_seconds=240)
    client.start_generation()
    with Services.from_settings(system.settings) as services:
        wait_until(
            services.facts.live_generation,
            lambda live: live is not None and live[0].dimensions == NEW,
            timeout_seconds=240,
        )
    (late,) = client.wait([client.submit("moved", b"The late pump.", filename="late.txt")], timeout_seconds=240)
    assert late.status is Status.READY
    assert {hit.source_path for hit in client.search("moved", "pump", top_k=10)} == {
        "0.txt",
        "1.txt",
        "2.txt",
        "late.txt",
    }
    entries = wait_until(lambda: system.graphql(MATERIALIZATION)["assetOrError"]["assetMaterializations"], bool)[0][
        "metadataEntries"
    ]
    figures = {entry["label"]: entry.get("intValue", entry.get("boolValue")) for entry in entries}
    assert (figures["documents"], figures["rows"], figures["left"], figures["answers"]) == (3, 3, 0, True)


def test_a_run_asks_the_golden_sets_and_its_figures_are_numbers_on_the_asset_s_page(
    system: System, tmp_path: Path
) -> None:
    client = system.client
    client.create_knowledge_base("birds")
    client.wait([client.submit("birds", b"The kestrel hovers.", filename="kestrel.txt")], timeout_seconds=240)
    folder = write_questions(tmp_path / "questions", {"kestrel": "kestrel"})
    with Services.from_settings(system.settings) as services:
        attach(services, "birds", read_dataset(folder))
    selector = {
        "repositoryName": "__repository__",
        "repositoryLocationName": "rag_pipeline",
        "pipelineName": "quality_job",
    }
    launched = system.graphql(LAUNCH, executionParams={"mode": "default", "runConfigData": "{}", "selector": selector})[
        "launchPipelineExecution"
    ]
    assert launched["__typename"] == "LaunchRunSuccess", launched
    run_id = launched["run"]["runId"]
    (run,) = wait_until(
        lambda: [each for each in system.runs() if each["runId"] == run_id],
        lambda runs: [each["status"] for each in runs] in (["SUCCESS"], ["FAILURE"], ["CANCELED"]),
    )
    assert run["status"] == "SUCCESS"
    (materialization,) = system.graphql(QUALITY)["assetOrError"]["assetMaterializations"]
    figures = {entry["label"]: entry.get("floatValue") for entry in materialization["metadataEntries"]}
    assert figures["birds/bm25/ndcg@10"] == 1.0
    assert figures["birds/hybrid/hit@1"] == 1.0
