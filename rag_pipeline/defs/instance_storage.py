"""Dagster's storage in PostgreSQL, at the address that the settings give when a connection is made.

The stock storage takes its URL from dagster.yaml and connects when it is constructed, so nothing of Dagster loads
without that variable or while the server is down, not even `dg check defs`.
"""

# ruff: noqa: ARG002, ARG003 - the signatures are Dagster's

from collections.abc import Mapping
from pathlib import Path
from typing import Any

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

from rag_pipeline.errors import ConfigurationError
from rag_pipeline.settings import Settings

_LAZY_URL = "postgresql+rag_settings://"
_NO_STATE = "this instance keeps no state of components: remove `defs_state_storage` from dagster.yaml to keep some"


class SettingsDialect(PGDialect_psycopg2):
    """psycopg2, connecting to `Settings.require_dagster_postgres()` as it is at that moment."""

    driver = "rag_settings"
    supports_statement_cache = True

    def connect(self, *_positional: Any, **_named: Any) -> DBAPIConnection:
        """Open a connection. Raises `ConfigurationError` when no server is configured or running."""
        url = make_url(Settings.load().require_dagster_postgres())
        positional, named = self.create_connect_args(url)  # type: ignore[no-untyped-call]
        return super().connect(*positional, **named)


class SettingsPostgresStorage(DagsterPostgresStorage):
    """The storage named in dagster.yaml. Creates its tables when the server answers at construction."""

    @classmethod
    def config_type(cls) -> UserConfigSchema:
        """No configuration: everything is in the settings."""
        return {}

    @classmethod
    def from_config_value(
        cls, inst_data: ConfigurableClassData | None, config_value: Mapping[str, Any]
    ) -> "SettingsPostgresStorage":
        """Called by Dagster."""
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


def _server_answers() -> bool:
    try:
        url = make_url(Settings.load().require_dagster_postgres()).set(drivername="postgresql")
        psycopg2.connect(url.render_as_string(hide_password=False), connect_timeout=5).close()
    except (ConfigurationError, psycopg2.OperationalError):
        return False
    return True


registry.register("postgresql.rag_settings", __name__, SettingsDialect.__name__)
