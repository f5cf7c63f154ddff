"""Pages of lists."""

from typing import Any

import sqlalchemy as sa

from rag_pipeline.errors import ConfigurationError

LAST_ROW = 1_000_000_000
"""Behind it there is nothing; PostgreSQL itself counts no further than 2^63."""


def page_of(statement: sa.Select[Any], *, page: int = 1, page_size: int) -> sa.Select[Any]:
    """One page of an ordered query. Raises `ConfigurationError` for a page that there cannot be."""
    if page < 1 or page_size < 1 or page * page_size > LAST_ROW:
        raise ConfigurationError(
            f"page={page}, page_size={page_size}: both begin at 1, and a list has at most {LAST_ROW:,} rows"
        )
    return statement.limit(page_size).offset((page - 1) * page_size)
