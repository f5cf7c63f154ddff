"""Batches of one document that takes long, and ends of batches by age.

Revision ID: 0007
Revises: 0006
"""

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

STATEMENTS = """
ALTER TABLE batches ADD COLUMN is_large BOOLEAN DEFAULT false NOT NULL;

CREATE INDEX ix_batches_finished_at ON batches (finished_at) WHERE state = 'FINISHED';
"""


def upgrade() -> None:
    """Add the column and the index."""
    op.execute(STATEMENTS)
