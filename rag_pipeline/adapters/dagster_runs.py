"""Ending Dagster runs over the webserver's GraphQL, without importing Dagster.

A convenience: a run whose documents are all canceled notices it by itself, but only when it next looks. So a webserver
that is down or refuses is no error here.
"""

import json
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import httpx

from rag_pipeline.adapters.postgres.cancellation import AbandonedBatch
from rag_pipeline.settings import Settings

logger = logging.getLogger(__name__)

TIMEOUT_SECONDS = 10.0
"""Ending a run that has started takes the webserver one call to the run's code server."""
_BATCH_TAG = "rag/batch_id"


class DagsterRuns:
    """The runs of a Dagster webserver."""

    def __init__(self, settings: Settings) -> None:
        """The webserver that the settings name, or the one that `rag-pipeline up` runs at the time of a call."""
        self._settings = settings

    def end(self, batches: Sequence[AbandonedBatch]) -> list[str]:
        """Terminate the runs of batches that have nothing to do any more; returns the ids of the runs ended."""
        url = self._url() if batches else None
        if url is None:
            return []
        try:
            run_ids = list(_run_ids(url, batches))
            answer = _ask(url, _TERMINATE, runIds=run_ids)["terminateRuns"] if run_ids else {}
        except (httpx.HTTPError, _RefusedError) as error:
            logger.warning("Dagster at %s ended no runs (they notice by themselves): %s", url, error)
            return []
        results = answer.get("terminateRunResults", [])
        return [each["run"]["runId"] for each in results if each["__typename"] == "TerminateRunSuccess"]

    def _url(self) -> str | None:
        if self._settings.dagster_url is not None:
            return self._settings.dagster_url.rstrip("/")
        try:
            record = json.loads((self._settings.data_dir / "servers" / "dagster.json").read_text())
        except (FileNotFoundError, PermissionError):
            return None
        return str(record["url"])


def _run_ids(url: str, batches: Sequence[AbandonedBatch]) -> Iterator[str]:
    for batch in batches:
        if batch.run_id is not None:
            yield batch.run_id
            continue
        tags = [{"key": _BATCH_TAG, "value": batch.batch_id}]
        found = _ask(url, _RUNS, filter={"tags": tags})["runsOrError"]
        yield from (run["runId"] for run in found.get("results", []))


def _ask(url: str, query: str, **variables: object) -> dict[str, Any]:
    content = {"query": query, "variables": variables}
    answer = httpx.post(f"{url}/graphql", json=content, timeout=TIMEOUT_SECONDS, trust_env=False)
    answer.raise_for_status()
    found = answer.json()
    if found.get("errors"):
        raise _RefusedError(found["errors"][0].get("message", "GraphQL error"))
    return dict(found["data"])


class _RefusedError(Exception):
    """GraphQL answered with an error."""


_RUNS = """
query Runs($filter: RunsFilter!) { runsOrError(filter: $filter, limit: 10) { ... on Runs { results { runId } } } }
"""

_TERMINATE = """
mutation Terminate($runIds: [String!]!) {
  terminateRuns(runIds: $runIds, terminatePolicy: SAFE_TERMINATE) {
    ... on TerminateRunsResult {
      terminateRunResults { __typename ... on TerminateRunSuccess { run { runId } } }
    }
  }
}
"""
