"""The embedded servers together: PostgreSQL, S3 and Milvus Lite on 127.0.0.1, one set per data folder.

A server whose URL the user has set is not started. One lock per data folder serialises starts and stops, so two
commands never run two servers on the same files: the second one attaches. Which servers run, and who started them, is
known from process records, never from bare pids.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from filelock import FileLock

from rag_pipeline.errors import ServerStartError
from rag_pipeline.local import milvus, object_store, postgres
from rag_pipeline.local.credentials import HOST, Credentials, free_port, is_free
from rag_pipeline.local.files import ServerFolders, write_private
from rag_pipeline.local.process import ProcessSpec, RunningProcess, log_tail, recorded_process, start_process
from rag_pipeline.settings import Settings

START_ORDER = (postgres.NAME, object_store.NAME, milvus.NAME)
_READY_SECONDS = 120.0
"""Recovery of a large cluster after a crash takes tens of seconds; importing Milvus Lite on a busy machine, ten."""
_ATTEMPTS = 5
"""A port can be taken between choosing and binding; PostgreSQL's old workers need a moment to leave after kill -9."""
_GRACE_SECONDS = 20.0
"""PostgreSQL writes a checkpoint and Milvus Lite flushes before they end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStatus:
    """What is known about one embedded server."""

    name: str
    running: bool
    pid: int | None
    port: int | None
    detached: bool
    """True: it outlives the command that started it, until `rag-pipeline down`."""
    log: Path


@dataclass(frozen=True, slots=True)
class _Server:
    """How to start one server and know that it is up."""

    make_spec: Callable[[int], ProcessSpec]
    is_ready: Callable[[RunningProcess, int], bool]
    configured_port: int


class EmbeddedServers:
    """Starts what is missing, attaches to what runs, stops what it started.

    Not detached (the default): the servers also end when the process that called `start` is killed, on Linux when the
    thread that called `start` ends; call it from the main thread.
    """

    def __init__(self, *, detached: bool = False) -> None:
        self._detached = detached
        self._folders: ServerFolders | None = None
        self._started: dict[str, RunningProcess] = {}
        self._settings: Settings | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self, settings: Settings) -> Settings:
        """Start or attach, and return the settings with every URL filled. A second call changes nothing.

        Raises:
            ServerStartError: a server did not come up, or its configured port is taken; those started by this call
                have been stopped.
            ConfigurationError: nothing can be started here; the message says what to change.
        """
        if self._settings is not None:
            return self._settings
        folders = self._folders = ServerFolders.at(settings.data_dir)
        settings = settings.model_copy(update={"data_dir": folders.data_dir})
        with _lock(folders):
            try:
                self._start_missing(_without_embedded_urls(settings, folders), folders)
            except BaseException:
                self._stop_started(folders)
                raise
        self._settings = settings.with_embedded_servers()
        return self._settings

    def stop(self) -> None:
        """Stop what `start` started, in reverse order. Servers it only attached to go on."""
        self._settings = None
        if self._folders is not None and self._started:
            with _lock(self._folders):
                self._stop_started(self._folders)

    def status(self) -> list[ServerStatus]:
        """The servers of the data folder given to `start`; empty before."""
        return server_status(self._folders.data_dir) if self._folders else []

    @property
    def started(self) -> dict[str, RunningProcess]:
        """What this object started: name -> process."""
        return dict(self._started)

    def _start_missing(self, settings: Settings, folders: ServerFolders) -> None:
        credentials = Credentials.load_or_create(folders.credentials)
        servers = _servers(settings, folders, credentials)
        ports: dict[str, int] = {}
        for name, server in servers.items():
            port = _attach(folders, name)
            if port is None:
                port = _choose_port(name, server, credentials)
                self._started[name] = start_process(server.make_spec(port), detached=self._detached)
            ports[name] = port
        for name, server in servers.items():
            ports[name] = self._wait_until_ready(name, server, ports[name])
            credentials = credentials.with_port(name, ports[name])
        credentials.save(folders.credentials)
        if postgres.NAME in ports:
            postgres.create_databases(credentials, port=ports[postgres.NAME])
        if object_store.NAME in ports:
            object_store.create_bucket(credentials, port=ports[object_store.NAME], bucket=settings.s3_bucket)
        write_private(folders.addresses, json.dumps(_addresses(credentials, ports), indent=1))

    def _wait_until_ready(self, name: str, server: _Server, port: int) -> int:
        """Wait for one server, starting it again on another port if it ends or shares its port; return the port."""
        process = self._started.get(name)
        if process is None:  # attached; it may still be coming up only if its starter was killed, then it is an orphan
            return port
        deadline = time.monotonic() + _READY_SECONDS
        attempt = 1
        while not server.is_ready(process, port):
            shared = name == milvus.NAME and milvus.shares_port(process.identity.pid, port=port)
            if shared or not process.is_alive():
                log = process_log(self._folders, name)
                process.stop(grace_seconds=_GRACE_SECONDS)
                if attempt == _ATTEMPTS or (server.configured_port and not is_free(port)):
                    raise ServerStartError(f"{name} did not start on port {port}; the end of {log}:\n{log_tail(log)}")
                attempt += 1
                time.sleep(0.5)
                port = port if is_free(port) else free_port()
                process = self._started[name] = start_process(server.make_spec(port), detached=self._detached)
            if time.monotonic() > deadline:
                log = process_log(self._folders, name)
                raise ServerStartError(
                    f"{name} was not ready after {_READY_SECONDS:.0f} s on port {port}; the end of {log}:\n"
                    f"{log_tail(log)}"
                )
            time.sleep(0.05)
        return port

    def _stop_started(self, folders: ServerFolders) -> None:
        for name in reversed(START_ORDER):
            process = self._started.pop(name, None)
            if process is not None:
                process.stop(grace_seconds=_GRACE_SECONDS)
                _forget_address(folders, name)


def server_status(data_dir: Path) -> list[ServerStatus]:
    """The embedded servers of a data folder, running or not, in starting order."""
    folders = ServerFolders(data_dir.resolve())
    found = []
    for name in START_ORDER:
        process = recorded_process(folders.servers, name)
        alive = process is not None and process.is_alive()
        found.append(
            ServerStatus(
                name=name,
                running=alive,
                pid=process.identity.pid if process and alive else None,
                port=process.port if process and alive else None,
                detached=process is not None and alive and process.owner is None,
                log=folders.log(name),
            )
        )
    return found


def stop_servers(data_dir: Path) -> list[str]:
    """Stop every embedded server of a data folder, whoever started it; returns the names of those that ran."""
    if not ServerFolders(data_dir.resolve()).servers.exists():
        return []
    folders = ServerFolders.at(data_dir)
    stopped = []
    with _lock(folders):
        for name in reversed(START_ORDER):
            process = recorded_process(folders.servers, name)
            if process is not None:
                if process.is_alive():
                    stopped.append(name)
                process.stop(grace_seconds=_GRACE_SECONDS)
            _forget_address(folders, name)
    return stopped


def process_log(folders: ServerFolders | None, name: str) -> Path:
    """The log of a server that was started."""
    if folders is None:
        raise ValueError("start() has not been called")
    return folders.log(name)


def _lock(folders: ServerFolders) -> FileLock:
    return FileLock(folders.lock, mode=0o600, timeout=2 * _READY_SECONDS)


def _servers(settings: Settings, folders: ServerFolders, credentials: Credentials) -> dict[str, _Server]:
    """The servers that must run: those without a URL of the user's."""
    servers = {}
    if settings.postgres_url is None:
        _stop_orphan(folders, postgres.NAME)
        cluster = postgres.prepare(folders, credentials)
        servers[postgres.NAME] = _Server(
            lambda port: postgres.spec(folders, cluster, port=port),
            lambda _, port: postgres.is_ready(credentials, port=port),
            settings.postgres_port,
        )
    if settings.s3_endpoint is None:
        servers[object_store.NAME] = _Server(
            lambda port: object_store.spec(folders, credentials, port=port, region=settings.s3_region),
            lambda _, port: object_store.is_ready(credentials, port=port),
            settings.s3_port,
        )
    if settings.milvus_uri is None:
        servers[milvus.NAME] = _Server(
            lambda port: milvus.spec(folders, port=port),
            lambda process, port: milvus.is_ready(process.identity.pid, port=port),
            settings.milvus_port,
        )
    return servers


def _attach(folders: ServerFolders, name: str) -> int | None:
    """The port of a server that runs on purpose; what a killed command left behind is stopped."""
    _stop_orphan(folders, name)
    process = recorded_process(folders.servers, name)
    return process.port if process is not None and process.is_alive() else None


def _stop_orphan(folders: ServerFolders, name: str) -> None:
    process = recorded_process(folders.servers, name)
    if process is not None and (process.is_orphan() or not process.is_alive()):
        process.stop(grace_seconds=_GRACE_SECONDS)


def _choose_port(name: str, server: _Server, credentials: Credentials) -> int:
    if server.configured_port:
        if not is_free(server.configured_port):
            raise ServerStartError(
                f"port {server.configured_port} for {name} is taken: "
                f"stop what uses it, or unset RAG_{name.upper()}_PORT to take any free one"
            )
        return server.configured_port
    last = credentials.ports.get(name)
    return last if last and is_free(last) else free_port()


def _addresses(credentials: Credentials, ports: dict[str, int]) -> dict[str, dict[str, Any]]:
    """The content of servers.json, in the shape that `Settings.with_embedded_servers` reads."""
    found: dict[str, dict[str, Any]] = {}
    if postgres.NAME in ports:
        found["postgres"] = {
            "host": HOST,
            "port": ports[postgres.NAME],
            "user": postgres.USER,
            "password": credentials.postgres_password,
        }
    if object_store.NAME in ports:
        found["s3"] = {
            "endpoint": f"http://{HOST}:{ports[object_store.NAME]}",
            "access_key": credentials.s3_access_key,
            "secret_key": credentials.s3_secret_key,
        }
    if milvus.NAME in ports:
        found["milvus"] = {"uri": f"http://{HOST}:{ports[milvus.NAME]}"}
    return found


def _read_addresses(folders: ServerFolders) -> dict[str, dict[str, Any]]:
    try:
        found: dict[str, dict[str, Any]] = json.loads(folders.addresses.read_text())
    except FileNotFoundError:
        return {}
    return found


def _forget_address(folders: ServerFolders, name: str) -> None:
    """Take a stopped server out of servers.json: later its port may belong to somebody else's server."""
    found = _read_addresses(folders)
    if found.pop(name, None) is None:
        return
    if found:
        write_private(folders.addresses, json.dumps(found, indent=1))
    else:
        folders.addresses.unlink()


def _without_embedded_urls(settings: Settings, folders: ServerFolders) -> Settings:
    """Undo what `Settings.load` filled in from servers.json: such a URL is not one that the user has set."""
    bare = Settings.model_construct(data_dir=folders.data_dir).with_embedded_servers()
    changes: dict[str, None] = {
        name: None
        for name in ("postgres_url", "s3_endpoint", "milvus_uri")
        if getattr(settings, name) is not None and getattr(settings, name) == getattr(bare, name)
    }
    return settings.model_copy(update=changes)
