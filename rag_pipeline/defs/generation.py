"""The next generation as an asset: runs of bounded length fill it until it answers, one at a time."""

import dagster as dg

from rag_pipeline.evaluation.golden_sets import refusal
from rag_pipeline.stages.generation import GenerationRun, build_generation
from rag_pipeline.stages.services import Services

FILL_SECONDS = 120.0
"""A run ends after this and another goes on: it takes turns with the runs of documents for a place in the queue."""
FAILURES_SHOWN = 20
_UNFINISHED = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]


@dg.asset(
    deps=["index_writes"],
    group_name="documents",
    kinds={"milvus", "numpy"},
    owners=["team:data-engineering"],
    description="All live documents in the collection of the next embedder or analyzer, beside the one that answers.",
)
def index_generation(
    context: dg.AssetExecutionContext, services: dg.ResourceParam[Services]
) -> dg.MaterializeResult[None]:
    """Fill the next collection for a while, and switch to it when nothing is missing and no golden set objects."""
    run = build_generation(services, seconds=FILL_SECONDS, may_switch=refusal)
    if run is None:
        return dg.MaterializeResult(metadata={"note": "Nothing is to be filled, or another run does it."})
    context.log.info("%s: %d documents, %d rows, %d left", run.collection, run.documents, run.rows, run.left)
    if run.failures or run.refusal is not None:
        raise dg.Failure(description=_reasons(run), metadata=_metadata(run), allow_retries=False)
    return dg.MaterializeResult(metadata=_metadata(run))


generation_job = dg.define_asset_job(
    "generation_job",
    selection=dg.AssetSelection.assets(index_generation),
    executor_def=dg.in_process_executor,
    description="Fills the collection of the next embedder or analyzer, then lets it answer.",
    tags={"dagster/max_retries": "0"},
)


@dg.sensor(
    job=generation_job,
    minimum_interval_seconds=5,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Starts the next run of index_generation while the collection of RAG_NEXT_... is being filled.",
)
def next_generation(
    context: dg.SensorEvaluationContext, services: dg.ResourceParam[Services]
) -> dg.RunRequest | dg.SkipReason:
    """One run at a time; what is to be done is in PostgreSQL, so each goes on where the one before stopped."""
    found = services.facts.next_generations.filling()
    if found is None:
        return dg.SkipReason("No generation is being filled.")
    if services.upcoming is None or not services.upcoming.fills(found.generation, found.embedder):
        return dg.SkipReason(
            f"{found.generation.collection} is to be filled by {found.embedder}, which the RAG_NEXT_ variables of this "
            "process do not name."
        )
    if found.refusal is not None:
        return dg.SkipReason(f"The switch was refused: {found.refusal}. `rag-pipeline reindex --next` tries it again.")
    if not found.is_due:
        return dg.SkipReason("A run has failed; the next one begins a minute after it.")
    if context.instance.get_runs(dg.RunsFilter(job_name=generation_job.name, statuses=_UNFINISHED), limit=1):
        return dg.SkipReason("A run is on it.")
    return dg.RunRequest()


def is_generation_run(run: dg.DagsterRun) -> bool:
    """Whether a run only fills the next generation: it holds no documents and sends no heartbeat."""
    return run.job_name == generation_job.name or run.asset_selection == {index_generation.key}


def _metadata(run: GenerationRun) -> dict[str, dg.MetadataValue]:
    return {
        "collection": dg.MetadataValue.text(run.collection),
        "documents": dg.MetadataValue.int(run.documents),
        "rows": dg.MetadataValue.int(run.rows),
        "embedded": dg.MetadataValue.int(run.embedded),
        "left": dg.MetadataValue.int(run.left),
        "seconds": dg.MetadataValue.float(round(run.seconds, 3)),
        "answers": dg.MetadataValue.bool(run.is_switched),
        "failed": dg.MetadataValue.int(len(run.failures)),
    }


def _reasons(run: GenerationRun) -> str:
    """What the run's page shows first."""
    if run.refusal is not None:
        return f"{run.collection} is filled, but the switch to it was refused: {run.refusal}"
    lines = [f"{item.partition_key}: {error}" for item, error in run.failures[:FAILURES_SHOWN]]
    more = len(run.failures) - len(lines)
    if more > 0:
        lines.append(f"... and {more} more")
    return f"{len(run.failures)} documents could not be moved to {run.collection}:\n" + "\n".join(lines)
