"""Dagster's storage in PostgreSQL, at the address that the settings give when a connection is made.

The stock storage takes its URL from dagster.yaml and connects when it is constructed, so nothing of Dagster loads
without that variable or while the server is down, not even `dg check defs`.
"""

# ruff: noqa: ARG002, ARG003 - the signatures are Dagster's

import functools
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import psycopg2
from dagster._config import UserConfigSchema
from dagster._core.storage.defs_state.base import DefsStateStorage
from dagster._serdes import ConfigurableClass, ConfigurableClassData
from dagster_postgres import DagsterPostgresStorage
from dagster_shared.serdes.objects.models.defs_state_info import DefsStateInfo
from sqlalchemy import make_url
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.postgresql.psycopg2 import PGDialect_psycopg2
from sqlalchemy.engine.interfaces import DBAPIConnection

from rag_pipeline.defs.event_storage import BatchedEventLogStorage
from rag_pipeline.errors import ConfigurationError
from rag_pipeline.settings import Settings

IDLE_SECONDS = 30.0
ADDRESS_SECONDS = 2.0
MOST_IDLE_CONNECTIONS = 8
EVENTS_PER_BATCH = "1000"
_LAZY_URL = "postgresql+rag_settings://"
_NO_STATE = "this instance keeps no state of components: remove `defs_state_storage` from dagster.yaml to keep some"


class IdleConnections:
    """Connections that Dagster has closed, kept for its next request.

    Dagster's storage uses no pool: a new connection, with a new backend process and a SCRAM login, for every request of
    every daemon, sensor and page. Measured on an idle embedded system, that was most of its CPU time.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: list[tuple[int, str, float, Any]] = []

    def take(self, address: str) -> Any | None:
        """A working connection of this process to that address, None if there is none."""
        while True:
            with self._lock:
                if not self._kept:
                    return None
                process, kept_address, since, connection = self._kept.pop()
            is_ours = process == os.getpid() and kept_address == address
            if is_ours and time.monotonic() - since < IDLE_SECONDS and _is_alive(connection):
                return connection
            if process == os.getpid():
                connection.close()

    def keep(self, address: str, connection: Any) -> None:
        """Keep a connection, or close it when enough are kept."""
        connection.rollback()
        with self._lock:
            if len(self._kept) < MOST_IDLE_CONNECTIONS:
                self._kept.append((os.getpid(), address, time.monotonic(), connection))
                return
        connection.close()


class SettingsDialect(PGDialect_psycopg2):
    """psycopg2, connecting to `Settings.require_dagster_postgres()` as it is at that moment."""

    _idle = IdleConnections()

    driver = "rag_settings"
    supports_statement_cache = True

    def connect(self, *_positional: Any, **_named: Any) -> DBAPIConnection:
        """Open a connection. Raises `ConfigurationError` when no server is configured or running."""
        address = _address()
        connection = self._idle.take(address)
        if connection is None:
            positional, named = self.create_connect_args(make_url(address))  # type: ignore[no-untyped-call]
            connection = super().connect(*positional, **named)
        return cast("DBAPIConnection", connection)

    def do_close(self, dbapi_connection: Any) -> None:
        """Keep a connection that still works for the next request."""
        if dbapi_connection.closed:
            return
        try:
            self._idle.keep(_address(), dbapi_connection)
        except (psycopg2.Error, ConfigurationError):
            dbapi_connection.close()


class SettingsPostgresStorage(DagsterPostgresStorage):
    """The storage named in dagster.yaml. Creates its tables when the server answers at construction."""

    def __init__(
        self, postgres_url: str, should_autocreate_tables: bool = True, inst_data: ConfigurableClassData | None = None
    ) -> None:
        super().__init__(postgres_url, should_autocreate_tables, inst_data)
        self._event_log_storage = BatchedEventLogStorage(postgres_url, should_autocreate_tables)

    @classmethod
    def config_type(cls) -> UserConfigSchema:
        """No configuration: everything is in the settings."""
        return {}

    @classmethod
    def from_config_value(
        cls, inst_data: ConfigurableClassData | None, config_value: Mapping[str, Any]
    ) -> "SettingsPostgresStorage":
        """Called by Dagster in each of its processes.

        Dagster writes the planned events of a range run in batches only where this variable is set; one by one, a run
        of 128 documents takes a minute to create.
        """
        os.environ.setdefault("DAGSTER_EVENT_BATCH_SIZE", EVENTS_PER_BATCH)
        return cls(postgres_url=_LAZY_URL, should_autocreate_tables=_server_answers(), inst_data=inst_data)


class NoDefsState(DefsStateStorage, ConfigurableClass):
    """Our definitions are plain code and keep no state; the stock class asks the database when definitions load."""

    def __init__(self, inst_data: ConfigurableClassData | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._inst_data = inst_data

    @property
    def inst_data(self) -> ConfigurableClassData | None:
        """Called by Dagster."""
        return self._inst_data

    @classmethod
    def config_type(cls) -> UserConfigSchema:
        """No configuration."""
        return {}

    @classmethod
    def from_config_value(
        cls, inst_data: ConfigurableClassData | None, config_value: Mapping[str, Any]
    ) -> "NoDefsState":
        """Called by Dagster."""
        return cls(inst_data)

    def get_latest_defs_state_info(self) -> DefsStateInfo | None:
        """None: there is no state."""
        return None

    def download_state_to_path(self, key: str, version: str, path: Path) -> None:
        """Refused: components with state need the stock `defs_state_storage`."""
        raise ConfigurationError(_NO_STATE)

    def upload_state_from_path(self, key: str, version: str, path: Path) -> None:
        """Refused."""
        raise ConfigurationError(_NO_STATE)

    def set_latest_version(self, key: str, version: str | None) -> None:
        """Refused."""
        raise ConfigurationError(_NO_STATE)


def _address() -> str:
    """The database's address, read again every few seconds: servers may come back on another port."""
    return _read_address(int(time.monotonic() / ADDRESS_SECONDS))


@functools.lru_cache(maxsize=1)
def _read_address(_period: int) -> str:
    return Settings.load().require_dagster_postgres()


def _is_alive(connection: Any) -> bool:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        connection.rollback()
    except psycopg2.Error:
        return False
    return True


def _server_answers() -> bool:
    try:
        url = make_url(Settings.load().require_dagster_postgres()).set(drivername="postgresql")
        psycopg2.connect(url.render_as_string(hide_password=False), connect_timeout=5).close()
    except (ConfigurationError, psycopg2.OperationalError):
        return False
    return True


registry.register("postgresql.rag_settings", __name__, SettingsDialect.__name__)
