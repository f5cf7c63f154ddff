"""How good the answers are, as an asset: golden sets are asked every night, their figures are plotted by Dagster."""

from collections.abc import Iterator

import dagster as dg

from rag_pipeline.defs.jobs import BOUNDED_RUN
from rag_pipeline.evaluation.golden_sets import Standing, measure, names_shown, standing
from rag_pipeline.stages.services import Services

EVERY_NIGHT = "43 2 * * *"


@dg.asset(
    deps=["index_writes"],
    group_name="documents",
    kinds={"milvus", "postgres"},
    owners=["team:data-engineering"],
    description="What the golden sets attached to knowledge bases say about dense, BM25 and hybrid search there.",
)
def retrieval_quality(
    context: dg.AssetExecutionContext, services: dg.ResourceParam[Services]
) -> dg.MaterializeResult[None]:
    """Ask every attached set; each figure is a number of its own, so that it is plotted over time."""
    metadata: dict[str, dg.MetadataValue] = {}
    for golden in services.facts.golden_sets.all():
        found = measure(services, golden)
        context.log.info("%s: %d questions of %s asked", golden.kb_name, len(golden.questions), golden.name)
        metadata |= dict(_figures(found))
    if not metadata:
        metadata["note"] = dg.MetadataValue.text("No golden set is attached: `rag-pipeline evaluate DIR --attach KB`")
    return dg.MaterializeResult(metadata=metadata)


@dg.asset_check(
    asset=retrieval_quality,
    description="No leg of a golden set is worse by more than RAG_GOLDEN_MAX_DROP than in the result accepted last.",
)
def retrieval_quality_holds(services: dg.ResourceParam[Services]) -> dg.AssetCheckResult:
    """Compare the newest result of every set with the accepted one."""
    found = [standing(services, golden) for golden in services.facts.golden_sets.all()]
    fallen = [each for each in found if each.fallen]
    return dg.AssetCheckResult(
        passed=not fallen,
        severity=dg.AssetCheckSeverity.ERROR,
        description="\n".join(map(_told, fallen)) or f"{len(found)} golden sets are answered as well as before.",
        metadata={
            "sets": dg.MetadataValue.int(len(found)),
            "fallen": dg.MetadataValue.int(len(fallen)),
            "max_drop": dg.MetadataValue.float(services.settings.golden_max_drop),
        },
    )


quality_job = dg.define_asset_job(
    "quality_job",
    selection=dg.AssetSelection.assets(retrieval_quality),
    executor_def=dg.in_process_executor,
    description="Asks the golden sets that are attached to knowledge bases.",
    tags=BOUNDED_RUN,
)


@dg.schedule(
    name="quality_nightly",
    job=quality_job,
    cron_schedule=EVERY_NIGHT,
    default_status=dg.DefaultScheduleStatus.RUNNING,
)
def quality_schedule(services: dg.ResourceParam[Services]) -> dg.RunRequest | dg.SkipReason:
    """No run without a golden set."""
    if not services.facts.golden_sets.exists():
        return dg.SkipReason("No golden set is attached to a knowledge base.")
    return dg.RunRequest()


def is_quality_run(run: dg.DagsterRun) -> bool:
    """Whether a run only asks golden sets: it holds no documents and sends no heartbeat."""
    return run.job_name == quality_job.name or run.asset_selection == {retrieval_quality.key}


def _figures(found: Standing) -> Iterator[tuple[str, dg.MetadataValue]]:
    kb = found.golden.kb_name
    if found.newest is None:
        return  # detached while it was asked
    for leg, measures in found.newest.figures.items():
        for measure_name, value in measures.items():
            yield f"{kb}/{leg}/{measure_name}", dg.MetadataValue.float(value)
    yield f"{kb}/questions", dg.MetadataValue.int(len(found.golden.questions))
    yield f"{kb}/missing_documents", dg.MetadataValue.int(len(found.newest.missing))


def _told(found: Standing) -> str:
    golden = found.golden
    missing = found.newest.missing if found.newest else ()
    lacking = f"; the knowledge base lacks {names_shown(missing)}" if missing else ""
    return (
        f"{golden.name} on {golden.kb_name}: {', '.join(map(str, found.fallen))}{lacking}. "
        f"If that is right, `rag-pipeline evaluate --accept {golden.kb_name}`."
    )
