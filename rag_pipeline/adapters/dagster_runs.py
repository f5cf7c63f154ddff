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
            answer = _ask(url, _TERMINATE, "terminateRuns", runIds=run_ids) if run_ids else {}
        except (httpx.HTTPError, httpx.InvalidURL, _RefusedError) as error:
            logger.warning("Dagster at %s ended no runs (they notice by themselves): %s", url, error)
            return []
        results = answer.get("terminateRunResults") or []
        return [each["run"]["runId"] for each in results if each["__typename"] == "TerminateRunSuccess"]

    def _url(self) -> str | None:
        if self._settings.dagster_url is not None:
            return self._settings.dagster_url.rstrip("/")
        try:
            return str(json.loads((self._settings.data_dir / "servers" / "dagster.json").read_text())["url"])
        except (OSError, ValueError, KeyError, TypeError):
            return None  # nothing runs, or its record is not written to the end: nothing to tell it


def _run_ids(url: str, batches: Sequence[AbandonedBatch]) -> Iterator[str]:
    for batch in batches:
        if batch.run_id is not None:
            yield batch.run_id
            continue
        tags = [{"key": _BATCH_TAG, "value": batch.batch_id}]
        found = _ask(url, _RUNS, "runsOrError", filter={"tags": tags})
        yield from (run["runId"] for run in found.get("results") or [])


def _ask(url: str, query: str, field: str, **variables: object) -> dict[str, Any]:
    """What the query gives for its one field."""
    content = {"query": query, "variables": variables}
    answer = httpx.post(f"{url}/graphql", json=content, timeout=TIMEOUT_SECONDS, trust_env=False)
    answer.raise_for_status()
    try:
        found = answer.json()
        if not found.get("errors"):
            return dict(found["data"][field])
        reason = str(found["errors"][0].get("message", "GraphQL error"))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _RefusedError(f"its answer is not that of Dagster: {answer.text[:100]!r}") from error
    raise _RefusedError(reason)


class _RefusedError(Exception):
    """GraphQL answered with an error, or something else answered."""


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
