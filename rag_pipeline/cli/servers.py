"""`rag-pipeline up` and `rag-pipeline down`."""

import shlex
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Annotated

import typer

from rag_pipeline.errors import RagPipelineError
from rag_pipeline.local.dagster import PROCESS_NAMES, DagsterProcesses, prepare_home, start_dagster, stop_dagster
from rag_pipeline.local.files import ServerFolders
from rag_pipeline.local.log_follower import LogFollower
from rag_pipeline.local.servers import EmbeddedServers, stop_servers
from rag_pipeline.settings import Settings

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command()(up)
    app.command()(down)


def up(
    servers_only: Annotated[
        bool, typer.Option("--servers-only", help="Start the servers in the background and return; no Dagster.")
    ] = False,
) -> None:
    """Run the embedded servers, Dagster's web page and its daemon until Ctrl-C."""
    try:
        settings = Settings.load()
        if servers_only:
            _start_in_background(settings)
            return
        healthy = _run_until_stopped(settings)
    except RagPipelineError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from error
    if not healthy:
        raise typer.Exit(1)


def down() -> None:
    """Stop everything that runs for this data folder, also what a killed `up` left behind."""
    try:
        data_dir = Settings.load().data_dir
        stopped = [*stop_dagster(data_dir), *stop_servers(data_dir)]
    except RagPipelineError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from error
    typer.echo(f"stopped: {', '.join(stopped)}" if stopped else f"nothing runs for {data_dir.resolve()}")


class _StopRequestedError(BaseException):
    """A signal asked us to end; not an Exception, so that no handler of a library swallows it."""


@contextmanager
def _stop_on_signals() -> Iterator[None]:
    """Turn the first signal into `_StopRequestedError`; later ones are ignored while things are being stopped."""

    def request_stop(_number: int, _frame: FrameType | None) -> None:
        for number in _STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        raise _StopRequestedError

    # Under nohup SIGHUP is ignored and must stay so.
    signals = [n for n in _STOP_SIGNALS if n != signal.SIGHUP or signal.getsignal(n) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, request_stop) for number in signals}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _start_in_background(settings: Settings) -> None:
    servers = EmbeddedServers(detached=True)
    settings = servers.start(settings)
    _migrate(settings)
    home = prepare_home(settings)
    for status in servers.status():
        if status.running:
            typer.echo(f"{status.name:<8} 127.0.0.1:{status.port}  process {status.pid}  log {status.log}")
    typer.echo(f"Start Dagster with: DAGSTER_HOME={shlex.quote(str(home))} dagster dev -w workspace.yaml")
    typer.echo("Stop the servers with: rag-pipeline down")


def _run_until_stopped(settings: Settings) -> bool:
    """Start all, wait, stop all in reverse order. False: something ended by itself."""
    folders = ServerFolders.at(settings.data_dir)
    logs = {name: folders.log(name) for name in PROCESS_NAMES}
    try:
        with _stop_on_signals(), LogFollower(logs, typer.echo), EmbeddedServers() as servers:
            _say("starting the servers")
            settings = servers.start(settings)
            _migrate(settings)
            _say("starting Dagster")
            with start_dagster(settings) as dagster:
                _say(f"ready: {dagster.webserver_url}  (Ctrl-C stops everything)")
                _test_words(settings)
                ended = _wait_for_end(dagster, servers)
                _say(f"{', '.join(ended)} ended by itself: see {folders.logs}; stopping the rest")
    except _StopRequestedError:
        _say("stopped")
        return True
    return False


def _wait_for_end(dagster: DagsterProcesses, servers: EmbeddedServers) -> list[str]:
    while True:
        ended = dagster.ended() + [name for name, process in servers.started.items() if not process.is_alive()]
        if ended:
            return ended
        time.sleep(0.5)


def _migrate(settings: Settings) -> None:
    from rag_pipeline.adapters.postgres.schema import migrate

    migrate(settings.require_postgres())


def _test_words(settings: Settings) -> None:
    """Say so when BM25 is deaf to a language; everything else works all the same."""
    from rag_pipeline.stages.self_test import missed_terms, told
    from rag_pipeline.stages.services import Services

    with Services.from_settings(settings) as services:
        try:
            _say(told(missed_terms(services), services.serving().settings.analyzer))
        except RagPipelineError as error:
            _say(f"could not try whether BM25 finds words: {error}")


def _say(text: str) -> None:
    typer.echo(f"{time.strftime('%H:%M:%S')} {'up':<11} | {text}")
