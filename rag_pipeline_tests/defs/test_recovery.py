"""Recovery of batches whose run is gone, on the real stores and Dagster's own database."""

from collections.abc import Iterator, Sequence

import dagster as dg
import pytest
import sqlalchemy as sa

from rag_pipeline.adapters.postgres.schema import batches
from rag_pipeline.core.documents import Stage, Status
from rag_pipeline.core.work import StageOutcome
from rag_pipeline.defs.recovery import recover
from rag_pipeline.local.dagster import create_storage, prepare_home
from rag_pipeline.settings import Settings
from rag_pipeline_tests.stages.runner import Runner, running


class KilledError(Exception):
    """The run's process ends here."""


@pytest.fixture
def runner(settings: Settings) -> Iterator[Runner]:
    with running(settings) as found:
        yield found


@pytest.fixture
def instance(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> Iterator[dg.DagsterInstance]:
    settings = runner.system.settings
    create_storage(settings)
    for name, value in settings.as_environment().items():
        monkeypatch.setenv(name, value)
    with dg.DagsterInstance.from_config(str(prepare_home(settings))) as found:
        yield found


def test_a_run_that_died_between_ready_and_its_last_report_leaves_green_assets(
    runner: Runner, instance: dg.DagsterInstance
) -> None:
    document = runner.submit("a.txt", "Text of a document.")

    def report(stage: Stage, outcomes: Sequence[StageOutcome]) -> None:
        if stage is Stage.INDEX_WRITES:
            raise KilledError

    with pytest.raises(KilledError):
        runner.run_queued(report)
    assert runner.now(document).status is Status.READY
    # A killed process does not close its batch.
    with runner.services.facts.engine.begin() as connection:
        connection.execute(sa.update(batches).values(state="RUNNING", heartbeat_at=sa.text("now() - interval '1 day'")))
    found = recover(instance, runner.services)
    assert found.events_logged == len(Stage)
    for stage in Stage:
        assert instance.get_materialized_partitions(dg.AssetKey(stage.value)) == {document.partition_key}
    event = instance.get_latest_materialization_event(dg.AssetKey(Stage.INDEX_WRITES.value))
    assert event
    assert event.asset_materialization
    assert event.asset_materialization.metadata["rows"].value == 1
    assert recover(instance, runner.services).events_logged == 0
