"""Fixtures for every test: real embedded servers, started once, and settings that no other test shares."""

import shutil
import signal
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import psycopg2
import psycopg2.sql
import pytest
from minio import Minio
from pydantic import SecretStr
from sqlalchemy import make_url

from rag_pipeline.adapters.postgres import schema
from rag_pipeline.adapters.postgres.engine import create_engine
from rag_pipeline.adapters.postgres.facts import Facts
from rag_pipeline.adapters.postgres.ledger import RetryPolicy
from rag_pipeline.local.servers import EmbeddedServers
from rag_pipeline.settings import Settings
from rag_pipeline_tests.model_server import ModelServer

if TYPE_CHECKING:
    from rag_pipeline_tests.query.library import Library

hypothesis.settings.register_profile(
    "shared machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("shared machine")


def pytest_configure() -> None:
    """Take signals as a terminal sends them: what a script starts in the background inherits an ignored SIGINT."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def servers() -> Iterator[Settings]:
    """Settings of three embedded servers on free ports in a temporary folder; stopped and removed at the end.

    Use `settings` in tests: it adds a database, a bucket and a collection prefix of the test's own.
    """
    folder = Path(tempfile.mkdtemp(prefix="rag-servers-"))
    folder.chmod(0o755)  # as root, PostgreSQL runs as another user and must reach its data
    try:
        with EmbeddedServers() as embedded:
            yield embedded.start(clean_settings(data_dir=folder))
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def settings(servers: Settings, tmp_path: Path) -> Iterator[Settings]:
    """Settings with a data folder, databases, a bucket and a collection prefix of this test's own, removed after it.

    The databases are empty: no migration has run.
    """
    with own_settings(servers, tmp_path) as own:
        yield own


@contextmanager
def own_settings(servers: Settings, folder: Path) -> Iterator[Settings]:
    """Settings on the session's servers that nobody else shares; everything in the servers is removed at the end."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    databases = (name, f"{name}_dagster")
    for database in databases:
        _execute(servers, "CREATE DATABASE {}", database)
    own = servers.model_copy(
        update={
            "data_dir": folder / "data",
            "models_dir": servers.data_dir / "models",
            "postgres_url": _with_database(servers, databases[0]),
            "dagster_postgres_url": _with_database(servers, databases[1]),
            "s3_bucket": name.replace("_", "-"),
            "milvus_collection_prefix": name,
        }
    )
    endpoint, access_key, secret_key = own.require_s3()
    client = Minio(endpoint.removeprefix("http://"), access_key=access_key, secret_key=secret_key, secure=False)
    client.make_bucket(own.s3_bucket)
    yield own
    for entry in client.list_objects(own.s3_bucket, recursive=True):
        client.remove_object(own.s3_bucket, str(entry.object_name))
    client.remove_bucket(own.s3_bucket)
    _drop_collections(own)
    for database in databases:
        _execute(servers, "DROP DATABASE {} WITH (FORCE)", database)


@pytest.fixture(scope="session")
def library(servers: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator["Library"]:
    """Documents that have been through the whole pipeline; for tests that only ask."""
    from rag_pipeline_tests.query.library import opened

    with own_settings(servers, tmp_path_factory.mktemp("library")) as settings, opened(settings) as library:
        yield library


@pytest.fixture(scope="session")
def facts_database(servers: Settings) -> Iterator[str]:
    """URL of a migrated database that the tests with `facts` use one after the other."""
    database = f"facts_{uuid.uuid4().hex[:12]}"
    _execute(servers, "CREATE DATABASE {}", database)
    url = servers.model_copy(update={"postgres_url": _with_database(servers, database)}).require_postgres()
    schema.migrate(url)
    yield url
    _execute(servers, "DROP DATABASE {} WITH (FORCE)", database)


@pytest.fixture
def facts(facts_database: str) -> Iterator[Facts]:
    """The facts database with no rows, which are removed afterwards; three attempts, 5 s before the second."""
    tables = ", ".join(schema.metadata.tables)
    with Facts(create_engine(facts_database), retry=RetryPolicy(max_attempts=3, base_seconds=5.0)) as opened:
        yield opened
        with opened.engine.begin() as connection:
            connection.exec_driver_sql(f"TRUNCATE {tables} RESTART IDENTITY CASCADE")


def clean_settings(**values: object) -> Settings:
    """Settings from these values and the defaults alone: neither the environment nor a `.env` file is read."""
    fields = {name: field.get_default(call_default_factory=True) for name, field in Settings.model_fields.items()}
    return Settings.model_construct(**{**fields, **values})


def _with_database(servers: Settings, database: str) -> SecretStr:
    url = make_url(servers.require_postgres()).set(drivername="postgresql", database=database)
    return SecretStr(url.render_as_string(hide_password=False))


def _execute(servers: Settings, statement: str, database: str) -> None:
    connection = psycopg2.connect(_with_database(servers, "postgres").get_secret_value())
    try:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(psycopg2.sql.SQL(statement).format(psycopg2.sql.Identifier(database)))
    finally:
        connection.close()


def _drop_collections(own: Settings) -> None:
    from pymilvus import MilvusClient

    from rag_pipeline.adapters.milvus import GRPC_OPTIONS

    uri, token = own.require_milvus()
    client = MilvusClient(uri, token=token, dedicated=True, grpc_options=GRPC_OPTIONS)
    try:
        for collection in client.list_collections():
            if collection.startswith(own.milvus_collection_prefix):
                client.drop_collection(collection)
    finally:
        client.close()


@pytest.fixture
def models() -> Iterator[ModelServer]:
    """A chat and rerank endpoint on loopback."""
    with ModelServer() as server:
        yield server
