"""Dagster on the embedded servers: a real webserver and daemon, a sensor, a run; commands with every server down."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from dagster import AssetKey, DagsterInstance, DagsterRunStatus, RunsFilter

from rag_pipeline.errors import ServerStartError
from rag_pipeline.local.dagster import project_file, start_dagster
from rag_pipeline.local.process import ProcessIdentity
from rag_pipeline.settings import Settings

PROJECT = project_file("dagster.yaml").parent
DEFINITIONS = """
import os
import dagster as dg

@dg.asset
def settings_seen(context: dg.AssetExecutionContext) -> None:
    context.add_output_metadata({"bucket": os.environ["RAG_S3_BUCKET"]})

@dg.sensor(target=settings_seen, minimum_interval_seconds=1, default_status=dg.DefaultSensorStatus.RUNNING)
def once(context):
    yield dg.RunRequest(run_key="only")

defs = dg.Definitions(assets=[settings_seen], sensors=[once])
"""


def test_a_sensor_starts_a_run_that_sees_the_settings_and_stop_leaves_no_process(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = tmp_path / "probe.py"
    probe.write_text(DEFINITIONS)
    with start_dagster(settings.model_copy(update={"webserver_port": 0}), definitions=probe) as dagster:
        assert httpx.get(dagster.webserver_url, trust_env=False).status_code == httpx.codes.OK
        with pytest.raises(ServerStartError, match=f"already runs.*{dagster.webserver_url}"):
            start_dagster(settings)
        for name, value in settings.as_environment().items():
            monkeypatch.setenv(name, value)
        with DagsterInstance.from_config(str(dagster.home)) as instance:
            finished = RunsFilter(statuses=[DagsterRunStatus.SUCCESS, DagsterRunStatus.FAILURE])
            deadline = time.monotonic() + 300
            while not (runs := instance.get_runs(finished)) and time.monotonic() < deadline:
                time.sleep(0.5)
            assert [run.status for run in runs] == [DagsterRunStatus.SUCCESS], log_of(dagster.home)
            event = instance.get_latest_materialization_event(AssetKey("settings_seen"))
            assert event
            assert event.asset_materialization
            assert event.asset_materialization.metadata["bucket"].value == settings.s3_bucket
        assert dagster.ended() == []
        daemon = next(process for process in dagster.processes if process.name == "daemon")
        os.kill(daemon.identity.pid, signal.SIGKILL)
        while daemon.is_alive():
            time.sleep(0.05)
        assert dagster.ended() == ["daemon"]
    assert not [process.identity.pid for process in dagster.processes if ProcessIdentity.of(process.identity.pid)]


@pytest.mark.parametrize(
    "variables", [{}, {"RAG_POSTGRES_URL": "postgresql://nobody:x@127.0.0.1:1/rag"}], ids=["no address", "server down"]
)
def test_definitions_load_without_any_server(tmp_path: Path, variables: dict[str, str]) -> None:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("RAG_", "DAGSTER_"))}
    result = subprocess.run(
        [Path(sys.executable).with_name("dg"), "check", "defs"],
        cwd=PROJECT,
        env={**inherited, "RAG_DATA_DIR": str(tmp_path), **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "All definitions loaded successfully" in result.stdout


def log_of(home: Path) -> str:
    """The daemon's log, for a failing test."""
    return (home.parent / "logs" / "daemon.log").read_text()[-3000:]
