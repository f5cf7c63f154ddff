"""How outcomes look on the pages of the Dagster UI."""

from collections.abc import Mapping

import dagster as dg

from rag_pipeline.core.documents import Stage
from rag_pipeline.core.work import OutcomeKind, StageOutcome

_HIDDEN = frozenset({"warnings", "preview", "seconds"})
_ROW_COUNTS: Mapping[Stage, str] = {
    Stage.PARSED_BLOCKS: "blocks",
    Stage.CHUNKS: "chunks",
    Stage.EMBEDDINGS: "vectors",
    Stage.INDEX_WRITES: "rows",
}
"""Which number of the summary is Dagster's own `dagster/row_count`, plotted over time on the asset's page."""


def event_of(outcome: StageOutcome) -> dg.AssetMaterialization | dg.AssetObservation:
    """The Dagster event of an outcome: a materialization of what is there, or an observation of why it is not."""
    if outcome.kind in (OutcomeKind.DONE, OutcomeKind.UNCHANGED, OutcomeKind.EMPTY):
        return dg.AssetMaterialization(
            asset_key=outcome.stage.value,
            partition=outcome.item.partition_key,
            description=_DESCRIPTIONS.get(outcome.kind),
            metadata=_metadata(outcome),
        )
    return dg.AssetObservation(
        asset_key=outcome.stage.value,
        partition=outcome.item.partition_key,
        description=f"{outcome.kind}: {outcome.error}",
        metadata={**_identity(outcome), **_error(outcome)},
    )


_DESCRIPTIONS = {
    OutcomeKind.UNCHANGED: "Nothing to do: same input, code and configuration",
    OutcomeKind.EMPTY: "No content to go on with",
}


def _metadata(outcome: StageOutcome) -> dict[str, dg.MetadataValue]:
    summary = outcome.summary
    shown = {key: _value(value) for key, value in summary.items() if key not in _HIDDEN and value is not None}
    row_count = summary.get(_ROW_COUNTS.get(outcome.stage, ""))
    if isinstance(row_count, int):
        shown["dagster/row_count"] = dg.MetadataValue.int(row_count)
    warnings = summary.get("warnings")
    if isinstance(warnings, list) and warnings:
        shown["warnings"] = dg.MetadataValue.md("\n".join(f"* {warning}" for warning in warnings))
    preview = summary.get("preview")
    if isinstance(preview, str) and preview:
        shown["preview"] = dg.MetadataValue.md(_quoted(preview))
    if outcome.artefact_key and outcome.stage is not Stage.CHUNK_SNAPSHOT:
        shown["artefact"] = dg.MetadataValue.text(outcome.artefact_key)
    if outcome.kind is OutcomeKind.DONE:
        shown["milliseconds"] = dg.MetadataValue.int(outcome.milliseconds)
    return {**_identity(outcome), **shown}


def _identity(outcome: StageOutcome) -> dict[str, dg.MetadataValue]:
    item = outcome.item
    return {
        "document": dg.MetadataValue.text(f"{item.kb_name}/{item.source_path}"),
        "document_id": dg.MetadataValue.text(item.document_id),
        "version": dg.MetadataValue.int(item.version),
        "attempt": dg.MetadataValue.int(item.attempt),
    }


def _error(outcome: StageOutcome) -> dict[str, dg.MetadataValue]:
    error = outcome.error
    if error is None:
        return {}
    return {
        "error": dg.MetadataValue.text(str(error)),
        "error_code": dg.MetadataValue.text(error.code),
        "error_class": dg.MetadataValue.text(error.error_class),
    }


def _value(value: object) -> dg.MetadataValue:
    if isinstance(value, bool):
        return dg.MetadataValue.bool(value)
    if isinstance(value, int):
        return dg.MetadataValue.int(value)
    if isinstance(value, float):
        return dg.MetadataValue.float(value)
    if isinstance(value, str):
        return dg.MetadataValue.text(value)
    return dg.MetadataValue.json(value)  # type: ignore[arg-type]


def _quoted(text: str) -> str:
    """Document text as a Markdown quotation: it is data, so its own Markdown is not rendered."""
    return "\n".join(f"    {line}" for line in text.splitlines())
