"""The job of the document assets: in one process, without retries of whole batches."""

import dagster as dg

from rag_pipeline.core.documents import Stage

documents_job = dg.define_asset_job(
    "documents_job",
    selection=dg.AssetSelection.assets(*[stage.value for stage in Stage]),
    executor_def=dg.in_process_executor,
    description="Documents from the original to READY. Run it for a range of partitions, or materialize single assets.",
    # A retry would repeat the whole batch; documents are retried one by one from their failed stage instead.
    tags={"dagster/max_retries": "0"},
)
