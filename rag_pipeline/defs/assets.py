"""The six assets of a document as one batched multi-asset.

One step takes its batch through the selected stages and logs a materialization per (asset, document) itself. It never
emits outputs: an output would mark every partition of the run green. A run with a failed document fails at the end, so
the planned events of exactly that document's missing assets turn red.
"""

from collections.abc import Iterator, Mapping, Sequence

import dagster as dg

from rag_pipeline.core.documents import Stage
from rag_pipeline.core.work import OutcomeKind, StageOutcome
from rag_pipeline.defs.events import EventBatch
from rag_pipeline.defs.metadata import event_of
from rag_pipeline.defs.partitions import DOCUMENTS
from rag_pipeline.stages.batch import BatchRequest, BatchResult, run_batch
from rag_pipeline.stages.services import CODE_VERSIONS, Services

BATCH_TAG = "rag/batch_id"
FORCE_TAG = "rag/force"
"""Run tag: do the selected assets again although nothing changed."""
PARTITIONS_PER_RUN = 256
FAILURES_SHOWN = 20

_DESCRIPTIONS: Mapping[Stage, str] = {
    Stage.SOURCE_DOCUMENT: "The original file, as it was submitted: in the object store, its hash checked.",
    Stage.PARSED_BLOCKS: "Text blocks with headings, pages and positions, a ledger of every page, and the images.",
    Stage.CHUNKS: "Retrievable passages with heading path, page and exact character offsets.",
    Stage.CHUNK_SNAPSHOT: "A readable JSON file of the chunks on disk, written before anything is paid for.",
    Stage.EMBEDDINGS: "One vector per chunk; texts that were embedded before are not paid for again.",
    Stage.INDEX_WRITES: "Chunk rows in PostgreSQL and vectors in Milvus, counted on both sides; then READY.",
}
_KINDS: Mapping[Stage, set[str]] = {
    Stage.SOURCE_DOCUMENT: {"s3", "file"},
    Stage.PARSED_BLOCKS: {"python", "parquet"},
    Stage.CHUNKS: {"python", "parquet"},
    Stage.CHUNK_SNAPSHOT: {"json", "file"},
    Stage.EMBEDDINGS: {"numpy", "parquet"},
    Stage.INDEX_WRITES: {"milvus", "postgres"},
}


def _spec(stage: Stage) -> dg.AssetSpec:
    return dg.AssetSpec(
        stage.value,
        deps=[stage.upstream.value] if stage.upstream else [],
        description=_DESCRIPTIONS[stage],
        group_name="documents",
        kinds=_KINDS[stage],
        owners=["team:data-engineering"],
        code_version=CODE_VERSIONS[stage],
        skippable=True,
    )


@dg.multi_asset(
    name="document_stages",
    specs=[_spec(stage) for stage in Stage],
    partitions_def=DOCUMENTS,
    can_subset=True,
    backfill_policy=dg.BackfillPolicy.multi_run(PARTITIONS_PER_RUN),
)
def document_stages(
    context: dg.AssetExecutionContext, services: dg.ResourceParam[Services]
) -> Iterator[dg.Output[None]]:
    """Take the documents of the run's partitions through the selected stages."""
    events = EventBatch(context)

    def report(stage: Stage, outcomes: Sequence[StageOutcome]) -> None:
        events.write([event_of(outcome) for outcome in outcomes])
        failures = sum(outcome.kind is OutcomeKind.FAILED for outcome in outcomes)
        context.log.info("%s: %d documents, %d failed", stage, len(outcomes), failures)

    request = BatchRequest(
        run_id=context.run_id,
        partition_keys=tuple(context.partition_keys),
        stages=tuple(stage for stage in Stage if dg.AssetKey(stage.value) in context.selected_asset_keys),
        batch_id=context.run.tags.get(BATCH_TAG),
        force=FORCE_TAG in context.run.tags,
    )
    result = run_batch(services, request, report)
    context.log.info("%d READY, %d failed, %d left alone", result.ready, len(result.failures), result.left_alone)
    if result.failures:
        raise _failure(result, len(request.partition_keys))
    yield from ()


def _failure(result: BatchResult, document_count: int) -> dg.Failure:
    """What the run's page shows first: which documents failed, where and why."""
    lines = [
        f"{outcome.item.partition_key} at {outcome.stage}: {outcome.error}"
        for outcome in result.failures[:FAILURES_SHOWN]
    ]
    more = len(result.failures) - len(lines)
    if more > 0:
        lines.append(f"... and {more} more")
    return dg.Failure(
        description=f"{len(result.failures)} of {document_count} documents failed:\n" + "\n".join(lines),
        metadata={
            "failed": dg.MetadataValue.int(len(result.failures)),
            "failures": dg.MetadataValue.json(
                {
                    outcome.item.partition_key: {
                        "stage": outcome.stage.value,
                        "code": outcome.error.code if outcome.error else "",
                        "class": outcome.error.error_class if outcome.error else "",
                        "message": str(outcome.error),
                    }
                    for outcome in result.failures
                }
            ),
        },
        allow_retries=False,
    )
