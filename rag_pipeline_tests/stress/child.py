"""A run in a process of its own that can be killed, between stages or in the middle of a write.

The module is preloaded into a fork server, so that a run costs a fork and not five seconds of imports.
"""

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace

import minio  # noqa: F401 - preloaded for the forks
import pyarrow.parquet  # noqa: F401
import pymilvus  # noqa: F401

from rag_pipeline.adapters.artefacts import ArtefactStore
from rag_pipeline.adapters.milvus import MilvusIndex
from rag_pipeline.core.documents import Stage
from rag_pipeline.core.ports import CollectionGeneration, VectorRow
from rag_pipeline.core.work import StageOutcome
from rag_pipeline.settings import Settings
from rag_pipeline.stages.batch import BatchRequest, run_batch
from rag_pipeline.stages.services import Services


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """When the process kills itself; nothing set: never."""

    after_stage: Stage | None = None
    """When outcomes of that stage are reported."""
    at_vector_write: int | None = None
    """Before the upsert with that number, from 1."""
    after_vector_write: int | None = None
    """After it, before anything is published."""
    at_artefact: int | None = None
    """Before the artefact with that number is put, from 1: parsed blocks, chunks and vectors count alike."""


class DyingIndex(MilvusIndex):
    """The real index, in a process that dies at a chosen write."""

    death = Death()
    writes = 0

    def upsert(self, generation: CollectionGeneration, rows: Sequence[VectorRow]) -> None:
        """Write, or die."""
        self.writes += 1
        if self.writes == self.death.at_vector_write:
            die()
        super().upsert(generation, rows)
        if self.writes == self.death.after_vector_write:
            die()


class DyingArtefacts(ArtefactStore):
    """The real store, in a process that dies at a chosen artefact."""

    death = Death()
    puts = 0

    def put(self, key: str, content: bytes) -> str:
        """Store, or die."""
        self.puts += 1
        if self.puts == self.death.at_artefact:
            die()
        return super().put(key, content)


def die() -> None:
    """As the kernel does it when memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)


def run(settings: Settings, request: BatchRequest, death: Death) -> None:
    """Run the batch as Dagster's process would."""

    def report(stage: Stage, _: Sequence[StageOutcome]) -> None:
        if stage is death.after_stage:
            die()

    with Services.from_settings(settings) as services:
        DyingIndex.death = death
        index = DyingIndex.from_settings(settings)
        artefacts = DyingArtefacts(services.objects)
        artefacts.death = death
        run_batch(replace(services, vectors=index, artefacts=artefacts), request, report)
