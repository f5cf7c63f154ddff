"""Rows of collections, and holding that of the answering one while another version is made to answer."""

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from rag_pipeline.adapters.postgres.schema import collections
from rag_pipeline.core.ports import CollectionGeneration, EmbedderIdentity


def generation_of(row: Mapping[Any, Any]) -> CollectionGeneration:
    """The generation of a row of `collections`."""
    return CollectionGeneration(collection=row["name"], dimensions=row["dimensions"], analyzer=row["analyzer"])


def first_collection(prefix: str) -> str:
    """Name of the first collection of a deployment."""
    return f"{prefix}_1"


def add_generation(
    connection: sa.Connection, *, name: str, embedder: EmbedderIdentity, analyzer: str, state: str
) -> None:
    """Insert a row of `collections`. Raises `IntegrityError` when the name, or the state's only place, is taken."""
    connection.execute(
        sa.insert(collections).values(
            name=name, embedder=embedder.key, dimensions=embedder.dimensions, analyzer=analyzer, state=state
        )
    )


def hold_live(connection: sa.Connection) -> str | None:
    """Name of the collection that answers queries; it stays that until the transaction ends. None: there is none."""
    statement = sa.select(collections.c.name).where(collections.c.state == "LIVE").with_for_update(read=True)
    # A switch that was under way leaves the first look without a row: the one it has found is not LIVE any more.
    return connection.execute(statement).scalar() or connection.execute(statement).scalar()
