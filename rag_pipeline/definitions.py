"""Everything Dagster loads. Loading connects to nothing: it works with every server down."""

import dagster as dg

from rag_pipeline.defs.assets import document_stages
from rag_pipeline.defs.generation import generation_job, index_generation, next_generation
from rag_pipeline.defs.golden import quality_job, quality_schedule, retrieval_quality, retrieval_quality_holds
from rag_pipeline.defs.jobs import documents_job
from rag_pipeline.defs.reconciliation import (
    exact_words_are_found,
    reconcile_job,
    reconcile_schedule,
    stores,
    stores_agree,
)
from rag_pipeline.defs.resources import ServicesResource
from rag_pipeline.defs.sensors import inbox, recovery, removal, waiting_documents

defs = dg.Definitions(
    assets=[document_stages, index_generation, retrieval_quality, stores],
    asset_checks=[stores_agree, exact_words_are_found, retrieval_quality_holds],
    jobs=[documents_job, generation_job, quality_job, reconcile_job],
    schedules=[reconcile_schedule, quality_schedule],
    sensors=[waiting_documents, inbox, recovery, removal, next_generation],
    resources={"services": ServicesResource()},
    executor=dg.in_process_executor,
)
