"""Sensors: the inbox, the waiting documents, and what has to be put right. All act on state, never on events alone."""

import uuid
from datetime import UTC, datetime

import dagster as dg

from rag_pipeline.adapters.postgres.waiting import RequestedBatch
from rag_pipeline.core.batching import BatchLimits, in_partition_order, keys_between, plan_batches
from rag_pipeline.core.work import BatchPlan, Candidate
from rag_pipeline.defs.assets import BATCH_TAG
from rag_pipeline.defs.jobs import documents_job
from rag_pipeline.defs.partitions import DOCUMENTS, RANGE_END_TAG, RANGE_START_TAG
from rag_pipeline.defs.recovery import recover
from rag_pipeline.defs.removal import Partitions
from rag_pipeline.intake.inbox import Inbox
from rag_pipeline.intake.submission import Submission
from rag_pipeline.stages.cancel import settle_canceled
from rag_pipeline.stages.delete import remove_deleted
from rag_pipeline.stages.services import Services

LANE_TAG = "rag/lane"
LARGE_LANE = "large"
"""dagster.yaml lets one run of this lane go at a time, so a long one never holds every slot."""
DOCUMENTS_PER_TICK = 1_000
"""Keeps a tick far below the 60 s after which Dagster kills it."""
UNLAUNCHED_AFTER_SECONDS = 60.0
CANCELED_PER_TICK = 200
REMOVAL_SECONDS = 30.0


@dg.sensor(
    job=documents_job,
    minimum_interval_seconds=1,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Puts waiting documents into batches and starts one run per batch.",
)
def waiting_documents(
    context: dg.SensorEvaluationContext, services: dg.ResourceParam[Services]
) -> dg.SensorResult | dg.SkipReason:
    """Claim waiting documents; the claim in PostgreSQL comes first, so no document is in two batches."""
    settings = services.settings
    limits = BatchLimits(
        documents=settings.batch_max_documents, bytes=settings.batch_max_bytes, pages=settings.batch_max_pages
    )

    def plan(candidates: list[Candidate]) -> list[BatchPlan]:
        keys = [candidate.partition_key for candidate in in_partition_order(candidates, limits)]
        # Much faster than an AddDynamicPartitionsRequest, and the order of insertion makes them contiguous.
        context.instance.add_dynamic_partitions(DOCUMENTS.name or "documents", keys)
        order = context.instance.get_dynamic_partitions(DOCUMENTS.name or "documents")
        passable = services.facts.claims.settled_keys(keys_between(candidates, order))
        return plan_batches(candidates, order, limits, passable)

    requested = services.facts.waiting.unlaunched(older_than_seconds=UNLAUNCHED_AFTER_SECONDS)
    requested += services.facts.waiting.claim(
        limit=DOCUMENTS_PER_TICK,
        plan=plan,
        new_batch_id=_new_batch_id,
        most_queued=settings.batch_max_queued,
    )
    if not requested:
        return dg.SkipReason("No document is waiting.")
    return dg.SensorResult(run_requests=[_run_request(batch) for batch in requested])


@dg.sensor(
    minimum_interval_seconds=2,
    default_status=dg.DefaultSensorStatus.RUNNING,
    target=documents_job,
    description="Takes files from inbox/{knowledge base}/ of the bucket; refused ones go to rejected/ with the reason.",
)
def inbox(context: dg.SensorEvaluationContext, services: dg.ResourceParam[Services]) -> dg.SkipReason:
    """Register a bounded bite of the inbox; the documents are picked up by `waiting_documents`."""
    settings = services.settings
    submission = Submission(facts=services.facts, objects=services.objects, max_upload_bytes=settings.max_upload_bytes)
    taker = Inbox(submission=submission, objects=services.objects, max_upload_bytes=settings.max_upload_bytes)
    bite = taker.take(
        max_files=settings.inbox_max_files, max_bytes=settings.inbox_max_bytes, cursor=context.cursor or ""
    )
    context.update_cursor(bite.cursor)
    if bite.registered or bite.rejected or bite.waiting:
        return dg.SkipReason(
            f"{bite.registered} files registered, {bite.rejected} rejected, {bite.waiting} left for later."
        )
    return dg.SkipReason("The inbox is empty.")


@dg.sensor(
    minimum_interval_seconds=5,
    default_status=dg.DefaultSensorStatus.RUNNING,
    target=documents_job,
    description="Takes back the documents of dead runs, retries temporary failures, removes superseded versions.",
)
def recovery(context: dg.SensorEvaluationContext, services: dg.ResourceParam[Services]) -> dg.SkipReason:
    """Compare what should be with what is and put it right."""
    return dg.SkipReason(recover(context.instance, services).describe())


@dg.sensor(
    minimum_interval_seconds=5,
    default_status=dg.DefaultSensorStatus.RUNNING,
    target=documents_job,
    description="Removes what canceled and deleted documents and deleted knowledge bases have left in the stores.",
)
def removal(context: dg.SensorEvaluationContext, services: dg.ResourceParam[Services]) -> dg.SkipReason:
    """Bring cancellations and deletions to their end; what a store cannot let go is tried again."""
    settled = settle_canceled(services, limit=CANCELED_PER_TICK)
    removed = remove_deleted(
        services, lambda keys: Partitions(context.instance, services).remove(keys), seconds=REMOVAL_SECONDS
    )
    if not (settled or removed.documents or removed.knowledge_bases or removed.waiting or removed.errors):
        return dg.SkipReason("Nothing to remove.")
    return dg.SkipReason(
        f"{settled} documents canceled, {removed.documents} deleted, {removed.waiting} to be tried again, "
        f"{removed.knowledge_bases} knowledge bases deleted. " + "; ".join(removed.errors)
    )


def _new_batch_id() -> str:
    return f"{datetime.now(tz=UTC):%Y%m%d-%H%M%S}-{uuid.uuid4().hex[:8]}"


def _run_request(batch: RequestedBatch) -> dg.RunRequest:
    tags = {
        RANGE_START_TAG: batch.first_partition,
        RANGE_END_TAG: batch.last_partition,
        BATCH_TAG: batch.batch_id,
        "rag/documents": str(batch.document_count),
    }
    return dg.RunRequest(run_key=batch.batch_id, tags=tags | ({LANE_TAG: LARGE_LANE} if batch.is_large else {}))
