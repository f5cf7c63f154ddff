import multiprocessing
import time

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from rag_pipeline.adapters.postgres import schema
from rag_pipeline.adapters.postgres.engine import create_engine
from rag_pipeline.errors import FactsUnavailableError
from rag_pipeline.settings import Settings


@pytest.fixture
def url(settings: Settings) -> str:
    return settings.require_postgres()


def differences(url: str) -> list[object]:
    engine = create_engine(url, pool_size=1)
    try:
        with engine.connect() as connection:
            context = MigrationContext.configure(
                connection, opts={"compare_type": True, "compare_server_default": True}
            )
            return list(compare_metadata(context, schema.metadata))
    finally:
        engine.dispose()


def indexes(url: str) -> dict[str, str]:
    """Definitions of all indexes: autogenerate does not compare what partial indexes cover."""
    engine = create_engine(url, pool_size=1)
    try:
        with engine.connect() as connection:
            rows = connection.execute(
                sa.text(
                    "SELECT indexname, indexdef FROM pg_indexes "
                    "WHERE schemaname = 'public' AND tablename <> 'alembic_version'"
                )
            )
            return {row.indexname: row.indexdef for row in rows}
    finally:
        engine.dispose()


def waiting_sessions(engine: sa.Engine) -> int:
    """Sessions of the database that wait for a lock."""
    with engine.connect() as connection:
        statement = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        return int(connection.execute(sa.text(statement)).scalar_one())


def test_migrated_schema_is_the_schema_of_the_module(url: str) -> None:
    schema.migrate(url)
    assert differences(url) == []


def test_migrated_indexes_are_those_of_the_module(url: str) -> None:
    schema.migrate(url)
    migrated = indexes(url)
    engine = create_engine(url, pool_size=1)
    with engine.begin() as connection:
        schema.metadata.drop_all(connection)
        schema.metadata.create_all(connection)
    engine.dispose()
    assert migrated == indexes(url)


def test_migrating_twice_changes_nothing(url: str) -> None:
    schema.migrate(url)
    engine = create_engine(url, pool_size=1)
    with engine.begin() as connection:
        connection.execute(sa.insert(schema.knowledge_bases).values(id="a", name="kept"))
    schema.migrate(url)
    with engine.connect() as connection:
        assert connection.execute(sa.select(schema.knowledge_bases.c.name)).scalars().all() == ["kept"]
    engine.dispose()


def test_metadata_and_submitter_move_to_every_version(url: str) -> None:
    schema.migrate(url, revision="0007")
    engine = create_engine(url, pool_size=1)
    try:
        with engine.begin() as connection:
            connection.exec_driver_sql(
                """
                INSERT INTO knowledge_bases (id, name) VALUES ('k', 'k');
                INSERT INTO documents (id, kb_id, source_path, file_name, partition_key, status, version, metadata,
                                       created_by)
                VALUES ('d', 'k', 'd', 'd', 'd', 'READY', 2, '{"year": 1}', 'me');
                INSERT INTO document_versions (document_id, version, sha256, size_bytes, object_key)
                VALUES ('d', 1, '', 0, ''), ('d', 2, '', 0, '');
                """
            )
        schema.migrate(url)
        with engine.connect() as connection:
            versions = schema.document_versions.c
            rows = connection.execute(sa.select(versions.version, versions.metadata, versions.created_by)).all()
    finally:
        engine.dispose()
    assert sorted(map(tuple, rows)) == [(1, {"year": 1}, "me"), (2, {"year": 1}, "me")]


def test_two_processes_migrate_at_once(url: str) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=schema.migrate, args=(url,)) for _ in range(2)]
    engine = create_engine(url, pool_size=2)
    with engine.connect() as connection:
        # A table of the same name that is never committed holds both up until both are in the middle of it.
        connection.execute(sa.text("CREATE TABLE batches ()"))
        for process in processes:
            process.start()
        while waiting_sessions(engine) < 2:
            assert all(process.is_alive() for process in processes)
            time.sleep(0.1)
        connection.rollback()
    engine.dispose()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert differences(url) == []


def test_the_url_may_be_that_of_libpq(url: str) -> None:
    schema.migrate(url.replace("postgresql+psycopg2://", "postgresql://"))
    assert differences(url) == []


def test_a_server_that_is_down_is_a_temporary_error() -> None:
    with pytest.raises(FactsUnavailableError, match="does not answer"):
        schema.migrate("postgresql://nobody@127.0.0.1:1/rag")
