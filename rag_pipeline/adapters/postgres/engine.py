"""Connections to PostgreSQL, and the one place where its errors become ours."""

from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa
from sqlalchemy import exc

from rag_pipeline.errors import ConfigurationError, FactsUnavailableError


def create_engine(url: str, *, pool_size: int = 8) -> sa.Engine:
    """An engine that notices dead connections and gives up on an unreachable server after 5 s.

    `url` is a SQLAlchemy URL, as `Settings.require_postgres` returns it.

    Raises:
        ConfigurationError: it is none.
    """
    try:
        return sa.create_engine(
            url,
            pool_pre_ping=True,
            pool_size=pool_size,
            connect_args={"connect_timeout": 5, "options": "-c timezone=utc", "application_name": "rag_pipeline"},
        )
    except exc.ArgumentError as error:  # its message may hold the password
        raise ConfigurationError(
            "RAG_POSTGRES_URL is not of the form postgresql://USER:PASSWORD@HOST:PORT/DATABASE"
        ) from error


@contextmanager
def translate_errors() -> Iterator[None]:
    """Turn the driver's connection errors into `FactsUnavailableError`; errors of ours in SQL stay visible."""
    try:
        yield
    except (exc.OperationalError, exc.InterfaceError, exc.TimeoutError) as error:
        cause = error.orig if isinstance(error, exc.DBAPIError) else error
        reason = (str(cause).strip() or type(cause).__name__).splitlines()[0]
        raise FactsUnavailableError(
            f"PostgreSQL does not answer ({reason}); is it running? `rag-pipeline up` starts the embedded one"
        ) from error


@contextmanager
def transaction(engine: sa.Engine) -> Iterator[sa.Connection]:
    """One transaction, with errors translated."""
    with translate_errors(), engine.begin() as connection:
        yield connection


@contextmanager
def reading(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A connection for single reads, with errors translated.

    Without a transaction around it a read costs one round trip to the server instead of three (BEGIN and COMMIT).
    """
    with translate_errors(), engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        yield connection
