"""Everything Dagster loads. Loading connects to nothing: it works with every server down."""

import dagster as dg

from rag_pipeline.defs.assets import document_stages
from rag_pipeline.defs.jobs import documents_job
from rag_pipeline.defs.resources import ServicesResource
from rag_pipeline.defs.sensors import inbox, recovery, waiting_documents

defs = dg.Definitions(
    assets=[document_stages],
    jobs=[documents_job],
    sensors=[waiting_documents, inbox, recovery],
    resources={"services": ServicesResource()},
    executor=dg.in_process_executor,
)
