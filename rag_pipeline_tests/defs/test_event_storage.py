"""Batches of events in Dagster's PostgreSQL storage: all of them stored, with few statements."""

import time
from collections.abc import Iterator

import dagster as dg
import pytest
import sqlalchemy as sa
from dagster import AssetKey, DagsterEvent, DagsterEventType, EventLogEntry
from dagster._core.events import AssetMaterializationPlannedData, StepMaterializationData

from rag_pipeline.defs.event_storage import BatchedEventLogStorage
from rag_pipeline.local.dagster import create_storage
from rag_pipeline.settings import Settings

DOCUMENTS = [f"kb.file-{number}.txt~{number:012x}" for number in range(40)]


@pytest.fixture
def storage(settings: Settings) -> Iterator[BatchedEventLogStorage]:
    """The event log of Dagster's database."""
    create_storage(settings)
    found = BatchedEventLogStorage(settings.require_dagster_postgres(), should_autocreate_tables=True)
    yield found
    found.dispose()


@pytest.mark.parametrize(
    "kind", [DagsterEventType.ASSET_MATERIALIZATION_PLANNED, DagsterEventType.ASSET_MATERIALIZATION]
)
def test_a_batch_over_two_assets_is_stored_whole_with_few_statements(
    storage: BatchedEventLogStorage, kind: DagsterEventType
) -> None:
    assets = [AssetKey(f"{kind.value.lower()}-{name}") for name in ("first", "second")]
    run_id = f"run-{kind.value}"
    statements: list[str] = []
    sa.event.listen(storage._engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    storage.store_event_batch([entry(kind, asset, document, run_id) for asset in assets for document in DOCUMENTS])
    assert len(statements) < 20
    records = storage.get_records_for_run(run_id).records
    events = [record.event_log_entry.get_dagster_event() for record in records]
    assert [(event.asset_key, event.partition) for event in events] == [
        (asset, document) for asset in assets for document in DOCUMENTS
    ]
    for asset in assets:
        [found] = storage.get_asset_records([asset])
        assert found.asset_entry.last_run_id == run_id
        if kind is DagsterEventType.ASSET_MATERIALIZATION:
            assert found.asset_entry.last_materialization
            assert found.asset_entry.last_materialization.get_dagster_event().partition == DOCUMENTS[-1]


def entry(kind: DagsterEventType, asset: AssetKey, document: str, run_id: str) -> EventLogEntry:
    data = (
        AssetMaterializationPlannedData(asset_key=asset, partition=document)
        if kind is DagsterEventType.ASSET_MATERIALIZATION_PLANNED
        else StepMaterializationData(dg.AssetMaterialization(asset, partition=document))
    )
    return EventLogEntry(  # type: ignore[no-untyped-call]
        error_info=None,
        level=10,
        user_message="",
        run_id=run_id,
        timestamp=time.time(),
        step_key="step",
        job_name="job",
        dagster_event=DagsterEvent(
            event_type_value=kind.value, job_name="job", step_key="step", event_specific_data=data, message=""
        ),
    )
