"""Dagster's side of deleting: partitions go with their documents, unless a run still needs them."""

from collections.abc import Sequence

import dagster as dg

from rag_pipeline.defs.partitions import DOCUMENTS, RANGE_END_TAG, RANGE_START_TAG
from rag_pipeline.stages.services import Services

_UNFINISHED = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]
_PARTITION_TAG = "dagster/partition"
MOST_RUNS = 1_000


class Partitions:
    """The dynamic partitions of documents, as far as they may be removed now."""

    def __init__(self, instance: dg.DagsterInstance, services: Services) -> None:
        self._instance = instance
        self._name = DOCUMENTS.name or "documents"
        # A run whose range has lost an end is refused as a whole, so ends stay as long as somebody needs them.
        self._needed = services.facts.deletions.partitions_in_use() | _ends_of_runs(instance)

    def keys(self) -> list[str]:
        """All partition keys."""
        return list(self._instance.get_dynamic_partitions(self._name))

    def remove(self, keys: Sequence[str]) -> dict[str, bool]:
        """Remove partitions; returns those that are gone now, and whether they had been there."""
        gone = {}
        for key in keys:
            if key not in self._needed:
                gone[key] = self._instance.has_dynamic_partition(self._name, key)
                if gone[key]:
                    self._instance.delete_dynamic_partition(self._name, key)
        return gone

    def add(self, keys: Sequence[str]) -> None:
        """Add partitions that are missing."""
        self._instance.add_dynamic_partitions(self._name, list(keys))


def _ends_of_runs(instance: dg.DagsterInstance) -> frozenset[str]:
    tags = (RANGE_START_TAG, RANGE_END_TAG, _PARTITION_TAG)
    runs = instance.get_runs(dg.RunsFilter(statuses=_UNFINISHED), limit=MOST_RUNS)
    return frozenset(run.tags[tag] for run in runs for tag in tags if tag in run.tags)
