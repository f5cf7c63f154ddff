"""The job of the document assets, in one process, without retries of whole batches; and how others are bounded."""

from collections.abc import Mapping

import dagster as dg

from rag_pipeline.core.documents import Stage

MOST_RUN_SECONDS = 3_600
BOUNDED_RUN: Mapping[str, str] = {"dagster/max_retries": "0", "dagster/max_runtime": str(MOST_RUN_SECONDS)}
"""Tags of jobs that hold no documents: recovery does not see that the process of such a run was killed, and it would
keep its slot in the queue for ever."""

documents_job = dg.define_asset_job(
    "documents_job",
    selection=dg.AssetSelection.assets(*[stage.value for stage in Stage]),
    executor_def=dg.in_process_executor,
    description="Documents from the original to READY. Run it for a range of partitions, or materialize single assets.",
    # A retry would repeat the whole batch; documents are retried one by one from their failed stage instead.
    tags={"dagster/max_retries": "0"},
)
