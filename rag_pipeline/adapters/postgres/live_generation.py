"""The row of the collection that answers queries, and holding it while another version is made to answer."""

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from rag_pipeline.adapters.postgres.schema import collections
from rag_pipeline.core.ports import CollectionGeneration


def generation_of(row: Mapping[Any, Any]) -> CollectionGeneration:
    """The generation of a row of `collections`."""
    return CollectionGeneration(collection=row["name"], dimensions=row["dimensions"], analyzer=row["analyzer"])


def hold_live(connection: sa.Connection) -> str | None:
    """Name of the collection that answers queries; it stays that until the transaction ends. None: there is none."""
    statement = sa.select(collections.c.name).where(collections.c.state == "LIVE").with_for_update(read=True)
    # A switch that was under way leaves the first look without a row: the one it has found is not LIVE any more.
    return connection.execute(statement).scalar() or connection.execute(statement).scalar()
