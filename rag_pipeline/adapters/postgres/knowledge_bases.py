"""Rows of knowledge bases."""

import uuid
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc

from rag_pipeline.adapters.postgres.engine import transaction
from rag_pipeline.adapters.postgres.schema import knowledge_bases as table
from rag_pipeline.core.documents import KnowledgeBase
from rag_pipeline.core.partitions import has_control_characters
from rag_pipeline.errors import ConfigurationError, KnowledgeBaseInactiveError, ResourceNotFoundError

NAMES_SHOWN = 10
"""In the message about an unknown one."""


class KnowledgeBases:
    """Create and find knowledge bases. Names are unique among those not deleted; the id never changes."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def create(self, name: str) -> KnowledgeBase:
        """A new knowledge base, or the existing active one of that name.

        Raises:
            ConfigurationError: the name is empty or over 100 characters.
            KnowledgeBaseInactiveError: one of that name is being deleted.
        """
        if not name.strip() or len(name) > 100 or "/" in name or has_control_characters(name):
            raise ConfigurationError(
                f"{name!r} is no name for a knowledge base: 1 to 100 characters without '/' and control characters"
            )
        statement = sa.insert(table).values(id=uuid.uuid4().hex, name=name)
        try:
            with transaction(self._engine) as connection:
                connection.execute(statement)
        except exc.IntegrityError:
            pass
        return self.active(name)

    def active(self, name: str) -> KnowledgeBase:
        """The knowledge base of that name, ready to take and answer.

        Raises:
            ResourceNotFoundError: there is none.
            KnowledgeBaseInactiveError: it is being deleted.
        """
        with transaction(self._engine) as connection:
            return active_knowledge_base(connection, name)

    def all(self) -> list[KnowledgeBase]:
        """Every knowledge base that is not deleted or being deleted, by name."""
        statement = sa.select(table).where(table.c.status == "ACTIVE").order_by(table.c.name)
        with transaction(self._engine) as connection:
            return [_knowledge_base(row) for row in connection.execute(statement).mappings()]


def active_knowledge_base(connection: sa.Connection, name: str, *, lock: bool = False) -> KnowledgeBase:
    """As `KnowledgeBases.active`; with `lock` it stays active until the transaction ends."""
    statement = sa.select(table).where(table.c.name == name, table.c.status != "DELETED")
    if lock:
        statement = statement.with_for_update(read=True)
    # What `create` refuses has no row, and the driver cannot send all of it (NUL, bytes that are no text).
    row = connection.execute(statement).mappings().first() if not has_control_characters(name) else None
    if row is None:
        raise ResourceNotFoundError(
            f"there is no knowledge base {name!r} ({_names(connection)}); make it with `rag-pipeline submit --kb`, "
            f"or create_knowledge_base({name!r}) in Python"
        )
    found = _knowledge_base(row)
    if found.status != "ACTIVE":
        raise KnowledgeBaseInactiveError(f"the knowledge base {name!r} is {found.status} and takes no new work")
    return found


def _names(connection: sa.Connection) -> str:
    """Those that there are, for who has misspelt one."""
    active = sa.select(table.c.name).where(table.c.status == "ACTIVE").order_by(table.c.name).limit(NAMES_SHOWN + 1)
    names = [repr(name) for name in connection.execute(active).scalars()]
    if not names:
        return "there is none yet"
    return f"there are {', '.join(names[:NAMES_SHOWN])}{' and more' if len(names) > NAMES_SHOWN else ''}"


def _knowledge_base(row: Mapping[Any, Any]) -> KnowledgeBase:
    return KnowledgeBase(id=row["id"], name=row["name"], status=row["status"], created_at=row["created_at"])
