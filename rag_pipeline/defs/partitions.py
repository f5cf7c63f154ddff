"""One dynamic partition per document, keyed `{knowledge base}.{file name}~{12 hex of the document id}`."""

import dagster as dg

DOCUMENTS = dg.DynamicPartitionsDefinition(name="documents")
RANGE_START_TAG = "dagster/asset_partition_range_start"
RANGE_END_TAG = "dagster/asset_partition_range_end"
