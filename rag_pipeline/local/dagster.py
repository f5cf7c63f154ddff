"""Dagster's webserver, daemon and code server as processes of ours, on the servers that the settings name.

DAGSTER_HOME is `{data_dir}/dagster_home` with a copy of the project's dagster.yaml. The processes, and the runs they
start, get the settings as `RAG_` variables, so the folder they run in does not matter.

The code server is shared by webserver and daemon. With a workspace that names a module, each starts its own, and the
daemon replaces its own every 60 s: 4-5 CPU seconds a minute for ever.
"""

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
import psycopg2
import psycopg2.sql
from filelock import FileLock, Timeout
from sqlalchemy import URL, make_url

from rag_pipeline.errors import ConfigurationError, ServerStartError
from rag_pipeline.local.credentials import HOST, accepts, free_port, is_free
from rag_pipeline.local.files import ServerFolders, write_private
from rag_pipeline.local.process import (
    ProcessIdentity,
    ProcessSpec,
    RunningProcess,
    log_tail,
    recorded_process,
    start_process,
)
from rag_pipeline.settings import Settings

CODE_SERVER = "code-server"
WEBSERVER = "webserver"
DAEMON = "daemon"
PROCESS_NAMES = (CODE_SERVER, WEBSERVER, DAEMON)
"""In the order in which they start."""
DEFINITIONS = "rag_pipeline.definitions"
_LOCATION = "rag_pipeline"
_HOME = "dagster_home"
_READY_SECONDS = 180.0
"""Loading the definitions takes some seconds on an idle machine; two cores shared with other work need many more."""
_GRACE_SECONDS = 15.0
_CODE_SERVER_GRACE_SECONDS = 2.0
"""It waits for its runs, which are ended after it and hand their documents back."""
_PORTS_TO_TRY = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class DagsterProcesses:
    """A running webserver, daemon and code server."""

    webserver_url: str
    home: Path
    """DAGSTER_HOME."""
    processes: tuple[RunningProcess, ...]
    _lock: FileLock
    _record: Path

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def ended(self) -> list[str]:
        """Names of the processes that have ended by themselves."""
        return [process.name for process in self.processes if not process.is_alive()]

    def stop(self) -> None:
        """Stop the daemon first, so that no new run starts; the code server last, with the runs it has started."""
        _stop(reversed_processes=self.processes[::-1])
        self._record.unlink(missing_ok=True)
        self._lock.release()


def start_dagster(settings: Settings, *, definitions: str | Path = DEFINITIONS) -> DagsterProcesses:
    """Start the code server, the webserver and the daemon and wait until the webserver answers.

    They end when this process is killed (Linux). What an earlier, killed command left is stopped first.

    Args:
        settings: with every server URL set; `EmbeddedServers.start` returns such.
        definitions: the module, or the Python file, with the Dagster definitions.

    Raises:
        ServerStartError: Dagster already runs for this data folder, or a process ended while it was starting.
        ConfigurationError: there is no database for Dagster and it cannot be created.
    """
    folders = ServerFolders.at(settings.data_dir)
    settings = settings.model_copy(update={"data_dir": folders.data_dir})
    lock = FileLock(folders.servers / "dagster.lock", mode=0o600, timeout=0)
    record = folders.servers / "dagster.json"
    try:
        lock.acquire()
    except Timeout as error:
        raise ServerStartError(f"Dagster already runs for {folders.data_dir}: {_describe(record)}") from error
    started: list[RunningProcess] = []
    try:
        stop_left_behind(folders)
        create_storage(settings)
        home = prepare_home(settings)
        ports = {CODE_SERVER: free_port(), WEBSERVER: _webserver_port(settings.webserver_port), DAEMON: 0}
        url = f"http://{HOST}:{ports[WEBSERVER]}"
        _write_workspace(home, ports[CODE_SERVER])
        for name, command in _commands(home, ports, definitions).items():
            spec = _spec(name, command, settings, folders, home, ports[name])
            started.append(start_process(spec, detached=False, environment_mark=_mark(folders)))
            if name == CODE_SERVER:
                # Who asks before it listens notes an error and tries again a minute later.
                _wait_until(lambda: accepts(ports[CODE_SERVER]), name, "listen", started, folders)
        write_private(record, json.dumps({"owner": asdict(_this_process()), "url": url}))
        _wait_until(lambda: _answers(url), WEBSERVER, f"answer on {url}", started, folders)
    except BaseException:
        _stop(reversed_processes=started[::-1])
        record.unlink(missing_ok=True)
        lock.release()
        raise
    return DagsterProcesses(webserver_url=url, home=home, processes=tuple(started), _lock=lock, _record=record)


def running_webserver(data_dir: Path) -> str | None:
    """Address of the webserver that another command runs for this data folder; None if none does."""
    folders = ServerFolders.at(data_dir)
    lock = FileLock(folders.servers / "dagster.lock", mode=0o600, timeout=0)
    try:
        with lock:
            return None
    except Timeout:
        return str(json.loads((folders.servers / "dagster.json").read_text())["url"])


def stop_dagster(data_dir: Path) -> list[str]:
    """Stop Dagster of a data folder: ask the command that runs it to end, then stop what is left.

    Returns:
        Names of what was stopped: `up` (or whichever command ran it), `code-server`, `webserver`, `daemon`.
    """
    folders = ServerFolders(data_dir.resolve())
    record = folders.servers / "dagster.json"
    stopped = []
    try:
        owner = ProcessIdentity(**json.loads(record.read_text())["owner"])
    except FileNotFoundError:
        owner = None
    if owner is not None and owner.is_alive() and owner.pid != os.getpid():
        os.kill(owner.pid, signal.SIGTERM)
        stopped.append("up")
        deadline = time.monotonic() + 120
        while owner.is_alive() and time.monotonic() < deadline:
            time.sleep(0.1)
    if folders.servers.exists():
        stopped += stop_left_behind(folders)
        record.unlink(missing_ok=True)
    return stopped


def stop_left_behind(folders: ServerFolders) -> list[str]:
    """Stop recorded Dagster processes and the runs they left; returns the names of those that still ran."""
    found = [process for name in PROCESS_NAMES if (process := recorded_process(folders.servers, name)) is not None]
    alive = [process.name for process in found if process.is_alive()]
    _stop(reversed_processes=found[::-1])
    return alive


def prepare_home(settings: Settings) -> Path:
    """Write DAGSTER_HOME with dagster.yaml, and return it."""
    home = settings.data_dir.resolve() / _HOME
    home.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(project_file("dagster.yaml"), home / "dagster.yaml")
    return home


def dagster_environment(settings: Settings, home: Path) -> dict[str, str]:
    """What a Dagster process needs in its environment."""
    return {**settings.as_environment(), "DAGSTER_HOME": str(home), "DAGSTER_DISABLE_TELEMETRY": "1"}


def project_file(name: str) -> Path:
    """A file of the repository root: beside the package in a checkout, below `share` when installed from a wheel."""
    candidates = (Path(__file__).parents[2] / name, Path(sys.prefix) / "share" / "rag-pipeline" / name)
    for path in candidates:
        if path.exists():
            return path
    raise ConfigurationError(f"{name} was not found in {candidates[0].parent} or {candidates[1].parent}: reinstall")


def create_storage(settings: Settings) -> None:
    """Create Dagster's database and tables if they are missing, before two processes try to at once.

    Raises:
        ConfigurationError: the database is missing and may not be created.
    """
    url = make_url(settings.require_dagster_postgres())
    plain = url.set(drivername="postgresql").render_as_string(hide_password=False)
    try:
        _create_tables(plain, url.render_as_string(hide_password=False))
    except psycopg2.OperationalError:
        _create_database(make_url(settings.require_postgres()).set(drivername="postgresql"), url.database or "dagster")
        _create_tables(plain, url.render_as_string(hide_password=False))


def _create_tables(plain_url: str, url: str) -> None:
    connection = psycopg2.connect(plain_url, connect_timeout=10)
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT to_regclass('runs'), to_regclass('event_logs'), to_regclass('jobs')")
            complete = None not in (cursor.fetchone() or (None,))
    finally:
        connection.close()
    if not complete:
        from dagster_postgres import DagsterPostgresStorage

        DagsterPostgresStorage(postgres_url=url)


def _create_database(url: URL, name: str) -> None:
    try:
        connection = psycopg2.connect(url.render_as_string(hide_password=False), connect_timeout=10)
    except psycopg2.OperationalError as error:
        raise ConfigurationError(f"PostgreSQL does not answer: {error}; check RAG_POSTGRES_URL") from error
    try:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(psycopg2.sql.SQL("CREATE DATABASE {}").format(psycopg2.sql.Identifier(name)))
    except psycopg2.Error as error:
        raise ConfigurationError(
            f"Dagster's database {name!r} is missing and could not be created ({str(error).strip()}): "
            "create it, or set RAG_DAGSTER_POSTGRES_URL"
        ) from error
    finally:
        connection.close()


def _write_workspace(home: Path, code_server_port: int) -> None:
    server = {"host": HOST, "port": code_server_port, "location_name": _LOCATION}
    # JSON is YAML, too.
    (home / "workspace.yaml").write_text(json.dumps({"load_from": [{"grpc_server": server}]}))


def _commands(home: Path, ports: Mapping[str, int], definitions: str | Path) -> dict[str, tuple[str, ...]]:
    """Arguments of `python -m` by process, in the order of starting."""
    where = ("--python-file", str(definitions)) if isinstance(definitions, Path) else ("--module-name", definitions)
    workspace = ("--workspace", str(home / "workspace.yaml"))
    address = ("--host", HOST, "--port", str(ports[CODE_SERVER]))
    return {
        CODE_SERVER: ("dagster", "api", "grpc", *address, *where, "--use-python-environment-entry-point"),
        WEBSERVER: ("dagster_webserver", "--host", HOST, "--port", str(ports[WEBSERVER]), *workspace),
        DAEMON: ("dagster._daemon", "run", *workspace),
    }


def _spec(
    name: str, command: Sequence[str], settings: Settings, folders: ServerFolders, home: Path, port: int
) -> ProcessSpec:
    return ProcessSpec(
        name=name,
        command=(sys.executable, "-m", *command),
        environment=dagster_environment(settings, home),
        folder=folders.servers,
        log=folders.log(name),
        port=port,
        working_dir=Path.cwd(),
        # Asked to end, it first notes its runs in the database, and waits for ever when that has ended, too.
        death_signal=signal.SIGKILL if name == CODE_SERVER else signal.SIGINT,
    )


def _wait_until(
    is_ready: Callable[[], bool], name: str, what: str, started: Sequence[RunningProcess], folders: ServerFolders
) -> None:
    """Wait for a process to do something.

    Raises:
        ServerStartError: one of the processes has ended, or the named one did not do it in time.
    """
    deadline = time.monotonic() + _READY_SECONDS
    while not is_ready():
        for process in started:
            if not process.is_alive():
                raise ServerStartError(f"Dagster's {process.name} ended; {_end_of_log(process.name, folders)}")
        if time.monotonic() > deadline:
            raise ServerStartError(
                f"Dagster's {name} did not {what} within {_READY_SECONDS:.0f} s; {_end_of_log(name, folders)}"
            )
        time.sleep(0.1)


def _end_of_log(name: str, folders: ServerFolders) -> str:
    log = folders.log(name)
    return f"the end of {log}:\n{log_tail(log)}"


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/server_info", timeout=5, trust_env=False).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


def _webserver_port(wanted: int) -> int:
    if wanted == 0:
        return free_port()
    last = min(wanted + _PORTS_TO_TRY, 65_536)
    return next((port for port in range(wanted, last) if is_free(port)), None) or free_port()


def _stop(*, reversed_processes: Sequence[RunningProcess]) -> None:
    for process in reversed_processes:
        process.stop(grace_seconds=_CODE_SERVER_GRACE_SECONDS if process.name == CODE_SERVER else _GRACE_SECONDS)


def _mark(folders: ServerFolders) -> tuple[str, str]:
    return ("RAG_DATA_DIR", str(folders.data_dir))


def _this_process() -> ProcessIdentity:
    identity = ProcessIdentity.of(os.getpid())
    if identity is None:
        raise RuntimeError("this process is not in the process table")
    return identity


def _describe(record: Path) -> str:
    try:
        found = json.loads(record.read_text())
    except FileNotFoundError:
        return "it is just starting"
    return f"{found['url']}, process {found['owner']['pid']}; `rag-pipeline down` stops it"
