"""The whole product as a test sees it: servers, an embedding service, Dagster's webserver and daemon, and a client."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx

from rag_pipeline.adapters.postgres.schema import migrate
from rag_pipeline.core.documents import Stage
from rag_pipeline.local.dagster import DagsterProcesses, start_dagster
from rag_pipeline.query.client import RagClient
from rag_pipeline.settings import Settings
from rag_pipeline_tests.embedding_server import EmbeddingServer

DIMENSIONS = 16
T = TypeVar("T")


@dataclass(kw_only=True)
class System:
    """A running pipeline whose embeddings come from a loopback service."""

    settings: Settings
    embedding: EmbeddingServer
    client: RagClient
    _dagster: list[DagsterProcesses] = field(default_factory=list)

    def start_dagster(self) -> None:
        """Start the webserver and the daemon."""
        self._dagster.append(start_dagster(self.settings))

    def stop_dagster(self) -> None:
        """Stop them."""
        while self._dagster:
            self._dagster.pop().stop()

    def graphql(self, query: str, **variables: object) -> dict[str, Any]:
        """Data of a GraphQL answer of the webserver; fails on errors."""
        url = f"{self._dagster[-1].webserver_url}/graphql"
        answer = httpx.post(url, json={"query": query, "variables": variables}, timeout=60)
        content = answer.json()
        assert "errors" not in content, content["errors"]
        return dict(content["data"])

    def partition_states(self) -> dict[Stage, dict[str, str]]:
        """State of every (asset, partition) that has one: materialized, failed or materializing."""
        stages = {stage.value for stage in Stage}
        nodes = [
            node for node in self.graphql(_PARTITION_STATES)["assetNodes"] if node["assetKey"]["path"][-1] in stages
        ]
        found: dict[Stage, dict[str, str]] = {}
        for node in nodes:
            states = node["assetPartitionStatuses"]
            found[Stage(node["assetKey"]["path"][-1])] = {
                **dict.fromkeys(states["materializedPartitions"], "materialized"),
                **dict.fromkeys(states["failedPartitions"], "failed"),
                **dict.fromkeys(states["materializingPartitions"], "materializing"),
            }
        return found

    def runs(self) -> list[dict[str, Any]]:
        """All runs, newest first."""
        return list(self.graphql(_RUNS)["runsOrError"]["results"])

    def wait_for_runs(self, *, count: int, timeout_seconds: float = 240.0) -> list[dict[str, Any]]:
        """Wait until there are that many runs and all have ended."""
        return wait_until(
            self.runs,
            lambda runs: (
                len(runs) >= count and all(run["status"] in ("SUCCESS", "FAILURE", "CANCELED") for run in runs)
            ),
            timeout_seconds=timeout_seconds,
        )


@contextmanager
def running_system(settings: Settings, **changes: object) -> Iterator[System]:
    """A system without Dagster started yet, on migrated databases."""
    with EmbeddingServer(dimensions=DIMENSIONS) as embedding:
        own = settings.model_copy(
            update={
                "embedder": "openai",
                "embedding_url": embedding.url,
                "embedding_model": "loopback",
                "embedding_dimensions": DIMENSIONS,
                "webserver_port": 0,
                "analyzer": "standard",
                "retry_base_seconds": 3600.0,  # automatic retries would change what the tests look at
                **changes,
            }
        )
        migrate(own.require_postgres())
        with RagClient(own) as client:
            system = System(settings=own, embedding=embedding, client=client)
            try:
                yield system
            finally:
                system.stop_dagster()


def wait_until(look: Callable[[], T], is_done: Callable[[T], bool], *, timeout_seconds: float = 120.0) -> T:
    """Look again and again until it is done; fails with what was seen last."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        found = look()
        if is_done(found):
            return found
        assert time.monotonic() < deadline, f"not done after {timeout_seconds} s: {found}"
        time.sleep(0.5)


def materialize_mutation(partition: str, stages: Sequence[Stage]) -> Mapping[str, object]:
    """Variables of the mutation that the UI sends for "Materialize selected" on one partition."""
    return {
        "executionParams": {
            "mode": "default",
            "runConfigData": "{}",
            "selector": {
                "repositoryName": "__repository__",
                "repositoryLocationName": "rag_pipeline",
                "pipelineName": "__ASSET_JOB",
                "assetSelection": [{"path": [stage.value]} for stage in stages],
                "assetCheckSelection": [],
            },
            "executionMetadata": {"tags": [{"key": "dagster/partition", "value": partition}]},
        }
    }


LAUNCH = """
mutation LaunchPipelineExecution($executionParams: ExecutionParams!) {
  launchPipelineExecution(executionParams: $executionParams) {
    __typename
    ... on LaunchRunSuccess { run { runId } }
    ... on PythonError { message }
    ... on RunConfigValidationInvalid { errors { message } }
  }
}
"""

_PARTITION_STATES = """
{ assetNodes {
    assetKey { path }
    assetPartitionStatuses { ... on DefaultPartitionStatuses {
      materializedPartitions failedPartitions materializingPartitions unmaterializedPartitions } } } }
"""

_RUNS = """
{ runsOrError(limit: 200) { ... on Runs { results { runId status tags { key value } } } } }
"""
