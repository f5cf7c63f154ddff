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
    is_ready: Callable[[RunningProcess], bool]
    must_restart: Callable[[RunningProcess], bool]
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
        processes = {}
        for name, server in servers.items():
            _stop_orphan(folders, name)
            running = recorded_process(folders.servers, name)
            processes[name] = running or self._launch(name, server, _choose_port(name, server, credentials))
        ports = {name: self._wait_until_ready(folders, servers[name], processes[name]) for name in servers}
        for name, port in ports.items():
            credentials = credentials.with_port(name, port)
        credentials.save(folders.credentials)
        if postgres.NAME in ports:
            postgres.create_databases(credentials, port=ports[postgres.NAME])
        if object_store.NAME in ports:
            object_store.create_bucket(credentials, port=ports[object_store.NAME], bucket=settings.s3_bucket)
        write_private(folders.addresses, json.dumps(_addresses(credentials, ports), indent=1))

    def _launch(self, name: str, server: _Server, port: int) -> RunningProcess:
        process = self._started[name] = start_process(server.make_spec(port), detached=self._detached)
        return process

    def _wait_until_ready(self, folders: ServerFolders, server: _Server, process: RunningProcess) -> int:
        """Wait for a server, started or attached to; start it again if it ends or shares its port; return the port."""
        name, log = process.name, folders.log(process.name)
        deadline = time.monotonic() + _READY_SECONDS
        attempt = 1
        while not server.is_ready(process):
            if time.monotonic() > deadline:
                raise ServerStartError(
                    f"{name} was not ready after {_READY_SECONDS:.0f} s on port {process.port}; the end of {log}:\n"
                    f"{log_tail(log)}"
                )
            if server.must_restart(process):
                process.stop(grace_seconds=_GRACE_SECONDS)
                if attempt == _ATTEMPTS:
                    raise ServerStartError(
                        f"{name} did not start on port {process.port}; the end of {log}:\n{log_tail(log)}"
                    )
                attempt += 1
                time.sleep(0.5)
                process = self._launch(name, server, _next_port(name, server, process.port))
            time.sleep(0.05)
        return process.port

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
            lambda process: postgres.is_ready(credentials, port=process.port),
            _has_ended,
            settings.postgres_port,
        )
    if settings.s3_endpoint is None:
        servers[object_store.NAME] = _Server(
            lambda port: object_store.spec(folders, credentials, port=port, region=settings.s3_region),
            lambda process: object_store.is_ready(credentials, port=process.port),
            _has_ended,
            settings.s3_port,
        )
    if settings.milvus_uri is None:
        servers[milvus.NAME] = _Server(
            lambda port: milvus.spec(folders, port=port),
            lambda process: milvus.is_ready(process.identity.pid, port=process.port),
            lambda process: _has_ended(process) or milvus.shares_port(process.identity.pid, port=process.port),
            settings.milvus_port,
        )
    return servers


def _has_ended(process: RunningProcess) -> bool:
    return not process.is_alive()


def _stop_orphan(folders: ServerFolders, name: str) -> None:
    process = recorded_process(folders.servers, name)
    if process is not None and (process.is_orphan() or _has_ended(process)):
        process.stop(grace_seconds=_GRACE_SECONDS)


def _choose_port(name: str, server: _Server, credentials: Credentials) -> int:
    """The configured port, else the one used last if it is free, else any."""
    return _next_port(name, server, credentials.ports.get(name, 0))


def _next_port(name: str, server: _Server, last: int) -> int:
    wanted = server.configured_port or last
    if wanted and is_free(wanted):
        return wanted
    if server.configured_port:
        raise ServerStartError(
            f"port {wanted} for {name} is taken: "
            f"stop what uses it, or unset RAG_{name.upper()}_PORT to take any free one"
        )
    return free_port()


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
