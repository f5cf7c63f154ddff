"""The scheduled comparison of the stores and test of BM25, as asset checks, so that they are seen where people look.

They hang on an asset of their own: a check of a document asset would run with every materialization of it.
"""

import dagster as dg

from rag_pipeline.core.reconciliation import Reconciled
from rag_pipeline.defs.jobs import BOUNDED_RUN
from rag_pipeline.defs.removal import Partitions
from rag_pipeline.stages.reconcile import reconcile
from rag_pipeline.stages.self_test import missed_terms, told
from rag_pipeline.stages.services import Services

EVERY_HOUR = "17 * * * *"
"""Off the full hour, when everything else starts."""

stores = dg.AssetSpec(
    "document_stores",
    deps=["index_writes"],
    description="PostgreSQL, object store, Milvus, snapshots and partitions taken together. Its check compares them.",
    group_name="documents",
    kinds={"postgres", "milvus", "s3"},
    owners=["team:data-engineering"],
)


@dg.asset_check(
    asset=stores.key,
    description="PostgreSQL names exactly what the other stores hold; RAG_RECONCILE_REPAIR says whether it is mended.",
)
def stores_agree(context: dg.AssetCheckExecutionContext, services: dg.ResourceParam[Services]) -> dg.AssetCheckResult:
    """Compare all stores, both ways."""
    found = reconcile(
        services,
        repair=services.settings.reconcile_repair,
        partitions=lambda: Partitions(context.instance, services),
    )
    return dg.AssetCheckResult(
        passed=found.agrees,
        severity=dg.AssetCheckSeverity.WARN,
        description=_summary(found),
        metadata={
            "drift": dg.MetadataValue.md(_table(found)),
            "rebuilt": dg.MetadataValue.int(found.rebuilt),
            "seconds": dg.MetadataValue.float(round(found.seconds, 3)),
            **{f"checked/{store}": dg.MetadataValue.int(count) for store, count in found.checked.items()},
        },
    )


@dg.asset_check(
    asset=stores.key,
    description="BM25 alone finds an exact word of a Chinese and of an English passage; tried in a collection apart.",
)
def exact_words_are_found(services: dg.ResourceParam[Services]) -> dg.AssetCheckResult:
    """Write two passages and search them by words."""
    missed = missed_terms(services)
    analyzer = services.serving().settings.analyzer
    return dg.AssetCheckResult(
        passed=not missed,
        severity=dg.AssetCheckSeverity.WARN,
        description=told(missed, analyzer),
        metadata={"analyzer": dg.MetadataValue.text(analyzer)},
    )


reconcile_job = dg.define_asset_job(
    "reconcile_job",
    selection=dg.AssetSelection.checks(stores_agree, exact_words_are_found),
    executor_def=dg.in_process_executor,
    description="Compares the stores and puts right what disagrees; tries whether BM25 finds words.",
    tags=BOUNDED_RUN,
)

reconcile_schedule = dg.ScheduleDefinition(
    name="reconcile_hourly",
    job=reconcile_job,
    cron_schedule=EVERY_HOUR,
    default_status=dg.DefaultScheduleStatus.RUNNING,
)


def is_reconciliation(run: dg.DagsterRun) -> bool:
    """Whether a run only compares stores: it holds no documents and sends no heartbeat."""
    return run.job_name == reconcile_job.name or bool(run.asset_check_selection and not run.asset_selection)


def _summary(found: Reconciled) -> str:
    if not found.drift:
        return "The stores agree."
    parts = [f"{each.count} {each.store} {each.problem} ({each.repaired} repaired)" for each in found.drift]
    return "; ".join(parts)


def _table(found: Reconciled) -> str:
    lines = ["| store | problem | count | repaired | examples |", "|---|---|---|---|---|"]
    for each in found.drift:
        examples = ", ".join(f"`{example}`" for example in each.examples)
        lines.append(f"| {each.store} | {each.problem} | {each.count} | {each.repaired} | {examples} |")
    return "\n".join([*lines, "", *(f"* {note}" for note in found.notes)])
