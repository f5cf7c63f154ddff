"""Bringing a test set into a knowledge base through the pipeline's own stages, without Dagster."""

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rag_pipeline.core.documents import Stage
from rag_pipeline.core.work import StageOutcome
from rag_pipeline.errors import InternalError
from rag_pipeline.query.client import RagClient
from rag_pipeline.stages.batch import BatchRequest, run_batch
from rag_pipeline.stages.services import Services


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingested:
    """What became of the files."""

    ids: Mapping[str, str]
    """Id in the test set by document id of the knowledge base."""
    made_ready: int
    """Documents that were worked on; the others were up to date from an earlier run."""
    seconds: float
    """Of the stages, without submitting."""
    failures: tuple[str, ...]
    """File and reason."""


def ingest(
    services: Services,
    client: RagClient,
    *,
    knowledge_base: str,
    files: Mapping[str, Path],
    progress: Callable[[int, int], None],
) -> Ingested:
    """Make every file a READY document; what an earlier run has done under the same settings is not done again.

    Args:
        services: for the stages.
        client: for submitting.
        knowledge_base: its name; made if it is missing.
        files: by id in the test set.
        progress: called with documents done and all.
    """
    client.create_knowledge_base(knowledge_base)
    results = client.submit_many(knowledge_base, list(dict.fromkeys(files.values())))
    document_of = {result.path.resolve(): result.document for result in results if result.document is not None}
    failures = [f"{result.source_path}: {result.error}" for result in results if result.error is not None]
    ids = {}
    keys = []
    for name, path in files.items():
        document = document_of.get(path.resolve())
        if document is not None:
            ids[document.id] = name
            keys.append(document.partition_key)
    step = services.settings.batch_max_documents
    ready, seconds = 0, 0.0
    for start in range(0, len(keys), step):
        progress(start, len(keys))
        began = time.perf_counter()
        result = run_batch(services, _request(keys[start : start + step]), _ignored)
        if result.ready:
            seconds += time.perf_counter() - began
        ready += result.ready
        failures += [f"{outcome.item.source_path}: {outcome.error}" for outcome in result.failures]
    progress(len(keys), len(keys))
    if keys and len(failures) >= len(files):
        raise InternalError(f"no document could be ingested; the first: {failures[0]}")
    return Ingested(ids=ids, made_ready=ready, seconds=seconds, failures=tuple(failures))


def _request(keys: Sequence[str]) -> BatchRequest:
    return BatchRequest(run_id=f"evaluate-{uuid.uuid4().hex[:12]}", partition_keys=tuple(keys), stages=tuple(Stage))


def _ignored(_stage: Stage, _outcomes: Sequence[StageOutcome]) -> None:
    """The ledger has them; nobody else is told."""
