"""The next generation through the real daemon: the sensor starts the asset's runs until it answers."""

from collections.abc import Iterator

import pytest

from rag_pipeline.core.documents import Status
from rag_pipeline.settings import Settings
from rag_pipeline.stages.services import Services
from rag_pipeline_tests.conftest import own_settings
from rag_pipeline_tests.defs.system import System, running_system, wait_until
from rag_pipeline_tests.embedding_server import EmbeddingServer

NEW = 24
MATERIALIZATION = """
{ assetOrError(assetKey: { path: ["index_generation"] }) { ... on Asset {
    assetMaterializations(limit: 1) { metadataEntries { label ... on IntMetadataEntry { intValue }
      ... on BoolMetadataEntry { boolValue } } } } } }
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
